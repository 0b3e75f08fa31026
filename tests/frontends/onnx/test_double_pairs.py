"""Two pairs of QuantizeLinear and DequantizeLinear in a row, which ONNX Runtime's default merges into one."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.frontends.onnx import from_onnx

from .graphs import interpret, model, node, onnx, ort, value

MICROSOFT = "com.microsoft"


def chain(pairs, between=(), domain="", outputs=()):
    """Pairs (scale, zero point) behind each other, and operators behind the first; outputs: besides the last result"""
    nodes, constants, read = [], {}, "x"
    for number, (scale, zero_point) in enumerate(pairs):
        names = [f"s{number}", f"z{number}"]
        constants |= {names[0]: np.asarray(scale, np.float32), names[1]: zero_point}
        nodes.append(node("QuantizeLinear", [read, *names], [f"q{number}"], domain=domain))
        nodes.append(node("DequantizeLinear", [f"q{number}", *names], [f"d{number}"], domain=domain))
        read = f"d{number}"
        for place, (kind, attributes) in enumerate(between if number == 0 else ()):
            nodes.append(node(kind, [read], [f"b{place}"], **attributes))
            read = f"b{place}"
    last = f"d{len(pairs) - 1}"
    results = [last, *outputs]
    return model(nodes, [value("x", (3, 400))], [value(name, (3, 400)) for name in results], constants, opset=17)


def run_default(proto, x):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, x)


def pairs_in(proto):
    """How many quantize operators are left."""
    return str(from_onnx(proto).script()).count("R.qnn.quantize(")


def compare(proto, rng, expected_pairs, scale=3.0):
    x = {"x": (rng.normal(size=(3, 400)) * scale).astype(np.float32)}
    results = interpret(proto, x)
    for found, expected in zip(results, run_default(proto, x), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert pairs_in(proto) == expected_pairs


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_random_pairs(dtype, rng):
    ends = np.iinfo(dtype)
    room = (ends.max - ends.min) // 12
    for _ in range(40):
        scales = (np.exp(rng.uniform(-6, -2, 2)) * 255 / (ends.max - ends.min)).astype(np.float32)
        zeros = [dtype(rng.integers(ends.min + room, ends.max - room)) for _ in range(2)]
        compare(chain(list(zip(scales, zeros, strict=True)), domain=MICROSOFT), rng, 1)


def test_three_pairs(rng):
    compare(chain([(0.02, np.uint8(128)), (0.017, np.uint8(120)), (0.03, np.uint8(131))]), rng, 1)


def test_equal_pairs(rng):
    compare(chain([(0.02, np.uint8(128))] * 2), rng, 1)


@pytest.mark.parametrize("domain", ["", MICROSOFT])
@pytest.mark.parametrize(
    "between",
    [
        [("Cast", {"to": onnx.TensorProto.FLOAT})],
        [("Identity", {}), ("Cast", {"to": onnx.TensorProto.FLOAT})],
        [("Dropout", {})],
    ],
)
def test_what_computes_nothing_between(between, domain, rng):
    compare(chain([(0.02, np.uint8(128)), (0.017, np.uint8(120))], between, domain), rng, 1)


@pytest.mark.parametrize(
    "pairs,between,outputs",
    [
        ([(0.02, np.uint8(128)), (0.017, np.int8(-8))], [], []),  # two dtypes
        ([(0.02, np.uint8(128)), (0.017, np.uint8(120))], [("Relu", {})], []),
        ([(0.02, np.uint8(128)), (0.017, np.uint8(120))], [], ["d0"]),  # the model returns it
    ],
)
def test_pairs_that_stay(pairs, between, outputs, rng):
    compare(chain(pairs, between, outputs=outputs), rng, 2)


def test_a_pair_that_another_operator_reads_stays(rng):
    proto = chain([(0.02, np.uint8(128)), (0.017, np.uint8(120))], outputs=["other"])
    proto.graph.node.append(node("Neg", ["d0"], ["other"]))
    compare(proto, rng, 2)


def test_the_built_model(rng):
    proto = chain([(0.02, np.uint8(128)), (0.017, np.uint8(120))])
    x = {"x": rng.normal(size=(3, 400)).astype(np.float32)}
    engine = qnn_ext.build(from_onnx(proto))
    np.testing.assert_array_equal(engine.run(x)["d1"], run_default(proto, x)[0])
