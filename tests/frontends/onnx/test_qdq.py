"""QuantizeLinear and DequantizeLinear at every operator set, against ONNX Runtime and the specification's formula."""

import ml_dtypes
import numpy as np
import pytest

import qnn_ext
from qnn_ext import ModelFormatError, QnnError, ShapeError
from qnn_ext.compiling.build import qnn_pipeline
from qnn_ext.frontends.onnx import from_onnx
from qnn_ext.frontends.onnx.converters.qdq import NARROW_RANGES
from qnn_ext.interpreter import interpret as interpret_module
from qnn_ext.numerics.packed import WIDTHS
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.targets.names import make_target

from .graphs import interpret, model, node, one_node, onnx, operators, run_ort, value

Proto = onnx.TensorProto
DTYPES = {10: ("int8", "uint8"), 13: ("int8", "uint8"), 19: ("int8", "uint8"), 21: ("int8", "uint8", "int16", "uint16")}


def both(proto, feed, rtol=0.0):
    """Interpreter and compiled result, which must be equal, or within `rtol` where sums are of floats."""
    module = from_onnx(proto)
    interpreted = qnn_ext.Interpreter(module).run(feed)
    compiled = qnn_ext.build(module, num_threads=1).run(feed)
    for name, array in interpreted.items():
        np.testing.assert_allclose(compiled[name], array, rtol=rtol, atol=rtol)
    return list(interpreted.values())


def samples(rng, shape, scale):
    """Values around the dtype's range, midpoints of two steps among them."""
    x = (rng.standard_normal(shape) * 300 * scale).astype(np.float32)
    x.reshape(-1)[::3] = (rng.integers(-200, 200, x.reshape(-1)[::3].shape) + 0.5) * np.float32(scale)
    return x


