"""Operators that compute on integers: QLinear…, …Integer, and those of com.microsoft."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..builder import Value, beyond_int32
from ..rules import APPROXIMATION, FLOAT_STEPS, FLOAT_SUMS, HOSTILE, bounded
from .builder import BYTES, GENERATORS, MICROSOFT, OnnxBuilder

generates = GENERATORS.generates
Geometry = tuple[tuple[int, ...], dict[str, Any]]


def weights(b: OnnxBuilder, dtype: str, shape: tuple[int, ...], channels: int) -> tuple[list[str], np.ndarray]:
    """Names of weights, scale (sometimes per channel) and zero point; and the scales."""
    per_channel = b.draw.chance(0.5)
    count = channels if per_channel else 1
    scales = np.array([b.draw.scale(0.01) for _ in range(count)], np.float32)
    zeros = np.zeros(count, dtype) if dtype == "int8" else np.full(count, b.draw.zero_point(dtype), dtype)
    if not per_channel:
        scales, zeros = scales.reshape(()), zeros.reshape(())
    return [b.const(b.draw.weights(dtype, shape)), b.const(scales), b.const(zeros)], scales


def result(b: OnnxBuilder, x: Value, scales: Any, depth: int) -> tuple[float, int]:
    """Scale and zero point with which a product's results neither vanish nor all saturate."""
    assert x.scale is not None
    scale = x.scale * float(np.median(scales)) * 74 * float(np.sqrt(depth)) * 1.5 * float(np.exp(b.draw.rng.normal()))
    if b.recipe.scales == "extreme" and b.draw.chance(0.2):
        scale *= 10.0 ** b.draw.rng.uniform(-9, 9)
    if b.exact:
        scale = 2.0 ** np.round(np.log2(scale))
    return float(np.float32(np.clip(scale, 1e-37, 1e37))), b.draw.zero_point(x.dtype)


def weight_dtype(b: OnnxBuilder, x: Value) -> str:
    """The weights' dtype: either for uint8 data, int8 for int8 data."""
    return "int8" if x.dtype == "int8" else b.draw.pick(["int8", "int8", "uint8"])


