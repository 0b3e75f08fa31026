"""MatMul and Gemm of floats with weights that DequantizeLinear has in 4 or 8 bits: they stay packed. Activations are
quantized to int8 block by block where ONNX Runtime does so, else the weights' floats are multiplied."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import ModelFormatError
from qnn_ext.frontends.onnx import from_onnx
from qnn_ext.op.base import constant_value
from qnn_ext.passes.rewrite import bindings_of, op_name, operands

from .graphs import compiled_and_expected, model, node, onnx, operators, run_ort, value

DEPTH, UNITS = 40, 12
TOLERANCE = 1e-6  # of the largest result: two sums of 40 products in different orders


def narrow(name, values, dtype):
    """An initializer of int4 or uint4."""
    helper = onnx.helper
    return helper.make_tensor(name, getattr(onnx.TensorProto, dtype.upper()), values.shape, values.reshape(-1).tolist())


def network(kind, dtype, zeros, rng, block=0):
    """x · dequantize(w) + bias, with a scale for each column, or each block of one."""
    low, high = {"int8": (-128, 128), "uint8": (0, 256), "int4": (-8, 8), "uint4": (0, 16)}[dtype]
    transposed = kind == "Gemm transposed"
    shape, axis = ((UNITS, DEPTH), 0) if transposed else ((DEPTH, UNITS), 1)
    parameters: tuple = () if kind == "per tensor" else (UNITS,)
    if block:
        axis = 1 - axis
        parameters = tuple(-(-size // block) if i == axis else size for i, size in enumerate(shape))
    weights = rng.integers(low, high, shape)
    constants = {"s": (rng.random(parameters) * 0.1 + 0.01).astype(np.float32)}
    stored = {"w": weights}
    if zeros:
        stored["z"] = rng.integers(low, high, parameters)
    wide = "4" not in dtype
    constants |= {name: values.astype(dtype) for name, values in stored.items()} if wide else {}
    attributes = {"block_size": block} if block else {}
    nodes = [node("DequantizeLinear", ["w", "s", *(["z"] if zeros else [])], ["d"], axis=axis, **attributes)]
    if kind.startswith("Gemm"):
        constants["b"] = rng.standard_normal(UNITS).astype(np.float32)
        nodes.append(node("Gemm", ["x", "d", "b"], ["y"], transB=int(transposed)))
    else:
        nodes.append(node("MatMul", ["x", "d"], ["y"]))
    lead = (3,) if kind.startswith("Gemm") else (2, 3)
    proto = model(nodes, [value("x", (*lead, DEPTH))], [value("y", (*lead, UNITS))], constants, 21)
    if not wide:
        proto.graph.initializer.extend(narrow(name, values, dtype) for name, values in stored.items())
    return proto, rng.standard_normal((*lead, DEPTH)).astype(np.float32)


def largest_float(module):
    """The elements of the largest constant of floats."""
    found = {expr for binding in bindings_of(module.ir["main"]) for expr in operands(binding.value)}
    arrays = [array for array in map(constant_value, found) if array is not None]
    return max(array.size for array in arrays if array.dtype == np.float32)


@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "Gemm transposed", "per tensor"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4"])
@pytest.mark.parametrize("zeros", [False, True])
def test_per_channel(kind, dtype, zeros, rng):
    proto, x = network(kind, dtype, zeros, rng)
    module = from_onnx(proto)
    in_floats = kind == "Gemm transposed"
    product, index = ("qnn.blockwise_dense", 1) if in_floats else ("qnn.blockwise_dense_int8", 2)
    assert product in operators(module) and "matmul" not in operators(module)
    assert largest_float(module) <= UNITS * -(-DEPTH // 32)
    (weight,) = [b.value.args[index] for b in bindings_of(module.ir["main"]) if op_name(b.value) == product]
    bits = 8 if "8" in dtype else 4
    assert constant_value(weight).nbytes <= DEPTH * UNITS * bits // 8 or dtype == "uint4"
    assert [note.reason for note in module.notes] == [
        "its activations are floats: they are multiplied by its quantized weights in float32"
    ] * in_floats
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    for run in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        np.testing.assert_allclose(run(x), expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33])
@pytest.mark.parametrize("kind", ["MatMul", "per tensor"])
@pytest.mark.parametrize(("dtype", "zeros"), [("int8", False), ("int8", True), ("uint8", True)])
def test_bits_of_onnx_runtime(dtype, zeros, kind, rows, rng):
    proto, _ = network(kind, dtype, zeros, rng)
    proto.graph.input[0].CopyFrom(value("x", (rows, DEPTH)))
    proto.graph.output[0].CopyFrom(value("y", (rows, UNITS)))
    x = rng.standard_normal((rows, DEPTH)).astype(np.float32)
    (found,), (expected,) = compiled_and_expected(proto, {"x": x})
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("shape", "declared", "in_integers"),
    [
        ((2, 3), True, False),
        (("batch", 3), True, True),
        ((2, "length"), True, True),
        (("batch", "length"), False, True),
        ((2, 3), False, False),
        (("rows",), True, False),
        (("batch", 2, 3), True, True),
    ],
)
def test_biases_where_dimensions_are_open(shape, declared, in_integers, rng):
    """ONNX Runtime makes a Gemm of a product and its bias, behind which 8 bits keep the weight's floats; not where it
    lacks a size of three or more dimensions."""
    constants = {
        "w": rng.integers(-128, 128, (DEPTH, UNITS)).astype(np.int8), "s": np.float32(0.01),
        "c": rng.integers(-999, 1000, UNITS).astype(np.int32), "t": np.float32(0.002),
        "step": np.float32(0.05), "zero": np.uint8(128),
    }  # fmt: skip
    nodes = [
        *([] if declared else [node("Erf", ["x"], ["a"])]),
        node("DequantizeLinear", ["w", "s"], ["d"]),
        node("DequantizeLinear", ["c", "t"], ["bias"]),
        node("MatMul", ["x" if declared else "a", "d"], ["m"]),
        node("Add", ["bias", "m"], ["n"]),
        node("QuantizeLinear", ["n", "step", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "step", "zero"], ["y"]),
    ]
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    proto = model(nodes, [value("x", (*shape, DEPTH))], [value("y", (*shape, UNITS))], arrays)
    sizes = {name: 3 for name in shape if isinstance(name, str)}
    module = from_onnx(proto, sizes or None)
    assert ("qnn.blockwise_dense_int8" in operators(module)) == in_integers
    x = rng.standard_normal((*(sizes.get(size, size) for size in shape), DEPTH)).astype(np.float32)
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(x), expected)


def test_weights_that_the_graph_quantizes_block_by_block(rng):
    """QuantizeLinear and DequantizeLinear with a block_size, both of a constant."""
    weights = rng.standard_normal((DEPTH, UNITS)).astype(np.float32)
    scale = (np.abs(weights.reshape(5, 8, UNITS)).max(axis=1) / 7).astype(np.float32)
    nodes = [
        node("QuantizeLinear", ["w", "s"], ["q"], axis=0, block_size=8, output_dtype=onnx.TensorProto.INT4),
        node("DequantizeLinear", ["q", "s"], ["d"], axis=0, block_size=8),
        node("MatMul", ["x", "d"], ["y"]),
    ]
    proto = model(nodes, [value("x", (3, DEPTH))], [value("y", (3, UNITS))], {"w": weights, "s": scale}, 21)
    module = from_onnx(proto)
    assert "qnn.blockwise_dense" in operators(module) and largest_float(module) <= scale.size
    x = rng.standard_normal((3, DEPTH)).astype(np.float32)
    (expected,) = run_ort(proto, {"x": x})
    found = qnn_ext.build(module, num_threads=1)(x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("ir_version", [3, 4])
def test_constants_that_are_inputs(ir_version, rng):
    """As torch.onnx's exporters may write them. From IR version 4 on callers may replace them, so that ONNX Runtime
    does not know the weights when it loads the model."""
    constants = {"w": rng.standard_normal((DEPTH, UNITS)).astype(np.float32), "s": np.float32(0.3), "z": np.int8(0)}
    nodes = [
        node("QuantizeLinear", ["w", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("MatMul", ["x", "d"], ["y"]),
    ]
    inputs = [value("x", (3, DEPTH)), value("w", (DEPTH, UNITS)), value("s", ()), value("z", (), "int8")]
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    proto = model(nodes, inputs, [value("y", (3, UNITS))], arrays, 14)
    proto.ir_version = ir_version
    module = from_onnx(proto)
    assert ("qnn.blockwise_dense_int8" in operators(module)) == (ir_version == 3)
    x = rng.standard_normal((3, DEPTH)).astype(np.float32)
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    for run in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        np.testing.assert_allclose(run(x), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("shared", ["", "number", "equal numbers", "row"])
def test_scales_that_others_read(shared, rng):
    """ONNX Runtime replaces only products whose scales nothing else reads; equal numbers become one."""
    scales = {"s": np.float32(0.3), "t": np.float32(0.3 if shared == "equal numbers" else 0.2)}
    if shared == "row":
        scales["s"] = rng.random(UNITS).astype(np.float32)
    weights = {name: rng.integers(-127, 128, (DEPTH, UNITS)).astype(np.int8) for name in ("v", "w")}
    nodes = [
        node("DequantizeLinear", ["w", "s"], ["d"], axis=1),
        node("DequantizeLinear", ["v", "s" if shared in ("number", "row") else "t"], ["e"], axis=1),
        node("MatMul", ["x", "d"], ["y"]),
        node("MatMul", ["x", "e"], ["z"]),
    ]
    results = [value(name, (3, UNITS)) for name in ("y", "z")]
    arrays = {name: np.asarray(array) for name, array in (scales | weights).items()}
    proto = model(nodes, [value("x", (3, DEPTH))], results, arrays, 14)
    module = from_onnx(proto)
    assert ("qnn.blockwise_dense_int8" in operators(module)) == (not shared)
    x = rng.standard_normal((3, DEPTH)).astype(np.float32)
    found = qnn_ext.build(module, num_threads=1).run({"x": x})
    for ours, theirs in zip(found.values(), run_ort(proto, {"x": x}, optimized=True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6 * np.abs(theirs).max())


def test_quantized_activations_are_still_multiplied_as_integers(rng):
    nodes = [
        node("QuantizeLinear", ["x", "sx"], ["q"]),
        node("DequantizeLinear", ["q", "sx"], ["xd"]),
        node("DequantizeLinear", ["w", "s"], ["d"], axis=1),
        node("MatMul", ["xd", "d"], ["y"]),
    ]
    constants = {
        "sx": np.float32(0.02),
        "w": rng.integers(-128, 128, (DEPTH, UNITS)).astype(np.int8),
        "s": rng.random(UNITS).astype(np.float32),
    }
    module = from_onnx(model(nodes, [value("x", (3, DEPTH))], [value("y", (3, UNITS))], constants))
    assert "qnn.dense" in operators(module) and "qnn.blockwise_dense" not in operators(module)


@pytest.mark.parametrize("dtype", ["int8", "uint4"])
@pytest.mark.parametrize("block", [16, 32])
def test_blocks_of_powers_of_two(block, dtype, rng):
    """Activations are quantized in the weight's blocks."""
    proto, x = network("MatMul", dtype, True, rng, block)
    module = from_onnx(proto)
    assert "qnn.blockwise_dense_int8" in operators(module)
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    found = qnn_ext.build(module, num_threads=1)(x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


PAIRS = {
    "x": [node("QuantizeLinear", ["x", "s8", "z8"], ["q"]), node("DequantizeLinear", ["q", "s8", "z8"], ["a"])],
    "y": [node("QuantizeLinear", ["m", "s8", "z8"], ["p"]), node("DequantizeLinear", ["p", "s8", "z8"], ["y"])],
    "x16": [node("QuantizeLinear", ["x", "s16", "z16"], ["q"]), node("DequantizeLinear", ["q", "s16", "z16"], ["a"])],
    "y16": [node("QuantizeLinear", ["m", "s16", "z16"], ["p"]), node("DequantizeLinear", ["p", "s16", "z16"], ["y"])],
}


@pytest.mark.parametrize(
    ("given", "between", "result", "expected"),
    [
        ("x16", [], "y16", "qnn.blockwise_dense_int8"),
        ("x16", [], "", "qnn.blockwise_dense_int8"),
        ("", [], "y16", "qnn.blockwise_dense_int8"),
        ("", ["Neg"], "y", "qnn.blockwise_dense_int8"),
        ("", [], "y", "qnn.blockwise_dense"),
        ("", ["Relu"], "y16", "qnn.blockwise_dense"),
        ("", ["Flatten"], "y", "qnn.blockwise_dense_int8"),
        ("", ["Squeeze"], "y", "qnn.blockwise_dense"),
        ("x", [], "", "qnn.dense"),
        ("x", [], "y", "qnn.dense"),
    ],
)
def test_where_activations_are_quantized(given, between, result, expected, rng):
    """Not where what ONNX Runtime makes of the operators around is another product."""
    nodes = [node("DequantizeLinear", ["w", "s"], ["d"], axis=1), *PAIRS.get(given, [node("Identity", ["x"], ["a"])])]
    last = between[0] if between else "Identity"
    nodes += [node("MatMul", ["a", "d"], ["n"]), node(last, ["n"], ["m"])]
    nodes += PAIRS.get(result, [node("Identity", ["m"], ["y"])])
    constants = {
        "w": rng.integers(-128, 128, (DEPTH, UNITS)).astype(np.int8), "s": rng.random(UNITS).astype(np.float32) * 0.01,
        "s8": np.float32(0.03), "z8": np.uint8(117), "s16": np.float32(2e-4), "z16": np.uint16(30000),
    }  # fmt: skip
    shape = (UNITS,) if last == "Squeeze" else (1, UNITS)
    proto = model(nodes, [value("x", (1, DEPTH))], [value("y", shape)], constants)
    module = from_onnx(proto)
    assert expected in operators(module)
    x = rng.standard_normal((1, DEPTH)).astype(np.float32)
    (wanted,) = run_ort(proto, {"x": x}, optimized=True)
    step = {"y": 0.03, "y16": 2e-4}.get(result, TOLERANCE * np.abs(wanted).max())
    found = qnn_ext.Interpreter(module)(x)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1.01 * step)
    assert not result or np.mean(found != wanted) < 0.1