@pytest.mark.parametrize("opset, dtype", [(opset, dtype) for opset, dtypes in DTYPES.items() for dtype in dtypes])
def test_per_tensor_equals_ort(opset, dtype, rng):
    info = np.iinfo(dtype)
    zero_point = np.asarray((info.min + info.max) // 2 + 3, dtype)
    scale = np.float32(0.0625)
    x = samples(rng, (4, 33), 0.0625 if info.bits == 8 else 10)
    proto = one_node("QuantizeLinear", {"x": ((4, 33),), "s": scale, "z": zero_point}, opset)
    np.testing.assert_array_equal(both(proto, {"x": x})[0], run_ort(proto, {"x": x})[0])
    q = rng.integers(info.min, info.max, (4, 33), endpoint=True).astype(dtype)
    proto = one_node("DequantizeLinear", {"x": ((4, 33), dtype), "s": scale, "z": zero_point}, opset)
    np.testing.assert_array_equal(both(proto, {"x": q})[0], run_ort(proto, {"x": q})[0])


@pytest.mark.parametrize("opset", [13, 19, 21, 23, 24, 25])
@pytest.mark.parametrize("axis", [None, 0, 2, -1])
def test_per_axis_equals_the_formula(opset, axis, rng):
    x = samples(rng, (3, 4, 5), 0.1)
    along = 1 if axis is None else axis % 3
    shape = [-1 if i == along else 1 for i in range(3)]
    scale = rng.uniform(0.05, 0.2, x.shape[along]).astype(np.float32)
    zero_point = rng.integers(-9, 9, x.shape[along]).astype(np.int8)
    attributes = {} if axis is None else {"axis": axis}
    proto = one_node("QuantizeLinear", {"x": (x.shape,), "s": scale, "z": zero_point}, opset, **attributes)
    expected = np.rint(x / scale.reshape(shape)) + zero_point.reshape(shape)
    (q,) = both(proto, {"x": x})
    np.testing.assert_array_equal(q, np.clip(expected, -128, 127).astype(np.int8))
    proto = one_node("DequantizeLinear", {"x": (x.shape, np.int8), "s": scale, "z": zero_point}, opset, **attributes)
    real = (q.astype(np.int32) - zero_point.reshape(shape)).astype(np.float32) * scale.reshape(shape)
    np.testing.assert_array_equal(both(proto, {"x": q})[0], real)


def test_division_is_true_and_midpoints_go_to_even():
    """x · (1 / s) would give another integer for these."""
    scale = np.float32(0.023)
    x = (np.arange(-3000, 3000, dtype=np.float32) + np.float32(0.5)) * scale
    proto = one_node("QuantizeLinear", {"x": (x.shape,), "s": scale, "z": np.int16(0)}, 21)
    expected = np.rint(x / scale).astype(np.int16)
    assert (expected != np.rint(x * (np.float32(1) / scale))).any()
    np.testing.assert_array_equal(both(proto, {"x": x})[0], expected)


def test_no_zero_point_means_uint8(rng):
    x = samples(rng, (5, 5), 0.5)
    proto = one_node("QuantizeLinear", {"x": (x.shape,), "s": np.float32(0.5)}, 21)
    (q,) = both(proto, {"x": x})
    assert q.dtype == np.uint8
    np.testing.assert_array_equal(q, run_ort(proto, {"x": x})[0])


def test_output_dtype(rng):
    x = samples(rng, (5, 5), 0.5)
    proto = one_node("QuantizeLinear", {"x": (x.shape,), "s": np.float32(0.5)}, 21, output_dtype=Proto.INT16)
    (q,) = both(proto, {"x": x})
    assert q.dtype == np.int16
    np.testing.assert_array_equal(q, run_ort(proto, {"x": x})[0])


def test_output_dtype_that_contradicts_the_zero_point():
    inputs = {"x": ((5, 5),), "s": np.float32(0.5), "z": np.int8(0)}
    proto = model(
        [node("QuantizeLinear", list(inputs), ["y"], output_dtype=Proto.INT16)],
        [value("x", (5, 5))],
        [value("y", (5, 5), np.int16)],
        {"s": inputs["s"], "z": inputs["z"]},
    )
    with pytest.raises(ModelFormatError, match="output_dtype is int16, but the zero point is int8"):
        from_onnx(proto)


@pytest.mark.parametrize("scale", [np.float32(0.25), np.asarray([0.25], np.float32), np.asarray(0.25, np.float16)])
def test_scale_of_any_form(scale, rng):
    q = rng.integers(-128, 127, (3, 7)).astype(np.int8)
    proto = one_node("DequantizeLinear", {"x": (q.shape, np.int8), "s": scale, "z": np.zeros(scale.shape, np.int8)}, 21)
    (real,) = both(proto, {"x": q})
    assert real.dtype == scale.dtype
    np.testing.assert_array_equal(real, q.astype(np.float32) * np.float32(0.25))


@pytest.mark.parametrize("operator, dtype", [("QuantizeLinear", np.float32), ("DequantizeLinear", np.int8)])
def test_a_scale_that_is_no_number(operator, dtype):
    proto = one_node(operator, {"x": ((2, 3), dtype), "s": np.float32(np.nan), "z": np.int8(0)}, 21)
    with pytest.raises(ModelFormatError, match=r"input 1 \('s'\), a scale, is nan: the quantizer saw values"):
        from_onnx(proto)


@pytest.mark.parametrize("dtype, zero_point", [(np.uint8, 0), (np.uint8, 7), (np.int8, -128), (np.int8, 0)])
@pytest.mark.parametrize("last", ["Softmax", "Add", "Sigmoid"])
def test_an_infinite_scale(last, dtype, zero_point, rng):
    """ONNX Runtime's quantizer writes it for a mask of −inf."""
    quantizers = {"s": np.float32(np.inf), "z": dtype(zero_point), "t": np.float32(0.02), "y": dtype(zero_point)}
    pairs = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["d"])]
    function = node(last, ["d", "x"] if last == "Add" else ["d"], ["f"])
    nodes = [*pairs, function, node("QuantizeLinear", ["f", "t", "y"], ["r"])]
    results = [value("q", (4, 6), dtype), value("d", (4, 6)), value("r", (4, 6), dtype)]
    proto = model(nodes, [value("x", (4, 6))], results, quantizers)
    x = rng.standard_normal((4, 6)).astype(np.float32)
    x[0, :3], x[1], x[2, 4] = -np.inf, -np.inf, np.inf
    for ours, theirs in zip(both(proto, {"x": x}), run_ort(proto, {"x": x}), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert any("its scale is infinite" in note.reason for note in from_onnx(proto).notes)


def test_infinite_scales_of_some_channels(rng):
    quantizers = {"s": np.asarray([0.1, np.inf, 0.2], np.float32), "z": np.asarray([3, 0, 9], np.uint8)}
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"], axis=1), node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    proto = model(nodes, [value("x", (4, 3))], [value("q", (4, 3), np.uint8), value("y", (4, 3))], quantizers)
    x = rng.standard_normal((4, 3)).astype(np.float32)
    for ours, theirs in zip(both(proto, {"x": x}), run_ort(proto, {"x": x}), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_computed_scale(rng):
    x, scale = samples(rng, (3, 7), 0.3), np.float32(0.3)
    proto = one_node("QuantizeLinear", {"x": (x.shape,), "s": ((), np.float32), "z": np.int8(5)}, 21)
    (q,) = both(proto, {"x": x, "s": np.asarray(scale)})
    np.testing.assert_array_equal(q, np.clip(np.rint(x / scale) + 5, -128, 127).astype(np.int8))


def test_int32_without_zero_point(rng):
    q = rng.integers(-(2**30), 2**30, (3, 7)).astype(np.int32)
    proto = one_node("DequantizeLinear", {"x": (q.shape, np.int32), "s": np.float32(1e-3)}, 21)
    np.testing.assert_array_equal(both(proto, {"x": q})[0], run_ort(proto, {"x": q})[0])


def test_int32_input_is_quantized(rng):
    x = rng.integers(-300, 300, (3, 7)).astype(np.int32)
    proto = one_node("QuantizeLinear", {"x": (x.shape, np.int32), "s": np.float32(2), "z": np.int8(1)}, 21)
    expected = np.clip(np.rint(x / np.float32(2)) + 1, -128, 127)
    np.testing.assert_array_equal(both(proto, {"x": x})[0], expected.astype(np.int8))


# ---- 4 bits, blocks -----------------------------------------------------------------------------------------------


def four_bit(name, code, array):
    return onnx.helper.make_tensor(name, code, array.shape, array.reshape(-1).tolist())


@pytest.mark.parametrize("code, low, high", [(Proto.INT4, -8, 7), (Proto.UINT4, 0, 15)])
def test_weights_of_four_bits(code, low, high, rng):
    weights = rng.integers(low, high, (6, 5), endpoint=True)
    scale = rng.uniform(0.1, 1, 5).astype(np.float32)
    nodes = [node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=1), node("MatMul", ["x", "d"], ["y"])]
    proto = model(nodes, [value("x", (2, 6))], [value("y", (2, 5))], {"s": scale})
    zero_point = rng.integers(low, high, 5)
    proto.graph.initializer.extend([four_bit("w", code, weights), four_bit("z", code, zero_point)])
    x = rng.standard_normal((2, 6)).astype(np.float32)
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    np.testing.assert_allclose(both(proto, {"x": x}, 1e-5)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("code, low, high", [(Proto.INT4, -8, 7), (Proto.UINT4, 0, 15)])
def test_activations_of_four_bits_saturate(code, low, high, rng):
    """Quantized to 4 bits and back: what is held in 8 bits must not exceed 4."""
    x = samples(rng, (3, 8), 0.5)
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    proto = model(nodes, [value("x", x.shape)], [value("y", x.shape)], {"s": np.float32(0.5)})
    proto.graph.initializer.append(four_bit("z", code, np.asarray(low + 3)))
    steps = np.clip(np.rint(x / np.float32(0.5)) + low + 3, low, high)
    np.testing.assert_array_equal(both(proto, {"x": x})[0], (steps - low - 3).astype(np.float32) * np.float32(0.5))


@pytest.mark.parametrize("length, size", [(8, 4), (7, 4)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("constant", [True, False])
def test_blocks_of_scales(length, size, axis, constant, rng):
    shape = (length, 3) if axis == 0 else (3, length)
    blocks = tuple(-(-n // size) if i == axis else n for i, n in enumerate(shape))
    q = rng.integers(-128, 127, shape).astype(np.int8)
    scale = rng.uniform(0.1, 1, blocks).astype(np.float32)
    zero_point = rng.integers(-9, 9, blocks).astype(np.int8)
    spread = [np.repeat(a, size, axis).take(range(length), axis) for a in (scale, zero_point)]
    expected = (q.astype(np.int32) - spread[1]).astype(np.float32) * spread[0]
    # the data are constant, as weights are, or come at run time
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=axis, block_size=size),
        node("Add", ["x", "d"], ["y"]),
        node("QuantizeLinear", ["d", "s", "z"], ["back"], axis=axis, block_size=size),
    ]
    given = {"s": scale, "z": zero_point}
    inputs = [value("x", shape)] if constant else [value("x", shape), value("q", shape, np.int8)]
    outputs = [value("y", shape), value("back", shape, np.int8)]
    proto = model(nodes, inputs, outputs, given | ({"q": q} if constant else {}))
    x = rng.standard_normal(shape).astype(np.float32)
    real, back = both(proto, {"x": x} if constant else {"x": x, "q": q})
    np.testing.assert_array_equal(real, x + expected)
    np.testing.assert_array_equal(back, q)


def blocked_weight(rng, dtype, shape, axis, size):
    """DequantizeLinear's inputs by name, as TensorProtos, and the real values."""
    low, high = NARROW_RANGES.get(dtype) or (np.iinfo(dtype).min, np.iinfo(dtype).max)
    blocks = tuple(-(-n // size) if i == axis else n for i, n in enumerate(shape))
    q, z = (rng.integers(low, high + 1, dims) for dims in (shape, blocks))
    s = rng.uniform(0.1, 1, blocks).astype(np.float32)
    code = getattr(Proto, dtype.upper())
    tensors = [onnx.helper.make_tensor(name, code, a.shape, a.reshape(-1)) for name, a in (("q", q), ("z", z))]
    spread = [np.repeat(a, size, axis).take(range(shape[axis]), axis) for a in (s, z)]
    return [*tensors, onnx.numpy_helper.from_array(s, "s")], (q - spread[1]).astype(np.float32) * spread[0]


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "int2", "uint2"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_product_with_blocks_stays_packed(axis, dtype, rng):
    """Along K of (K, N), whose activations ONNX Runtime quantizes, or of (N, K) before a transpose, in float."""
    depth, units, size = 70, 9, 32
    tensors, real = blocked_weight(rng, dtype, (depth, units) if axis == 0 else (units, depth), axis, size)
    nodes = [node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=axis, block_size=size)]
    nodes += [node("Transpose", ["d"], ["t"], perm=[1, 0])] if axis else []
    nodes += [node("MatMul", ["x", "t" if axis else "d"], ["y"])]
    proto = model(nodes, [value("x", (2, 3, depth))], [value("y", (2, 3, units))], {}, opset=25 if "2" in dtype else 21)
    proto.graph.initializer.extend(tensors)
    x = rng.standard_normal((2, 3, depth)).astype(np.float32)
    module = qnn_ext.from_onnx(proto)
    text = module.ir.script()
    assert "blockwise_dense" in text and "blockwise_dequantize" not in text and "permute" not in text
    expected = x.astype(np.float64) @ (real.T if axis else real)
    if axis == 0 and "2" not in dtype:  # where ONNX Runtime 1.32 is wrong if there are zero points
        (expected,) = run_ort(proto, {"x": x}, optimized=True)
    bound = (size + 3 + 8) * 2.0**-24 * (np.abs(x) @ np.full((depth, 1), 2.0 ** WIDTHS[dtype]))
    if axis == 0 and "2" in dtype:
        bound = bound + np.abs(x).max() / 254 * np.abs(real).sum(0)
    for run in (qnn_ext.Interpreter(module).run, qnn_ext.build(module, num_threads=1).run):
        (result,) = run({"x": x}).values()
        assert (np.abs(result - expected) <= bound).all()


@pytest.mark.parametrize("dtype", ["int4", "uint8"])
def test_an_embedding_with_blocks_stays_packed(dtype, rng):
    tensors, real = blocked_weight(rng, dtype, (11, 20), 1, 16)
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=1, block_size=16),
        node("Gather", ["d", "ids"], ["y"], axis=0),
    ]
    proto = model(nodes, [value("ids", (2, 3), np.int64)], [value("y", (2, 3, 20))], {})
    proto.graph.initializer.extend(tensors)
    ids = rng.integers(0, 11, (2, 3))
    np.testing.assert_array_equal(both(proto, {"ids": ids})[0], real[ids])
    assert "(11, 20)" not in qnn_ext.from_onnx(proto).ir.script()


# ---- refusals -----------------------------------------------------------------------------------------------------


def test_axis_out_of_range():
    inputs = {"x": ((3, 4),), "s": np.ones(4, np.float32), "z": np.zeros(4, np.int8)}
    proto = model(
        [node("QuantizeLinear", list(inputs), ["y"], "q1", axis=2)],
        [value("x", (3, 4))],
        [value("y", (3, 4), np.int8)],
        {"s": inputs["s"], "z": inputs["z"]},
    )
    with pytest.raises(ModelFormatError, match=r"QuantizeLinear 'q1'.*axis 2"):
        from_onnx(proto)


@pytest.mark.parametrize("scale", [np.float32(np.nan), np.float32(-1)])
def test_senseless_scales(scale):
    proto = one_node("DequantizeLinear", {"x": ((3,), np.int8), "s": scale, "z": np.int8(0)}, 21)
    with pytest.raises((ShapeError, ModelFormatError), match="DequantizeLinear"):
        from_onnx(proto)


def test_scale_zero_of_a_dead_channel(rng):
    scale = np.asarray([0.5, 0.0], np.float32)
    weights = np.asarray([[3, 0], [-4, 0]], np.int8)
    nodes = [node("DequantizeLinear", ["w", "s"], ["d"], axis=1), node("MatMul", ["x", "d"], ["y"])]
    proto = model(nodes, [value("x", (1, 2))], [value("y", (1, 2))], {"w": weights, "s": scale})
    x = np.asarray([[2, -2]], np.float32)
    np.testing.assert_allclose(interpret(proto, {"x": x})[0], [[7, 0]], rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (7,)])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_weights_with_negative_scales(dtype, shape, rng):
    """NNCF's symmetric weights: the largest magnitude is the lowest integer, whatever its sign."""
    info = np.iinfo(dtype)
    weights = rng.integers(info.min, info.max, (16, 7), endpoint=True).astype(dtype)
    weights[:2] = [[info.min], [info.max]]
    scale = -rng.uniform(1e-3, 2e-3, shape).astype(np.float32)
    if shape:
        scale[::2] *= -1
    zero_point = rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    nodes = [node("DequantizeLinear", ["w", "s", "z"], ["d"], axis=1), node("Gather", ["d", "x"], ["y"])]
    constants = {"w": weights, "s": scale, "z": zero_point}
    proto = model(nodes, [value("x", (16,), np.int64)], [value("y", (16, 7))], constants, opset=21)
    feed = {"x": np.arange(16)}
    np.testing.assert_array_equal(both(proto, feed)[0], run_ort(proto, feed)[0])


@pytest.mark.parametrize("code, low, high", [(Proto.INT4, -8, 7), (Proto.UINT4, 0, 15)])
def test_weights_of_four_bits_with_negative_scales(code, low, high, rng):
    weights = np.concatenate([np.full((1, 5), low), np.full((1, 5), high), rng.integers(low, high, (4, 5))])
    scale = (rng.uniform(0.1, 1, 5) * [1, -1, -1, 1, -1]).astype(np.float32)
    proto = model(
        [node("DequantizeLinear", ["w", "s"], ["d"], axis=1), node("MatMul", ["x", "d"], ["y"])],
        [value("x", (2, 6))],
        [value("y", (2, 5))],
        {"s": scale},
    )
    proto.graph.initializer.append(four_bit("w", code, weights))
    x = rng.integers(-9, 9, (2, 6)).astype(np.float32)
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    np.testing.assert_allclose(both(proto, {"x": x}, 1e-5)[0], expected, rtol=1e-5, atol=1e-5)


def test_a_product_with_negative_scales_multiplies_integers(rng):
    weights = rng.integers(-128, 127, (8, 16), endpoint=True).astype(np.int8)
    scale = (rng.uniform(0.01, 0.02, 8) * rng.choice([-1, 1], 8)).astype(np.float32)
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
        node("DequantizeLinear", ["w", "sw"], ["wd"], axis=0),
        node("Gemm", ["xd", "wd"], ["m"], transB=1),
        node("QuantizeLinear", ["m", "sy", "zx"], ["y"]),
    ]
    constants = {"sx": np.float32(0.02), "zx": np.uint8(120), "w": weights, "sw": scale, "sy": np.float32(0.1)}
    proto = model(nodes, [value("x", (64, 16))], [value("y", (64, 8), np.uint8)], constants)
    module = from_onnx(proto)
    assert not module.notes and "matmul" not in operators(module)
    x = rng.standard_normal((64, 16)).astype(np.float32)
    steps = np.abs(both(proto, {"x": x})[0].astype(int) - run_ort(proto, {"x": x})[0])
    assert steps.max() <= 1 and steps.mean() < 0.01  # ONNX Runtime multiplies floats here


def test_a_negative_scale_of_what_is_computed_is_refused():
    proto = one_node(
        "DequantizeLinear", {"x": ((3,), np.int8), "s": np.float32([0.5, -0.25, 1]), "z": np.zeros(3, np.int8)}, 21
    )
    with pytest.raises(ShapeError, match=r"DequantizeLinear .*scale must be finite and positive, found -0.25$"):
        from_onnx(proto)


def test_weights_stay_integers(rng):
    """A quantized layer holds no float weights, and becomes an integer product."""
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["xq"]),
        node("DequantizeLinear", ["xq", "sx", "zx"], ["xd"]),
        node("DequantizeLinear", ["w", "sw"], ["wd"], axis=0),
        node("Transpose", ["wd"], ["wt"], perm=[1, 0]),
        node("MatMul", ["xd", "wt"], ["m"]),
        node("QuantizeLinear", ["m", "sy", "zx"], ["yq"]),
        node("DequantizeLinear", ["yq", "sy", "zx"], ["y"]),
    ]
    constants = {
        "sx": np.float32(0.02),
        "zx": np.uint8(120),
        "w": rng.integers(-127, 127, (8, 16)).astype(np.int8),
        "sw": rng.uniform(0.01, 0.02, 8).astype(np.float32),
        "sy": np.float32(0.1),
    }
    proto = model(nodes, [value("x", (2, 16))], [value("y", (2, 8))], constants)
    module = from_onnx(proto)
    assert not module.notes
    assert "matmul" not in operators(module)
    assert {"qnn.dense", "qnn.batch_matmul"} & set(operators(module))
    x = rng.standard_normal((2, 16)).astype(np.float32)
    difference = np.abs(both(proto, {"x": x})[0] - run_ort(proto, {"x": x})[0])
    assert difference.max() <= 0.1001 and (difference > 0).mean() < 0.1


