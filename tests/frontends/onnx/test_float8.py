"""float8 in QDQ graphs and casts: the values of ONNX Runtime, which computes with them as float32."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.onnx import from_onnx
from qnn_ext.frontends.onnx.tensors import FLOAT8
from qnn_ext.numerics.float8 import FORMATS

from .graphs import model, node, onnx, run_ort, value

Proto = onnx.TensorProto
CODES = {name: code for code, name in FLOAT8.items()}


def check(proto, feed, rtol=0.0):
    """Interpreted and compiled values are ONNX Runtime's; within rtol where sums are of floats."""
    module = from_onnx(proto)
    wanted = run_ort(proto, feed)
    for found in (qnn_ext.Interpreter(module).run(feed), qnn_ext.build(module, num_threads=1).run(feed)):
        for array, want in zip(found.values(), wanted, strict=True):
            assert array.dtype == want.dtype
            np.testing.assert_allclose(array, want, rtol=rtol, atol=rtol)


def add_float8(proto, name, dtype, values):
    values = np.asarray(values, np.float32)
    proto.graph.initializer.append(onnx.helper.make_tensor(name, CODES[dtype], values.shape, values.reshape(-1)))


def samples(rng, shape, dtype):
    """From the smallest numbers of a format to beyond its largest, with midpoints, infinities and NaN."""
    x = (rng.standard_normal(shape) * np.exp2(rng.uniform(-20, 20, shape))).astype(np.float32)
    flat = x.reshape(-1)
    form = FORMATS[dtype]
    flat[::3] = (rng.integers(-(4 << form.mantissa), 4 << form.mantissa, flat[::3].shape) + 0.5) / 32
    flat[:5] = [np.inf, -np.inf, np.nan, -0.0, form.largest * 1.03]
    return x


@pytest.mark.parametrize("opset", [19, 21, 23])
@pytest.mark.parametrize("dtype", FORMATS)
def test_activations(dtype, opset, rng):
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    for scale in (1.0, 0.37):
        proto = model(nodes, [value("x", (9, 41))], [value("y", (9, 41))], {"s": np.float32(scale)}, opset)
        add_float8(proto, "z", dtype, 0.0)
        check(proto, {"x": samples(rng, (9, 41), dtype)})


@pytest.mark.parametrize("source", ["float32", "float16", "int32"])
@pytest.mark.parametrize("dtype", FORMATS)
def test_casts(dtype, source, rng):
    nodes = [node("Cast", ["x"], ["q"], to=CODES[dtype]), node("Cast", ["q"], ["y"], to=Proto.FLOAT)]
    with np.errstate(over="ignore"):
        x = samples(rng, (8, 40), dtype)
        x = rng.integers(-700, 700, (8, 40)).astype(source) if source == "int32" else x.astype(source)
    proto = model(nodes, [value("x", x.shape, source)], [value("y", x.shape)])
    module = from_onnx(proto)
    for found in (qnn_ext.Interpreter(module).run({"x": x}), qnn_ext.build(module, num_threads=1).run({"x": x})):
        np.testing.assert_array_equal(found["y"], expected_cast(x, dtype, source))