@pytest.mark.parametrize(
    ("operator", "rank", "behind", "in_integers"),
    [
        ("MatMul", 2, ["Relu"], True),
        ("MatMul", 2, ["Relu", "Neg"], False),
        ("MatMul", 3, ["Clip", "Neg"], False),
        ("MatMul", 2, ["Identity", "Relu", "Identity", "Neg"], False),
        ("MatMul", 2, ["Reshape", "Relu", "Neg"], True),
        ("MatMul", 2, ["Add", "Relu", "Neg"], False),
        ("MatMul", 3, ["Add", "Relu", "Neg"], True),
        ("MatMul", 3, ["Add", "Relu", "lowest 8"], True),
        ("MatMul", 2, ["Relu", "lowest 16"], True),
        ("Gemm", 2, ["Relu", "Neg"], False),
        ("Gemm", 2, ["Add", "Relu", "Neg"], True),
        ("Gemm", 2, ["Add", "lowest 8"], True),
        ("Gemm", 2, ["lowest 8"], False),
        ("Gemm", 2, ["Transpose", "Neg"], False),
    ],
)
def test_what_reads_the_product(operator, rank, behind, in_integers, rng):
    """ONNX Runtime keeps a product whose clipped results have a single reader, and quantized ones."""
    constants = {
        "w": rng.integers(-128, 128, (DEPTH, UNITS)).astype(np.int8), "s": rng.random(UNITS).astype(np.float32) * 0.01,
        "low": np.float32(-1), "high": np.float32(2), "bias": rng.standard_normal(UNITS).astype(np.float32),
        "shape": np.int64([-1]), "step": np.float32(0.02), "8": np.uint8(0), "16": np.uint16(0),
    }  # fmt: skip
    more = {"Clip": ["low", "high"], "Add": ["bias"], "Reshape": ["shape"]}
    nodes = [node("DequantizeLinear", ["w", "s"], ["d"], axis=1), node(operator, ["x", "d"], ["v0"])]
    for index, name in enumerate(behind):
        before, after = f"v{index}", "y" if index == len(behind) - 1 else f"v{index + 1}"
        if name.startswith("lowest"):
            nodes.append(node("QuantizeLinear", [before, "step", name[7:]], ["q"]))
            nodes.append(node("DequantizeLinear", ["q", "step", name[7:]], [after]))
        else:
            nodes.append(node(name, [before, *more.get(name, [])], [after]))
    x = rng.standard_normal((2, 3, DEPTH)[3 - rank :]).astype(np.float32)
    proto = model(nodes, [value("x", x.shape)], [value("y", None)], constants, 21)
    module = from_onnx(proto)
    assert ("qnn.blockwise_dense_int8" in operators(module)) == in_integers
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    steps = 0.0201 if behind[-1].startswith("lowest") else TOLERANCE * np.abs(expected).max()
    np.testing.assert_allclose(qnn_ext.Interpreter(module)(x), expected, rtol=0, atol=steps)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_transposed_weights(dtype, zeros, rng):
    """As of layers exported with their weights as they are stored: ONNX Runtime transposes those of 8 bits, and others
    that have zero points."""
    proto, x = network("Gemm transposed", dtype, zeros, rng)
    nodes = [node("Transpose", ["d"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])]
    del proto.graph.node[1:]
    proto.graph.node.extend(nodes)
    module = from_onnx(proto)
    assert ("qnn.blockwise_dense_int8" in operators(module)) == (dtype == "int8" or zeros)
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    found = qnn_ext.Interpreter(module)(x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize(("transposed", "block"), [(False, 0), (False, 32), (True, 0)])
def test_axis_counted_from_the_end(transposed, block, rng):
    """As NNCF writes it: ONNX Runtime only takes such weights where it moves a Transpose past DequantizeLinear."""
    proto, x = network("Gemm transposed" if transposed else "MatMul", "int8", True, rng, block)
    if transposed:
        del proto.graph.node[1:]
        proto.graph.node.extend([node("Transpose", ["d"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])])
    (axis,) = (attribute for attribute in proto.graph.node[0].attribute if attribute.name == "axis")
    axis.i -= 2
    module = from_onnx(proto)
    assert ("qnn.blockwise_dense_int8" in operators(module)) == transposed
    (expected,) = run_ort(proto, {"x": x}, optimized=True)
    found = qnn_ext.Interpreter(module)(x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("change", ["shared", "result", "scale of shape (1,)", "alpha"])
def test_weights_whose_floats_are_multiplied(change, rng):
    """What ONNX Runtime does not recognize."""
    scale = np.float32([0.02]) if change.startswith("scale") else np.float32(0.02)
    nodes = [node("DequantizeLinear", ["w", "s"], ["d"])]
    nodes += [node("Gemm", ["x", "d"], ["y"], alpha=2.0) if change == "alpha" else node("MatMul", ["x", "d"], ["y"])]
    results = [value("y", (3, UNITS))]
    if change == "shared":
        nodes.append(node("MatMul", ["x", "d"], ["y2"]))
        results.append(value("y2", (3, UNITS)))
    if change == "result":
        results.append(value("d", (DEPTH, UNITS)))
    constants = {"w": rng.integers(-128, 128, (DEPTH, UNITS)).astype(np.int8), "s": scale}
    proto = model(nodes, [value("x", (3, DEPTH))], results, constants)
    x = rng.standard_normal((3, DEPTH)).astype(np.float32)
    found, expected = qnn_ext.Interpreter(from_onnx(proto)).run({"x": x})["y"], run_ort(proto, {"x": x}, True)[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


# ---- what is refused ---------------------------------------------------------------------------------------------


def blocked(rng, change):
    """A network with blocks of 8, after change(its initializers by name)."""
    proto, _ = network("MatMul", "int4", True, rng, block=8)
    change({tensor.name: tensor for tensor in proto.graph.initializer})
    return proto


def test_blocks(rng):
    proto, x = network("MatMul", "int4", True, rng, block=8)
    module = from_onnx(proto)
    assert "qnn.blockwise_dense" in operators(module)
    (expected,) = run_ort(proto, {"x": x})
    found = qnn_ext.Interpreter(module)(x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("shape", [(4, UNITS), (6, UNITS), (5, UNITS - 1)])
def test_scales_that_do_not_match_the_blocks(shape, rng):
    scales = onnx.numpy_helper.from_array(np.ones(shape, np.float32), "s")
    proto = blocked(rng, lambda tensors: tensors["s"].CopyFrom(scales))
    message = r"DequantizeLinear.*blocks of 8 along axis 0 of shape \(40, 12\) do not match scales of shape"
    with pytest.raises(ModelFormatError, match=message):
        from_onnx(proto)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scales_that_are_not_finite(bad, rng):
    scales = onnx.numpy_helper.from_array(np.full((5, UNITS), bad, np.float32), "s")
    with pytest.raises(ModelFormatError, match=r"DequantizeLinear.*its scales must be finite"):
        from_onnx(blocked(rng, lambda tensors: tensors["s"].CopyFrom(scales)))


def test_truncated_weights(rng):
    def shorten(tensors):
        tensor = tensors["w"]
        tensor.ClearField("int32_data")
        tensor.raw_data = bytes(DEPTH * UNITS // 2 - 1)

    message = rf"tensor 'w' of int4 and shape .* has data for {DEPTH * UNITS - 2} elements, not {DEPTH * UNITS}"
    with pytest.raises(ModelFormatError, match=message):
        from_onnx(blocked(rng, shorten))