def test_bfloat16_scale(rng):
    scale = np.asarray(0.3, ml_dtypes.bfloat16)
    q = rng.integers(-128, 127, (3, 7)).astype(np.int8)
    tensor = onnx.helper.make_tensor("s", Proto.BFLOAT16, [], scale.tobytes(), True)
    nodes = [node("DequantizeLinear", ["x", "s"], ["b"]), node("Cast", ["b"], ["y"], to=Proto.FLOAT)]
    proto = model(nodes, [value("x", q.shape, np.int8)], [value("y", q.shape)])
    proto.graph.initializer.append(tensor)
    real = (q.astype(np.float32) * scale.astype(np.float32)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(both(proto, {"x": q})[0], real.astype(np.float32))


def test_errors_are_ours():
    with pytest.raises(QnnError):
        from_onnx(model([node("DequantizeLinear", ["x"], ["y"])], [value("x", (3,), np.int8)], [value("y", (3,))]))


def test_weights_quantized_in_the_graph(rng):
    """QuantizeLinear of constant float weights is computed at import, its result stays integers."""
    nodes = [
        node("QuantizeLinear", ["w", "s", "z"], ["q"], axis=0),
        node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=0),
        node("Add", ["x", "d"], ["y"]),
    ]
    weights, scale = rng.standard_normal((3, 4)).astype(np.float32), np.asarray([0.1, 0.2, 0.3], np.float32)
    proto = model(
        nodes, [value("x", (3, 4))], [value("y", (3, 4))], {"w": weights, "s": scale, "z": np.zeros(3, np.int8)}
    )
    assert "qnn.quantize" not in operators(from_onnx(proto))
    x = rng.standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_array_equal(both(proto, {"x": x})[0], run_ort(proto, {"x": x})[0])


