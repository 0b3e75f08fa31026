"""Weights of 4 and 2 bits, per tensor, channel and block: they stay packed, and results are LiteRT's."""

from __future__ import annotations

import ai_edge_litert.schema_py_generated as schema
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as LiteRT
from ai_edge_litert.interpreter import OpResolverType

import qnn_ext
from qnn_ext.errors import InputError, ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from qnn_ext.numerics.packed import pack as written_bits

from .packed_models import DTYPES, OPS, UNITS, VOCABULARY, Weight, decoder, dense, lookup
from .schema_models import TYPES, Sketch, quantization
from .schema_models import pack as written


def litert(model: bytes, x: np.ndarray, kind: OpResolverType = OpResolverType.AUTO) -> np.ndarray:
    interpreter = LiteRT(model_content=model, experimental_op_resolver_type=kind)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def ours(model: bytes, x: np.ndarray, numerics: str = "float32", text: str = "blockwise_dense") -> np.ndarray:
    """The result, of a module that holds an operator of this name."""
    module = from_tflite(model, numerics=numerics)
    assert f"R.qnn.{text}" in module.script()
    (result,) = Interpreter(module).run([x]).values()
    return result


def assert_close(result: np.ndarray, expected: np.ndarray) -> None:
    """Equal but for the rounding of a few float32 operations."""
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


WEIGHTS = [Weight(4), Weight(4, "tensor"), Weight(2), Weight(2, "tensor"), Weight(4, 32), Weight(4, 16)]


@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("depth", [64, 96])
@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
def test_dynamic_products_equal_litert(weight: Weight, depth: int, asymmetric: bool) -> None:
    """XNNPACK quantizes with zero points and rounds the scales of blocks of 32 to bfloat16; TFLite's own kernels do
    neither unless asked."""
    model, _, x = dense(weight, depth, asymmetric)
    assert_close(ours(model, x, text="blockwise_dense_int8"), litert(model, x))


@pytest.mark.parametrize("weight", WEIGHTS[:3], ids=str)
def test_biases_of_dynamic_products(weight: Weight) -> None:
    """XNNPACK adds them in the step that multiplies by the scale of the weights, which rounds once."""
    model, _, x = dense(weight, 64, offset=0.3)
    np.testing.assert_array_equal(ours(model, x, text="blockwise_dense_int8"), litert(model, x))


@pytest.mark.parametrize("depth", [61, 62, 63])
@pytest.mark.parametrize("weight", WEIGHTS[:4], ids=str)
def test_rows_that_end_within_a_byte(weight: Weight, depth: int) -> None:
    model, _, x = dense(weight, depth, bias=False)
    assert_close(ours(model, x), litert(model, x))


@pytest.mark.parametrize("asymmetric", [True, False])
@pytest.mark.parametrize("weight", WEIGHTS[:4], ids=str)
def test_equals_the_reference_kernels(weight: Weight, asymmetric: bool) -> None:
    model, _, x = dense(weight, 70, asymmetric)
    assert_close(ours(model, x, "tflite"), litert(model, x, OpResolverType.BUILTIN_REF))