def windows(b: OnnxBuilder, spatial: tuple[int, ...], dilate: bool = True) -> Geometry:
    """The output's extents and the attributes of a window over any number of dimensions."""
    kernel, strides, dilations, before, after, size = [], [], [], [], [], []
    for extent in spatial:
        k, s = b.draw.pick([1, 2, 3, 3, 5]), b.draw.pick([1, 1, 2, 3])
        d = b.draw.pick([1, 1, 1, 2]) if dilate else 1
        reach = (k - 1) * d
        low, high = (b.draw.between(0, min(k - 1, 2)), b.draw.between(0, min(k - 1, 2)))
        if extent + low + high <= reach:
            k, d, reach, low, high = 1, 1, 0, 0, 0
        for values, number in zip((kernel, strides, dilations, before, after), (k, s, d, low, high), strict=True):
            values.append(number)
        size.append((extent + low + high - reach - 1) // s + 1)
    attributes = {"kernel_shape": kernel, "strides": strides, "pads": before + after}
    return tuple(size), {**attributes, "dilations": dilations} if dilate else attributes


def convolution(b: OnnxBuilder, x: Value) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Weight shape, output shape and attributes of a convolution of x."""
    n, c, *spatial = x.shape
    size, attributes = windows(b, tuple(spatial))
    groups = b.draw.pick([g for g in (1, 1, 1, 2, 3, c) if c % g == 0])
    channels = groups * max(1, b.draw.extent(9) // groups)
    shape = (channels, c // groups, *attributes["kernel_shape"])
    return shape, (n, channels, *size), {**attributes, "group": groups}


@generates("QLinearConv")
def qlinear_conv(b: OnnxBuilder) -> None:
    """Over one to three dimensions, sometimes with a bias."""
    x = b.take(BYTES, rank=(3, 4, 4, 4, 5), quantized=True)
    w_shape, shape, attributes = convolution(b, x)
    names, scales = weights(b, weight_dtype(b, x), w_shape, w_shape[0])
    scale, zero = result(b, x, scales, int(np.prod(w_shape[1:])))
    bias = [b.const(b.draw.integers("int32", (w_shape[0],), -(2**16), 2**16))] if b.draw.chance(0.6) else []
    parameters = [b.const(scale, "float32"), b.const(zero, x.dtype)]
    inputs = [x, *b.qparams(x), *names, *parameters, *bias]
    b.node("QLinearConv", inputs, shape, x.dtype, scale, zero, **attributes)


@generates("ConvInteger")
def conv_integer(b: OnnxBuilder) -> None:
    x = b.take(("uint8",), rank=4, quantized=True)
    w_shape, shape, attributes = convolution(b, x)
    dtype = weight_dtype(b, x)
    zero = b.const(b.draw.zero_point(dtype), dtype)
    inputs = [x, b.const(b.draw.weights(dtype, w_shape)), b.qparams(x)[1], zero]
    b.node("ConvInteger", inputs, shape, "int32", **attributes)


def second(b: OnnxBuilder, x: Value, dtype: str, columns: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of a matrix to multiply x with, and of the product."""
    batch = x.shape[:-2] if len(x.shape) > 2 and b.draw.chance(0.3) else ()
    return (*batch, x.shape[-1], columns), (*x.shape[:-1], columns)


@generates("QLinearMatMul")
def qlinear_matmul(b: OnnxBuilder) -> None:
    x = b.take(BYTES, rank=(2, 3, 4), quantized=True)
    dtype = weight_dtype(b, x)
    w_shape, shape = second(b, x, dtype, b.draw.extent())
    count = w_shape[-1] if len(w_shape) == 2 and b.draw.chance(0.4) else None
    scales = np.array([b.draw.scale(0.01) for _ in range(count or 1)], np.float32)
    zeros = np.full(count or 1, b.draw.zero_point(dtype), dtype)
    if count is None:
        scales, zeros = scales.reshape(()), zeros.reshape(())
    scale, zero = result(b, x, scales, x.shape[-1])
    names = [b.const(b.draw.weights(dtype, w_shape)), b.const(scales), b.const(zeros)]
    inputs = [x, *b.qparams(x), *names, b.const(scale, "float32"), b.const(zero, x.dtype)]
    b.node("QLinearMatMul", inputs, shape, x.dtype, scale, zero)


@generates("MatMulInteger")
def matmul_integer(b: OnnxBuilder) -> None:
    x = b.take(BYTES, rank=(2, 3, 4), quantized=True)
    dtype = weight_dtype(b, x)
    w_shape, shape = second(b, x, dtype, b.draw.extent())
    inputs = [x, b.const(b.draw.weights(dtype, w_shape)), b.qparams(x)[1], b.const(b.draw.zero_point(dtype), dtype)]
    b.node("MatMulInteger", inputs, shape, "int32")


@generates("MatMulIntegerToFloat")
def matmul_integer_to_float(b: OnnxBuilder) -> None:
    x = b.take(BYTES, rank=(2, 3), quantized=True)
    dtype = weight_dtype(b, x)
    shape = (x.shape[-1], b.draw.extent())
    scale, zero = b.qparams(x)
    w = [b.const(b.draw.weights(dtype, shape)), scale, b.const(b.draw.scale(0.01), "float32")]
    inputs = [x, *w, zero, b.const(b.draw.zero_point(dtype), dtype), b.const(b.draw.floats((shape[1],)))]
    b.node("MatMulIntegerToFloat", inputs, (*x.shape[:-1], shape[1]), "float32", domain=MICROSOFT)


@generates("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(b: OnnxBuilder) -> None:
    x = b.take(("float32",), rank=(2, 3))
    dtype = b.draw.pick(BYTES)
    shape = (x.shape[-1], b.draw.extent())
    inputs = [x, b.const(b.draw.weights(dtype, shape)), b.const(b.draw.scale(0.01), "float32")]
    inputs.append(b.const(b.draw.zero_point(dtype), dtype))
    shape = (*x.shape[:-1], shape[1])
    b.node("DynamicQuantizeMatMul", inputs, shape, "float32", domain=MICROSOFT, accident=b.undefined)


@generates("DynamicQuantizeLinear")
def dynamic_quantize(b: OnnxBuilder) -> None:
    """Its first output; no graph uses the scale in what follows."""
    x = b.take(("float32",))
    value = b.node("DynamicQuantizeLinear", [x], x.shape, "uint8", accident=b.undefined)
    b.nodes[-1].output.extend([b.name("scale"), b.name("zero")])
    assert value.scale is None


@generates("QGemm")
def qgemm(b: OnnxBuilder) -> None:
    x = b.take(BYTES, rank=2, quantized=True)
    dtype = weight_dtype(b, x)
    columns, transposed = b.draw.extent(), b.draw.chance(0.5)
    shape = (columns, x.shape[1]) if transposed else (x.shape[1], columns)
    scales = np.array([b.draw.scale(0.01)], np.float32).reshape(())
    names = [b.const(b.draw.weights(dtype, shape)), b.const(scales), b.const(b.draw.zero_point(dtype), dtype)]
    bias = b.const(b.draw.integers("int32", (columns,), -(2**16), 2**16)) if b.draw.chance(0.6) else ""
    scale, zero = result(b, x, scales, x.shape[1])
    inputs = [x, *b.qparams(x), *names, bias, b.const(scale, "float32"), b.const(zero, x.dtype)]
    b.node("QGemm", inputs, (x.shape[0], columns), x.dtype, scale, zero, domain=MICROSOFT, transB=int(transposed))


@generates("MatMulInteger16")
def matmul_integer16(b: OnnxBuilder) -> None:
    """ONNX Runtime has no kernel for it."""
    x, columns = b.take(("int16",), rank=(2, 3)), b.draw.extent()
    w = b.const(b.draw.integers("int16", (x.shape[-1], columns), -99, 99))
    b.node("MatMulInteger16", [x, w], (*x.shape[:-1], columns), "int32", domain=MICROSOFT)


@generates("MatMulNBits")
def matmul_nbits(b: OnnxBuilder) -> None:
    depth, columns, block = 16 * b.draw.between(1, 4), b.draw.extent(), 16
    x = b.take(("float32",), rank=2, shape=(b.draw.extent(), depth))
    packed = b.draw.integers("uint8", (columns, depth // block, block // 2))
    scales = b.draw.rng.random((columns, depth // block)).astype(np.float32)
    b.node(
        "MatMulNBits", [x, b.const(packed), b.const(scales)], (x.shape[0], columns), "float32", domain=MICROSOFT,
        accident=FLOAT_SUMS, steady=False, N=columns, K=depth, bits=4, block_size=block,
    )  # fmt: skip


# ---- element by element ------------------------------------------------------------------------------------------


@generates("QLinearAdd", "QLinearMul")
def binary(b: OnnxBuilder, name: str) -> None:
    x = b.take(BYTES, quantized=True)
    manner = b.draw.between(0, 3)
    shape = x.shape if manner < 2 else x.shape[-1:] if manner == 2 else ()
    others = [v for v in b.values if v.dtype == x.dtype and v.shape == x.shape and v.quantized]
    y = b.draw.pick(others) if b.draw.chance(0.5) else b.fresh(x.dtype, shape, True)
    if b.draw.chance(0.3):
        x, y = y, x
    assert x.scale is not None and y.scale is not None
    scale = (
        b.scale(0.08) if name == "QLinearAdd" else float(np.clip(x.scale * y.scale * 99 * b.draw.scale(1), 1e-37, 1e37))
    )
    zero = b.draw.zero_point(x.dtype)
    parameters = [b.const(scale, "float32"), b.const(zero, x.dtype)]
    inputs = [x, *b.qparams(x), y, *b.qparams(y), *parameters]
    largest = 255 * x.scale * (255 * y.scale) if name == "QLinearMul" else 255 * (x.scale + y.scale)
    shape = np.broadcast_shapes(x.shape, y.shape)
    accident = beyond_int32(largest, scale)
    if name == "QLinearMul" and x.scale * y.scale > float(np.finfo(np.float32).max):
        accident = HOSTILE  # the product of the scales is infinite, and NaN times 0
    b.node(name, inputs, shape, x.dtype, float(np.float32(scale)), zero, domain=MICROSOFT, accident=accident)


def rescaled(b: OnnxBuilder, name: str, x: Value, shape: Any, about: float = 0.05, **options: Any) -> Value:
    """An operator on x, followed by the scale and zero point of its result."""
    scale, zero = b.scale(about), b.draw.zero_point(x.dtype)
    inputs = [x, *b.qparams(x), b.const(scale, "float32"), b.const(zero, x.dtype)]
    accident = beyond_int32((x.scale or 0.0) * 255, scale)
    return b.node(name, inputs, shape, x.dtype, scale, zero, domain=MICROSOFT, accident=accident, **options)


@generates("QLinearLeakyRelu")
def leaky_relu(b: OnnxBuilder) -> None:
    x = b.take(BYTES, quantized=True)
    rescaled(b, "QLinearLeakyRelu", x, x.shape, alpha=float(b.draw.pick([0.01, 0.3, 1.5, 0.0])))


@generates("QLinearSigmoid")
def sigmoid(b: OnnxBuilder) -> None:
    x = b.take(BYTES, quantized=True)
    rescaled(b, "QLinearSigmoid", x, x.shape, 0.004)


@generates("QLinearSoftmax")
def softmax(b: OnnxBuilder) -> None:
    x = b.take(BYTES, quantized=True)
    axis = b.draw.between(-len(x.shape), len(x.shape) - 1)
    zero = int(np.iinfo(x.dtype).min)
    inputs = [x, *b.qparams(x), b.const(1 / 256, "float32"), b.const(zero, x.dtype)]
    options = {"domain": MICROSOFT, "axis": axis, "opset": 13}
    b.node("QLinearSoftmax", inputs, x.shape, x.dtype, 1 / 256, zero, **options)


@generates("QLinearConcat")
def concat(b: OnnxBuilder) -> None:
    x = b.take(BYTES, quantized=True)
    axis = b.draw.between(0, len(x.shape) - 1)
    parts = [x]
    for _ in range(b.draw.between(0, 2)):
        shape = tuple(b.draw.between(1, 5) if a == axis else n for a, n in enumerate(x.shape))
        parts.append(b.fresh(x.dtype, shape, True))
    scale, zero = b.scale(), b.draw.zero_point(x.dtype)
    inputs: list[Any] = [b.const(scale, "float32"), b.const(zero, x.dtype)]
    for part in parts:
        inputs += [part, *b.qparams(part)]
    shape = [sum(p.shape[a] for p in parts) if a == axis else n for a, n in enumerate(x.shape)]
    b.node("QLinearConcat", inputs, shape, x.dtype, scale, zero, domain=MICROSOFT, axis=axis)


@generates("QLinearWhere")
def where(b: OnnxBuilder) -> None:
    x = b.take(BYTES, quantized=True)
    y, condition = b.fresh(x.dtype, x.shape, True), b.fresh("bool", x.shape)
    scale, zero = b.scale(), b.draw.zero_point(x.dtype)
    parameters = [b.const(scale, "float32"), b.const(zero, x.dtype)]
    inputs = [condition, x, *b.qparams(x), y, *b.qparams(y), *parameters]
    b.node("QLinearWhere", inputs, x.shape, x.dtype, scale, zero, domain=MICROSOFT)


# ---- pooling -----------------------------------------------------------------------------------------------------


@generates("QLinearAveragePool")
def average_pool(b: OnnxBuilder) -> None:
    x = b.take(BYTES, rank=4, quantized=True)
    size, attributes = windows(b, x.shape[2:], dilate=False)
    rescaled(b, "QLinearAveragePool", x, (*x.shape[:2], *size), count_include_pad=b.draw.between(0, 1), **attributes)


@generates("QLinearGlobalAveragePool")
def global_average_pool(b: OnnxBuilder) -> None:
    x = b.take(BYTES, rank=4, quantized=True)
    last = b.draw.between(0, 1)
    shape = (x.shape[0], 1, 1, x.shape[3]) if last else (*x.shape[:2], 1, 1)
    rescaled(b, "QLinearGlobalAveragePool", x, shape, channels_last=last)


@generates("QLinearReduceMean")
def reduce_mean(b: OnnxBuilder) -> None:
    """ONNX Runtime has no kernel for it."""
    x = b.take(BYTES, quantized=True)
    axis = b.draw.between(0, len(x.shape) - 1)
    shape = tuple(1 if a == axis else n for a, n in enumerate(x.shape))
    rescaled(b, "QLinearReduceMean", x, shape, axes=[axis], keepdims=1)


@generates("NhwcMaxPool")
def nhwc_max_pool(b: OnnxBuilder) -> None:
    x = b.take(BYTES, rank=4, quantized=True)
    size, attributes = windows(b, x.shape[1:3])
    shape = (x.shape[0], *size, x.shape[3])
    b.node("NhwcMaxPool", [x], shape, x.dtype, x.scale, x.zero, domain=MICROSOFT, **attributes)


# ---- layers ------------------------------------------------------------------------------------------------------


@generates("QAttention")
def attention(b: OnnxBuilder) -> None:
    heads, size = b.draw.between(1, 3), b.draw.pick([1, 2, 4])
    depth = heads * size
    x = b.take(("uint8",), rank=3, quantized=True, shape=(b.draw.between(1, 2), b.draw.extent(9), depth))
    scale, zero = b.qparams(x)
    w = b.const(b.draw.weights("int8", (depth, 3 * depth)))
    bias = b.const(b.draw.floats((3 * depth,)))
    inputs = [x, w, bias, scale, b.const(b.draw.scale(0.01), "float32"), "", zero, b.const(0, "int8")]
    b.node(
        "QAttention", inputs, x.shape, "float32", domain=MICROSOFT, num_heads=heads, accident=FLOAT_SUMS, steady=False
    )


@generates("DynamicQuantizeLSTM")
def lstm(b: OnnxBuilder) -> None:
    """A state that crosses a midpoint becomes another integer, and the next state differs by some hundredths."""
    steps, batch, depth, hidden = (b.draw.between(1, 4), b.draw.between(1, 3), b.draw.extent(), b.draw.extent())
    x = b.take(("float32",), rank=3, shape=(steps, batch, depth))
    w, r = (b.const(b.draw.weights("int8", (1, extent, 4 * hidden))) for extent in (depth, hidden))
    scale, zero = b.const([0.01], "float32"), b.const([0], "int8")
    inputs = [x, w, r, "", "", "", "", "", scale, zero, scale, zero]
    b.node(
        "DynamicQuantizeLSTM", inputs, (steps, 1, batch, hidden), "float32", domain=MICROSOFT, hidden_size=hidden,
        accident=b.undefined or bounded(APPROXIMATION, 0.02), steady=False,
    )  # fmt: skip


@generates("QEmbedLayerNormalization")
def embed(b: OnnxBuilder) -> None:
    """Tokens within the vocabulary, or anything in hostile graphs."""
    batch, length, depth, words = b.draw.between(1, 2), b.draw.extent(9), b.draw.extent(), 11
    high = None if b.recipe.hostile else words - 1
    tokens = b.fresh("int32", (batch, length), low=None if b.recipe.hostile else 0, high=high)
    segments = b.fresh("int32", (batch, length), low=0, high=1)
    tables = [b.const(b.draw.integers("uint8", (rows, depth))) for rows in (words, 16, 2)]
    norms = [b.const(b.draw.integers("uint8", (depth,))) for _ in range(2)]
    scales = [b.const(b.draw.scale(0.02), "float32") for _ in range(5)]
    zeros = [b.const(b.draw.zero_point("uint8"), "uint8") for _ in range(5)]
    inputs = [tokens, segments, *tables, *norms, "", *scales, *zeros]
    b.node(
        "QEmbedLayerNormalization", inputs, (batch, length, depth), "float32", domain=MICROSOFT, epsilon=1e-5,
        accident=FLOAT_STEPS, steady=False,
    )  # fmt: skip
    b.nodes[-1].output.append(b.name("mask"))
