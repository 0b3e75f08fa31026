"""halves: float16 models are quantized as the same ones in float32."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

import qnn_ext
from qnn_ext.compiling.coverage import coverage
from qnn_ext.passes.bodies import every_binding
from qnn_ext.quantize import QConfig, quantize
from qnn_ext.quantize.halves import in_float32

CONFIG = QConfig(target="x86-64", calibrate_mode="minmax", equalize=False, smooth=None)
HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT


def imported(nodes, shapes, weights, dtype, opset=17):
    """A model with inputs and outputs of this dtype; a weight is rounded to float16 in any case."""
    stored = np.float16 if dtype == HALF else np.float32
    rounded = {name: value.astype(np.float16).astype(stored) for name, value in weights.items()}
    ports = [[helper.make_tensor_value_info(n, dtype, s) for n, s in one.items()] for one in shapes]
    graph = helper.make_graph(nodes, "g", *ports, [numpy_helper.from_array(v, n) for n, v in rounded.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return qnn_ext.from_onnx(model.SerializeToString())


def convolutions(rng, dtype, cast=False):
    weights = {"w": rng.normal(size=(8, 3, 3, 3)) / 4, "b": rng.normal(size=8), "v": rng.normal(size=(4, 8, 3, 3)) / 8}
    back = [helper.make_node("Cast", ["z"], ["c"], to=SINGLE), helper.make_node("Cast", ["c"], ["d"], to=dtype)]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1] * 4),
        helper.make_node("Relu", ["y"], ["z"]),
        *(back if cast else []),
        helper.make_node("Conv", ["d" if cast else "z", "v"], ["out"], pads=[1] * 4),
    ]
    return imported(nodes, ({"x": (1, 3, 8, 8)}, {"out": (1, 4, 8, 8)}), weights, dtype)


def recurrent(rng, dtype):
    weights = {"w": rng.normal(size=(1, 16, 5)) / 2, "r": rng.normal(size=(1, 16, 4)) / 2, "p": rng.normal(size=(4, 3))}
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["h", "last", "cell"], hidden_size=4),
        helper.make_node("Squeeze", ["last"], ["flat"]),
        helper.make_node("MatMul", ["flat", "p"], ["out"]),
    ]
    return imported(nodes, ({"x": (6, 1, 5)}, {"out": (3,), "cell": (1, 1, 4)}), weights, dtype)


@pytest.mark.parametrize("make", [convolutions, recurrent])
@pytest.mark.parametrize("fields", [{}, {"dynamic": True}], ids=["calibrated", "dynamic"])
def test_same_integers_as_in_float32(make, fields):
    half, single = (make(np.random.default_rng(3), dtype) for dtype in (HALF, SINGLE))
    data = np.random.default_rng(4).normal(size=(8, *single.inputs[0].shape)).astype(np.float16)
    config = QConfig(**fields) if fields else CONFIG
    given = [None, None] if fields else [list(data), list(data.astype(np.float32))]
    engines = []
    for module, samples in zip((half, single), given, strict=True):
        integers = quantize(module, dataset=samples, config=config)
        assert coverage(integers).share == 1.0
        engines.append(qnn_ext.build(integers, num_threads=1))
    for sample in data:
        for found, expected in zip(
            engines[0].run([sample]).values(), engines[1].run([sample.astype(np.float32)]).values(), strict=True
        ):
            assert found.dtype == np.float16
            np.testing.assert_array_equal(found, expected.astype(np.float16))


def test_loops_are_in_float32_too():
    module = recurrent(np.random.default_rng(0), HALF)
    assert module.inputs[0].dtype == "float16"
    wide = in_float32(module)
    types = [binding.var.ty for binding, _ in every_binding(wide.ir)]
    halves = [ty for ty in types if isinstance(ty, relax.TensorType) and str(ty.dtype) == "float16"]
    assert len(halves) == len(module.outputs)
    assert in_float32(wide) is wide


def test_casts_between_float16_and_float32_disappear():
    single, cast = (in_float32(convolutions(np.random.default_rng(0), HALF, cast)) for cast in (False, True))
    assert len(list(every_binding(single.ir))) == len(list(every_binding(cast.ir)))


def test_float32_stays_as_it_is():
    module = convolutions(np.random.default_rng(0), SINGLE)
    assert in_float32(module) is module