def test_blocks_without_xnnpack_have_float16_scales() -> None:
    """LiteRT's reference kernels ignore blocks; its optimized ones are the measure."""
    model, _, x = dense(Weight(4, 32), 64)
    expected = litert(model, x, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    assert_close(ours(model, x, "tflite"), expected)
    assert np.abs(ours(model, x) - expected).max() > 1e-4 * np.abs(expected).max()  # bfloat16 ones differ


@pytest.mark.parametrize("weight", [*WEIGHTS[:4], Weight(8), Weight(2, zero_point=1), Weight(4, "tensor", -3)], ids=str)
def test_weight_only_products_equal_litert(weight: Weight) -> None:
    model, _, x = dense(weight, 70, weight_only=True)
    assert_close(ours(model, x), litert(model, x))


def test_weight_only_products_of_blocks() -> None:
    """LiteRT's DEQUANTIZE ignores blocks; the schema's formula counts."""
    model, real, x = dense(Weight(4, 32), 64, weight_only=True)
    assert_close(ours(model, x), (x.astype(np.float64) @ real.T).astype(np.float32))


def test_as_8_bit_weights() -> None:
    """Sums of integers are exact: not a bit differs from the same weights in int8."""
    narrow, wide = (dense(Weight(bits), 128, asymmetric=True) for bits in (4, 8))
    model = schema.ModelT.InitFromPackedBuf(wide[0], 0)
    graph = schema.ModelT.InitFromPackedBuf(narrow[0], 0)
    (source,) = (t for t in graph.subgraphs[0].tensors if t.name == b"weight")
    (target,) = (t for t in model.subgraphs[0].tensors if t.name == b"weight")
    nibbles = graph.buffers[source.buffer].data
    values = np.stack([(nibbles << 4).view(np.int8) >> 4, nibbles.view(np.int8) >> 4], axis=-1)
    model.buffers[target.buffer].data = values.reshape(-1).view(np.uint8)
    target.quantization = source.quantization
    np.testing.assert_array_equal(ours(narrow[0], narrow[2]), ours(written(model), narrow[2], text="dense"))


@pytest.mark.parametrize("weight", [Weight(4), Weight(2), Weight(4, 32)], ids=str)
def test_engine_and_file_keep_them_packed(weight: Weight, tmp_path) -> None:
    rng, sketch, depth, units = np.random.default_rng(0), Sketch(), 512, 512
    x = sketch.tensor((1, depth), TYPES.FLOAT32, name="x")
    w, _ = weight.add(sketch, (units, depth), rng)
    y = sketch.tensor((1, units), TYPES.FLOAT32, name="y")
    sketch.operator(OPS.FULLY_CONNECTED, [x, w, -1], [y], schema.FullyConnectedOptionsT(), version=12)
    sketch.graph.inputs, sketch.graph.outputs = [x], [y]
    module, data = from_tflite(sketch.bytes()), rng.normal(size=(1, depth)).astype(np.float32)
    engine = qnn_ext.build(module, num_threads=1)
    (expected,) = Interpreter(module).run([data]).values()
    assert_close(engine(data), expected)
    path = tmp_path / "packed.qnn"
    engine.save(path)
    assert path.stat().st_size < units * depth * weight.bits / 8 + 100_000
    np.testing.assert_array_equal(qnn_ext.load(path)(data), engine(data))


# ---- EMBEDDING_LOOKUP, CONV_2D ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [TYPES.FLOAT32, TYPES.FLOAT16])
@pytest.mark.parametrize("weight", [Weight(4), Weight(2), Weight(2, "tensor"), Weight(4, 32), Weight(2, 16)], ids=str)
def test_lookups_equal_litert(weight: Weight, dtype: int) -> None:
    model, rows = lookup(weight, (40, 64), dtype), np.array([0, 3, 39, 7, 3], np.int32)
    result = ours(model, rows, text="blockwise_dequantize")
    np.testing.assert_array_equal(result, litert(model, rows))


def test_lookups_of_matrices() -> None:
    model, rows = lookup(Weight(4), (9, 3, 4)), np.array([0, 3, 8, 7, 3], np.int32)
    np.testing.assert_array_equal(ours(model, rows, text="blockwise_dequantize"), litert(model, rows))


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize(("scales", "groups"), [("channel", 1), ("tensor", 1), ("channel", 2)])
def test_convolutions_equal_litert(kernel: int, scales: str, groups: int) -> None:
    """XNNPACK leaves those of 4 bits alone, so that an image has one scale; those of one pixel are products. LiteRT's
    reference kernel computes all groups; it multiplies by the scales of channels before that of the image."""
    rng, sketch = np.random.default_rng(0), Sketch()
    x = sketch.tensor((2, 5, 5, 8), TYPES.FLOAT32, name="x")
    w, _ = Weight(4, scales).add(sketch, (6, kernel, kernel, 8 // groups), rng)
    b = sketch.tensor((6,), TYPES.FLOAT32, rng.normal(size=6).astype(np.float32))
    y = sketch.tensor((2, 6 - kernel, 6 - kernel, 6), TYPES.FLOAT32, name="y")
    options = schema.Conv2DOptionsT()
    options.padding, options.strideH, options.strideW = schema.Padding.VALID, 1, 1
    sketch.operator(OPS.CONV_2D, [x, w, b], [y], options, version=7)
    sketch.graph.inputs, sketch.graph.outputs = [x], [y]
    data = rng.normal(size=(2, 5, 5, 8)).astype(np.float32)
    model = sketch.bytes()
    for numerics, kind in (("float32", OpResolverType.AUTO), ("tflite", OpResolverType.BUILTIN_REF)):
        result = ours(model, data, numerics, "blockwise_dense_int8" if kernel == groups == 1 else "conv2d")
        if groups == 1:
            assert_close(result, litert(model, data, kind))
        else:
            np.testing.assert_array_equal(result, litert(model, data, kind))


def quantized(
    name: str, scales: str, channels: int, units: int, bits: int = 4, activations: int = 8
) -> tuple[bytes, tuple[int, ...]]:
    """An operator on int8 or int16 with weights of few bits, as ai-edge-quantizer's static recipes write it."""
    rng, sketch = np.random.default_rng(channels + units), Sketch()
    options = {
        "CONV_2D": schema.Conv2DOptionsT,
        "DEPTHWISE_CONV_2D": schema.DepthwiseConv2DOptionsT,
        "FULLY_CONNECTED": schema.FullyConnectedOptionsT,
    }[name]()
    image = name != "FULLY_CONNECTED"
    shape = (1, 9, 9, channels) if image else (81, channels)
    result = (1, 7, 7, units) if image else (81, units)
    filters = {"CONV_2D": (units, 3, 3, channels), "DEPTHWISE_CONV_2D": (1, 3, 3, units)}
    if image:
        options.padding, options.strideH, options.strideW = schema.Padding.VALID, 1, 1
        options.dilationHFactor, options.dilationWFactor = 1, 1
    if name == "DEPTHWISE_CONV_2D":
        options.depthMultiplier = units // channels
    narrow = activations == 8
    dtype = TYPES.INT8 if narrow else TYPES.INT16
    x = sketch.tensor(shape, dtype, quant=quantization([0.05], [3 if narrow else 0]), name="x")
    filter_shape = filters.get(name, (units, channels))
    values = rng.integers(-7, 8, filter_shape)
    scale = rng.uniform(0.01, 0.1, units if scales == "channel" else 1).astype(np.float32)
    axis = 3 if name == "DEPTHWISE_CONV_2D" and scales == "channel" else 0
    params = quantization(scale.tolist(), [0] * len(scale), axis)
    packed = values.astype(np.int8).tobytes() if bits == 8 else written_bits(values.reshape(-1), f"int{bits}")
    w = sketch.tensor(filter_shape, DTYPES[bits], packed, params, name="w")
    steps = quantization((0.05 * scale).tolist(), [0] * len(scale))
    bias = rng.integers(-99, 99, units).astype(np.int32 if narrow else np.int64)
    b = sketch.tensor((units,), TYPES.INT32 if narrow else TYPES.INT64, bias.tobytes(), steps, name="b")
    y = sketch.tensor(result, dtype, quant=quantization([0.0913], [-5 if narrow else 0]), name="y")
    versions = {"CONV_2D": 7, "DEPTHWISE_CONV_2D": 6, "FULLY_CONNECTED": 12}
    sketch.operator(getattr(OPS, name), [x, w, b], [y], options, version=versions[name])
    sketch.graph.inputs, sketch.graph.outputs = [x], [y]
    return sketch.bytes(), shape


@pytest.mark.parametrize("numerics", ["float32", "tflite"])
@pytest.mark.parametrize("scales", ["channel", "tensor"])
@pytest.mark.parametrize(
    ("name", "channels", "units"),
    [
        ("CONV_2D", 4, 6),
        ("CONV_2D", 3, 5),
        ("DEPTHWISE_CONV_2D", 6, 6),
        ("DEPTHWISE_CONV_2D", 16, 16),
        ("FULLY_CONNECTED", 64, 10),
        ("FULLY_CONNECTED", 63, 10),
    ],
)
def test_quantized_products_equal_litert(name: str, channels: int, units: int, scales: str, numerics: str) -> None:
    """XNNPACK takes only dense layers with such weights; TFLite's own kernels round as they do for 8 bits."""
    model, shape = quantized(name, scales, channels, units)
    rng = np.random.default_rng(0)
    kind = OpResolverType.AUTO if numerics == "float32" else OpResolverType.BUILTIN_REF
    module = from_tflite(model, numerics=numerics)
    for _ in range(20):
        x = rng.integers(-128, 128, shape).astype(np.int8)
        (result,) = Interpreter(module).run([x]).values()
        np.testing.assert_array_equal(result, litert(model, x, kind))


@pytest.mark.parametrize("numerics", ["float32", "tflite"])
@pytest.mark.parametrize("scales", ["channel", "tensor"])
@pytest.mark.parametrize("channels", [6, 16])
def test_depthwise_products_of_int16_equal_those_of_8_bit_weights(channels: int, scales: str, numerics: str) -> None:
    """LiteRT's kernel reads two packed weights as one of 8 bits, and past the tensor's end: the same weights in 8 bits
    are the measure."""
    model, shape = quantized("DEPTHWISE_CONV_2D", scales, channels, channels, 4, 16)
    wide, _ = quantized("DEPTHWISE_CONV_2D", scales, channels, channels, 8, 16)
    x = np.random.default_rng(0).integers(-(2**15), 2**15, shape).astype(np.int16)
    kind = OpResolverType.AUTO if numerics == "float32" else OpResolverType.BUILTIN_REF
    (result,) = Interpreter(from_tflite(model, numerics=numerics)).run([x]).values()
    np.testing.assert_array_equal(result, litert(wide, x, kind))


def test_a_decoder_with_its_cache() -> None:
    """Places beyond the cache are the nearest ones, as in LiteRT; tokens beyond the vocabulary are refused, and the
    cache stays as it is."""
    model = decoder()
    module, reference = from_tflite(model), LiteRT(model_content=model)
    reference.allocate_tensors()
    indices = [details["index"] for details in reference.get_input_details()]
    runners = (Interpreter(module), qnn_ext.build(module, num_threads=1))
    for token, place in ((3, 0), (5, 1), (11, 5), (2, 9), (2, -3), (0, 2**31 - 1)):
        feed = [np.array([token], np.int32), np.array([place, 0], np.int32)]
        for index, value in zip(indices, feed, strict=True):
            reference.set_tensor(index, value)
        reference.invoke()
        expected = reference.get_tensor(reference.get_output_details()[0]["index"])
        for runner in runners:
            np.testing.assert_allclose(runner(*feed), expected, rtol=0, atol=2e-6 * np.abs(expected).max())
            for beyond in (VOCABULARY, -1, -(2**31), 2**31 - 1):
                with pytest.raises(InputError, match="EMBEDDING_LOOKUP"):
                    runner(np.array([beyond], np.int32), feed[1])


# ---- bad input ----------------------------------------------------------------------------------------------------


def damaged(change) -> bytes:
    """A model with blocks whose description `change` has altered."""
    model = schema.ModelT.InitFromPackedBuf(dense(Weight(4, 32), 64)[0], 0)
    (tensor,) = (t for t in model.subgraphs[0].tensors if t.name == b"weight")
    change(model, tensor)
    return written(model)


def _set(field: str, value: object):
    return lambda model, tensor: setattr(tensor.quantization.details, field, value)


def _undescribed(model: schema.ModelT, tensor: schema.TensorT) -> None:
    tensor.quantization.details = None


def _infinite(model: schema.ModelT, tensor: schema.TensorT) -> None:
    scales = model.subgraphs[0].tensors[tensor.quantization.details.scales]
    model.buffers[scales.buffer].data = np.full((UNITS, 2), np.inf, np.float16).view(np.uint8).reshape(-1)


def _truncated(model: schema.ModelT, tensor: schema.TensorT) -> None:
    model.buffers[tensor.buffer].data = model.buffers[tensor.buffer].data[:-1]


def _zero_points(model: schema.ModelT, tensor: schema.TensorT) -> None:
    zeros = schema.TensorT()
    zeros.shape, zeros.type, zeros.name, zeros.buffer = [UNITS, 2], TYPES.INT32, "zeros", len(model.buffers)
    model.buffers.append(schema.BufferT())
    model.buffers[-1].data = np.ones((UNITS, 2), np.int32).view(np.uint8).reshape(-1)
    tensor.quantization.details.zeroPoints = len(model.subgraphs[0].tensors)
    model.subgraphs[0].tensors.append(zeros)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_set("blockSize", 24), ModelFormatError, "do not match shape"),
        (_set("blockSize", 0), ModelFormatError, "blocks of 0 values"),
        (_set("scales", 99), ModelFormatError, "its scales are tensor 99"),
        (_set("scales", 0), ModelFormatError, "must be constants of float16"),
        (_set("blockShape", [2, 32]), UnsupportedOperatorError, "along the last dimension"),
        (_infinite, ModelFormatError, "must be finite"),
        (_undescribed, ModelFormatError, "quantization by blocks without their description"),
        (_truncated, ModelFormatError, "needs 640 bytes, but the file has 639"),
        (_zero_points, UnsupportedOperatorError, "zero points of blocks"),
    ],
)
def test_damaged_blocks_are_refused(change, error, message: str) -> None:
    with pytest.raises(error, match=message):
        from_tflite(damaged(change))


def test_a_block_shape_says_what_a_block_size_says() -> None:
    _, _, x = dense(Weight(4, 32), 64)
    shaped = ours(damaged(_set("blockShape", [1, 32])), x)
    np.testing.assert_array_equal(shaped, ours(damaged(lambda *_: None), x))


def test_blocks_elsewhere_are_refused_by_name() -> None:
    sketch = Sketch()
    w, _ = Weight(4, 32).add(sketch, (UNITS, 64), np.random.default_rng(0))
    x, y = sketch.tensor((64, 3), TYPES.FLOAT32, name="x"), sketch.tensor((UNITS, 3), TYPES.FLOAT32, name="y")
    sketch.operator(OPS.BATCH_MATMUL, [w, x], [y], schema.BatchMatMulOptionsT())
    sketch.graph.inputs, sketch.graph.outputs = [x], [y]
    with pytest.raises(UnsupportedOperatorError, match="BATCH_MATMUL"):
        from_tflite(sketch.bytes())


def test_zero_points_of_dynamic_products_are_refused() -> None:
    with pytest.raises(UnsupportedOperatorError, match="zero point"):
        from_tflite(dense(Weight(4, zero_point=1), 64)[0])