def expected_cast(x, dtype, source):
    """ONNX Runtime's answer, which on CPUs has casts to float8 from floats only."""
    first = [] if source != "int32" else [node("Cast", ["x"], ["f"], to=Proto.FLOAT)]
    nodes = [*first, node("Cast", ["f" if first else "x"], ["q"], to=CODES[dtype])]
    nodes.append(node("Cast", ["q"], ["y"], to=Proto.FLOAT))
    return run_ort(model(nodes, [value("x", x.shape, source)], [value("y", x.shape)]), {"x": x})[0]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_a_quantized_convolution(dtype, rng):
    """Weights with a scale per channel, activations between two pairs; constants of floats quantized in the graph."""
    nodes = [
        node("QuantizeLinear", ["x", "sx", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "sx", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "sw"], ["wd"], axis=0),
        node("QuantizeLinear", ["b", "sx", "z"], ["bq"]),
        node("DequantizeLinear", ["bq", "sx", "z"], ["bd"]),
        node("Conv", ["xd", "wd", "bd"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("QuantizeLinear", ["r", "sy", "z"], ["yq"]),
        node("DequantizeLinear", ["yq", "sy", "z"], ["y"]),
    ]
    constants = {
        "sx": np.float32(0.25),
        "sw": rng.uniform(0.01, 0.02, 6).astype(np.float32),
        "sy": np.float32(0.5),
        "b": rng.standard_normal(6).astype(np.float32),
    }
    proto = model(nodes, [value("x", (2, 3, 8, 8))], [value("y", (2, 6, 8, 8))], constants)
    add_float8(proto, "w", dtype, rng.standard_normal((6, 3, 3, 3)) * 20)
    add_float8(proto, "z", dtype, 0.0)
    # sums of floats in another order may round to the neighbour: their numbers differ by 2^-mantissa of them
    module = from_onnx(proto)
    assert any("float8" in str(note) for note in module.notes)
    x = rng.standard_normal((2, 3, 8, 8)).astype(np.float32)
    found, (want,) = qnn_ext.build(module, num_threads=1).run({"x": x})["y"], run_ort(proto, {"x": x})
    assert (found != want).mean() < 0.01
    np.testing.assert_allclose(found, want, rtol=2.0 ** -FORMATS[dtype].mantissa)


def test_weights_in_blocks(rng):
    nodes = [node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=16), node("Add", ["x", "d"], ["y"])]
    scale = rng.uniform(0.1, 1, (2, 5)).astype(np.float32)
    proto = model(nodes, [value("x", (32, 5))], [value("y", (32, 5))], {"s": scale})
    weights = rng.standard_normal((32, 5))
    add_float8(proto, "w", "float8_e4m3fn", weights)
    x = rng.standard_normal((32, 5)).astype(np.float32)
    check(proto, {"x": x})


def test_constants_are_cast_at_import(rng):
    x, large = rng.standard_normal((4, 4)).astype(np.float32), np.float32([[0.3, -1e9, 449, -0.0009]] * 4)
    nodes = [
        node("Cast", ["w"], ["q"], to=Proto.FLOAT8E4M3FN),
        node("Cast", ["q"], ["d"], to=Proto.FLOAT),
        node("Add", ["x", "d"], ["y"]),
    ]
    check(model(nodes, [value("x", (4, 4))], [value("y", (4, 4))], {"w": large}), {"x": x})


def _branches(code):
    graphs = [
        onnx.helper.make_graph([node("Identity", ["q"], [name])], name, [], [_float8(name, code)]) for name in "te"
    ]
    return [node("If", ["condition"], ["moved"], then_branch=graphs[0], else_branch=graphs[1])]


def _rounds(code, stacked):
    """A loop whose state is float8 and changes, or that stacks float8."""
    inside = [
        node("Identity", ["before"], ["after"]),
        node("DequantizeLinear", ["state", "s", "z"], ["real"]),
        node("Sin", ["real"], ["sine"]),
        node("QuantizeLinear", ["sine", "s", "z"], ["next"]),
    ]
    going = [value("round", (), np.int64), value("before", (), np.bool_), _float8("state", code)]
    results = [value("after", (), np.bool_), _float8("next", code), *[_float8("each", code)] * stacked]
    inside += [node("Identity", ["next"], ["each"])] * stacked
    body = onnx.helper.make_graph(inside, "body", going, results)
    return [node("Loop", ["three", "", "q"], ["last", "moved"] if stacked else ["moved"], body=body)]


def _float8(name, code):
    return onnx.helper.make_tensor_value_info(name, code, None)


MOVES = {
    "Identity": lambda _: [node("Identity", ["q"], ["moved"])],
    "Transpose": lambda _: [node("Transpose", ["q"], ["moved"], perm=[1, 0])],
    "Reshape": lambda _: [node("Reshape", ["q", "shape"], ["moved"])],
    "If": _branches,
    "a state of Loop": lambda code: _rounds(code, False),
    "outputs of Loop": lambda code: _rounds(code, True),
}


@pytest.mark.parametrize("moves", MOVES)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_what_only_moves_keeps_the_dtype(dtype, moves, rng):
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        *MOVES[moves](CODES[dtype]),
        node("DequantizeLinear", ["moved", "s", "z"], ["y"]),
    ]
    constants = {"s": np.float32(0.25), "shape": np.int64([2, 12]), "three": np.int64(3), "condition": np.bool_(True)}
    proto = model(nodes, [value("x", (4, 6))], [value("y", None)], constants)
    add_float8(proto, "z", dtype, 0.0)
    check(proto, {"x": rng.standard_normal((4, 6), np.float32) * 3})


def test_what_is_refused():
    cast = model(
        [node("Cast", ["x"], ["q"], to=Proto.FLOAT8E5M2, saturate=0), node("Cast", ["q"], ["y"], to=Proto.FLOAT)],
        [value("x", (2,))],
        [value("y", (2,))],
    )
    with pytest.raises(UnsupportedOperatorError, match=r"Cast.*set saturate to 1"):
        from_onnx(cast)
    leaves = model([node("Cast", ["x"], ["y"], to=Proto.FLOAT8E5M2)], [value("x", (2,))], [value("y", (2,))])
    leaves.graph.output[0].type.tensor_type.elem_type = Proto.FLOAT8E5M2
    moved = [node("Cast", ["x"], ["q"], to=Proto.FLOAT8E5M2), node("Identity", ["q"], ["y"])]
    leaves_moved = model(moved, [value("x", (2,))], leaves.graph.output)
    with pytest.raises(UnsupportedOperatorError, match="'y' is float8_e5m2"):
        from_onnx(leaves_moved)
    with pytest.raises(UnsupportedOperatorError, match=r"'y' is float8_e5m2.*cast it to float32 in the model"):
        from_onnx(leaves)
    nodes = [node("Cast", ["x"], ["f"], to=Proto.FLOAT), node("Add", ["f", "v"], ["y"])]
    enters = model(nodes, [value("x", (2,)), value("v", (2,))], [value("y", (2,))])
    enters.graph.input[0].type.tensor_type.elem_type = Proto.FLOAT8E4M3FNUZ
    for options in ({}, {"constants": {"x": np.float32([0.3, 1])}}):
        with pytest.raises(UnsupportedOperatorError, match="'x' is float8_e4m3fnuz"):
            from_onnx(enters, **options)
    shifted = model(
        [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])],
        [value("x", (2,))],
        [value("y", (2,))],
        {"s": np.float32(1)},
    )
    add_float8(shifted, "z", "float8_e4m3fn", 2.0)
    with pytest.raises(ModelFormatError, match=r"QuantizeLinear.*zero point of float8 must be 0"):
        from_onnx(shifted)