def test_a_padding_value_may_be_quantized(rng):
    """ONNX Runtime's tools quantize every float initializer, and so that of Pad."""
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        node("DequantizeLinear", ["c", "t"], ["v"]),
        node("Pad", ["d", "widths", "v"], ["p"]),
        node("QuantizeLinear", ["p", "s", "z"], ["y"]),
    ]
    constants = {"s": np.float32(0.1), "z": np.uint8(8), "c": np.uint8(200), "t": np.float32(0.0075)}
    constants["widths"] = np.array([0, 1, 2, 0])
    proto = model(nodes, [value("x", (3, 4), np.uint8)], [value("y", (5, 5), np.uint8)], constants)
    x = rng.integers(0, 255, (3, 4)).astype(np.uint8)
    (result,) = both(proto, {"x": x})
    np.testing.assert_array_equal(result, run_ort(proto, {"x": x})[0])
    np.testing.assert_array_equal(result[:, 0], 23)


def test_quantized_inputs_and_outputs_stay_as_declared(rng):
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        node("Relu", ["d"], ["r"]),
        node("QuantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    values = [value("x", (3, 4), np.uint8)], [value("y", (3, 4), np.uint8)]
    proto = model(nodes, *values, {"s": np.float32(0.1), "z": np.uint8(128)})
    module = from_onnx(proto)
    assert (module.inputs[0].dtype, module.outputs[0].dtype) == ("uint8", "uint8")
    x = rng.integers(0, 255, (3, 4)).astype(np.uint8)
    np.testing.assert_array_equal(both(proto, {"x": x})[0], np.maximum(x, 128))


def test_shape_arithmetic_that_is_quantized(rng):
    """As ONNX Runtime's quantizer leaves a detector that resizes its image, if nothing folded its shapes before."""

    def both_ways(name):
        return [
            node("QuantizeLinear", [name, "s", "z"], [f"{name}q"]),
            node("DequantizeLinear", [f"{name}q", "s", "z"], [f"{name}d"]),
        ]

    nodes = [
        node("Shape", ["x"], ["whole"]),
        node("Slice", ["whole", "two", "four", "zero"], ["size"]),
        node("Cast", ["size"], ["real"], to=1),
        node("Mul", ["real", "ratio"], ["wide"]),
        *both_ways("wide"),
        node("Floor", ["wided"], ["floor"]),
        *both_ways("floor"),
        node("Cast", ["floord"], ["new"], to=7),
        node("Slice", ["whole", "zero", "two", "zero"], ["outer"]),
        node("Concat", ["outer", "new"], ["sizes"], axis=0),
        node("Resize", ["x", "", "", "sizes"], ["y"], mode="nearest", nearest_mode="floor"),
    ]
    constants = {"s": np.float32(0.5), "z": np.uint8(0), "ratio": np.float32(1.6)}
    constants |= {name: np.int64([number]) for name, number in (("zero", 0), ("two", 2), ("four", 4))}
    x = rng.standard_normal((1, 2, 7, 10)).astype(np.float32)
    proto = model(nodes, [value("x", x.shape)], [value("y", None)], constants, opset=18)
    (found,), (wanted,) = both(proto, {"x": x}), run_ort(proto, {"x": x})
    assert found.shape == (1, 2, 11, 16)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("operator", ["ConstantOfShape", "Expand", "NonZero"])
def test_what_depends_on_quantized_constants(operator, rng):
    """A shape, and a comparison that decides how many elements there are, as the mask of Longformer."""
    last = {
        "ConstantOfShape": [node("ConstantOfShape", ["size"], ["new"])],
        "Expand": [node("Expand", ["s", "size"], ["new"])],
        "NonZero": [
            node("Greater", ["real", "one"], ["mask"]),
            node("NonZero", ["mask"], ["places"]),
            node("Cast", ["places"], ["new"], to=1),
        ],
    }
    nodes = [
        node("QuantizeLinear", ["given", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["real"]),
        node("Cast", ["real"], ["size"], to=7),
        *last[operator],
        node("Add", ["new", "x"], ["y"]),
    ]
    constants = {"s": np.float32(0.5), "z": np.uint8(0), "given": np.float32([1, 4]), "one": np.float32(2)}
    x = rng.standard_normal((3, 4)).astype(np.float32)
    proto = model(nodes, [value("x", x.shape)], [value("y", None)], constants, opset=18)
    (found,), (wanted,) = both(proto, {"x": x}), run_ort(proto, {"x": x})
    assert "nonzero" not in from_onnx(proto).script()
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_what_is_no_number_becomes_the_lowest_integer(dtype, constant):
    """As in ONNX Runtime on x86, in vectors and in the elements behind the last whole one."""
    x = np.linspace(-3, 3, 37, dtype=np.float32)
    x[[0, 5, 33, 36]], x[[7, 8]] = np.nan, [np.inf, -np.inf]
    scale, zero = np.float32(0.01), np.asarray(5, dtype)
    inputs = {"x": ((37,), np.float32), "s": scale if constant else ((), np.float32), "z": zero}
    proto, feed = one_node("QuantizeLinear", inputs), {"x": x} if constant else {"x": x, "s": np.asarray(scale)}
    (expected,) = run_ort(proto, feed)
    assert (expected[np.isnan(x)] == np.iinfo(dtype).min).all()
    module = from_onnx(proto)
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        np.testing.assert_array_equal(*runner.run(feed).values(), expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_tables_of_functions_that_are_not_defined_everywhere():
    """The square root of a negative number is none; of 8 bits it is a lookup."""
    nodes = [
        node("DequantizeLinear", ["q", "s", "z"], ["x"]),
        node("Sqrt", ["x"], ["r"]),
        node("QuantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    constants = {"s": np.float32(0.05), "z": np.int8(-3)}
    proto = model(nodes, [value("q", (256,), np.int8)], [value("y", (256,), np.int8)], constants)
    feed = {"q": np.arange(-128, 128, dtype=np.int8)}
    module = from_onnx(proto)
    assert operators(module) == ["qnn.table"]
    np.testing.assert_array_equal(*qnn_ext.Interpreter(module).run(feed).values(), *run_ort(proto, feed))


@pytest.mark.parametrize("change", ["", "a cast", "another reader", "a move that is returned", "no transposition"])
def test_what_is_returned_and_quantized_behind_a_transposition(rng, change):
    """ONNX Runtime quantizes it before that, and returns what it has quantized."""
    constants = {"s": np.float32(0.05), "z": np.uint8(128), "half": np.float32(0.5), "shape": np.array([8, 4])}
    move = node("Transpose", ["d"], ["t"]) if change != "no transposition" else node("Reshape", ["d", "shape"], ["t"])
    nodes, moved = [node("Div", ["x", "half"], ["d"]), move], "c" if change == "a cast" else "t"
    nodes += [node("Cast", ["t"], ["c"], to=1)] if change == "a cast" else []
    nodes += [node("QuantizeLinear", [moved, "s", "z"], ["q"]), node("DequantizeLinear", ["q", "s", "z"], ["y"])]
    nodes += [node("Abs", ["d"], ["a"])] if change == "another reader" else []
    names = ["d", "y", *{"another reader": ["a"], "a move that is returned": ["t"]}.get(change, [])]
    feed = {"x": rng.standard_normal((4, 8)).astype(np.float32)}
    proto = model(
        nodes, [value("x", (4, 8), np.float32)], [value(name, None, np.float32) for name in names], constants, 17
    )
    for ours, theirs in zip(interpret(proto, feed), run_ort(proto, feed, optimized=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtypes", [("uint16", "uint16"), ("int16", "int16"), ("uint16", "uint8"), ("int8", "int16")])
@pytest.mark.parametrize("shapes", [((2, 37, 24), (2, 24, 19)), ((3, 8, 130), (3, 130, 65))])
def test_products_of_two_tensors_of_more_bits(dtypes, shapes, rng):
    """ONNX Runtime multiplies them as floats, one after another, unlike NumPy. Microcontrollers multiply integers."""
    constants = {"s": np.float32(shapes[0][-1] ** 0.5 / 9000), "z": np.uint16(30000)}
    nodes, inputs, feed = [], [], {}
    for name, dtype, shape in zip("ab", dtypes, shapes, strict=True):
        info = np.iinfo(dtype)
        constants[f"{name}_s"] = np.float32(4 / (info.max - info.min))
        constants[f"{name}_z"] = np.asarray((info.max + info.min) // 2 + 3, dtype)
        nodes.append(node("DequantizeLinear", [name, f"{name}_s", f"{name}_z"], [f"{name}_d"]))
        inputs.append(value(name, shape, dtype))
        feed[name] = rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    nodes += [node("MatMul", ["a_d", "b_d"], ["m"]), node("QuantizeLinear", ["m", "s", "z"], ["y"])]
    proto = model(nodes, inputs, [value("y", None, np.uint16)], constants, opset=21)
    (expected,) = run_ort(proto, feed, optimized=True)
    assert len(np.unique(expected)) > 1000
    module = from_onnx(proto)
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1).run(feed)["y"], expected)
    lowered = qnn_pipeline(module.ir, make_target("cortex-m4"))
    assert not any(op_name(b.value) == "matmul" for body in lowered.functions.values() for b in bindings_of(body))
    for (found,) in (qnn_ext.Interpreter(module).run(feed).values(), interpret_module(lowered, list(feed.values()))):
        assert abs(found.astype(np.int32) - expected).max() <= 1
