"""Convolutions and matrix products: per tensor and per channel, 8 and 16 bits, hybrid, unusual windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance.tflite_models.builder import Q

from ..rules import NARROWED, Rule
from .builder import MOST_MULTIPLIER, MOST_WIDE_MULTIPLIER, Builder, Value, generates, shifted_out
from .elementwise import activation

DTYPES = ("int8", "int8", "uint8", "int16")


def quantized(value: Value) -> bool:
    """TFLite's products need quantized operands."""
    return value.q is not None


def most_multiplier(x: Value) -> float:
    """The multiplier of a sum of products at and above which LiteRT's arithmetic is undefined."""
    return MOST_WIDE_MULTIPLIER if x.dtype == "int16" else MOST_MULTIPLIER


def out_of_range(x: Value, scale: float, result: Q, depth: int) -> Rule | None:
    """The rule for sums of `depth` products by weights of this scale, if their multiplier is too large or they may not
    fit into int32 before they are clipped."""
    assert x.q is not None
    top = 32767.0 if x.dtype == "int16" else 127.0
    if x.q.scale * scale / result.scale * top * top * depth >= 2.0**31:
        return NARROWED
    return shifted_out([Q(x.q.scale * scale)], result, most_multiplier(x))


def weights(
    b: Builder, x: Value, shape: tuple[int, ...], axis: int, with_bias: bool, **options: Any
) -> tuple[list[int], Q, dict[str, Any]]:
    """Indices of weight and bias, the output's quantization, and the options that name the bias's dtype."""
    draw, channels = b.draw, shape[axis]
    dtype = "uint8" if x.dtype == "uint8" else "int8"
    per_channel = dtype == "int8" and draw.chance(0.6)
    values = draw.weights(dtype, shape)
    scales = np.array([draw.scale(0.01) for _ in range(channels if per_channel else 1)], np.float32)
    weight = b.const(values, q=Q(scales, draw.zero_point("uint8") if dtype == "uint8" else 0, axis))
    assert x.q is not None
    options: dict[str, Any]
    depth = int(np.prod(shape)) // channels
    top, reach = (32767, 19000) if x.dtype == "int16" else (127, 74)
    spread = reach * 74 * float(np.sqrt(depth))
    scale = x.q.scale * float(np.median(scales)) * spread * 2.5 / top * float(np.exp(draw.rng.normal(0, 1)))
    if draw.recipe.scales == "extreme" and draw.chance(0.2):
        scale *= 10.0 ** draw.rng.uniform(-9, 9)
    if draw.recipe.scales == "power_of_two":
        scale = 2.0 ** np.round(np.log2(scale))
    q = Q(float(np.float32(np.clip(scale, 1e-37, 1e37))), 0 if x.dtype == "int16" else draw.zero_point(x.dtype))
    options = {"accident": out_of_range(x, float(scales.max()), q, depth)}
    if not with_bias:
        return [weight], q, options
    wide = x.dtype == "int16" and draw.chance(0.6)
    limit = int(min(spread, 2**30))
    bias = draw.integers("int64" if wide else "int32", (channels,), -limit, limit)
    index = b.const(bias, q=Q(np.maximum(np.float32(x.q.scale) * scales, 1e-38), 0, 0))
    if x.dtype == "int16" and not wide:
        options["quantizedBiasType"] = 2
    return [weight, index], q, options


def window(b: Builder, extent: int) -> tuple[int, int, int]:
    """(kernel, stride, dilation) along one dimension."""
    kernel = b.draw.pick([1, 1, 2, 3, 3, 3, 4, 5])
    stride = b.draw.pick([1, 1, 1, 2, 2, 3])
    return min(kernel, extent + 2), stride, b.draw.pick([2, 3]) if stride == 1 and b.draw.chance(0.2) else 1


def windows(b: Builder, height: int, width: int) -> tuple[list[tuple[int, int, int]], str, list[int]]:
    """Windows over an image, the padding and the output's size; VALID only where something remains."""
    geometry = [window(b, height), window(b, width)]
    valid = [(n - (k - 1) * d - 1) // s + 1 for n, (k, s, d) in zip((height, width), geometry, strict=True)]
    if min(valid) > 0 and b.draw.chance(0.5):
        return geometry, "VALID", valid
    return geometry, "SAME", [-(-n // s) for n, (_, s, _) in zip((height, width), geometry, strict=True)]


def window_options(geometry: list[tuple[int, int, int]], padding: str) -> dict[str, Any]:
    """Strides, dilations and padding as the schema names them."""
    (_, stride_h, dilation_h), (_, stride_w, dilation_w) = geometry
    return {
        "padding": padding,
        "strideH": stride_h,
        "strideW": stride_w,
        "dilationHFactor": dilation_h,
        "dilationWFactor": dilation_w,
    }


def act8(b: Builder) -> str:
    return activation(b)


@generates("CONV_2D")
def conv2d(b: Builder) -> None:
    x = b.take(DTYPES, rank=4, where=quantized)
    n, h, w, c = x.shape
    geometry, padding, size = windows(b, h, w)
    groups = b.draw.pick([g for g in (1, 1, 1, 2, 3, 4) if c % g == 0])
    channels = groups * max(1, b.draw.extent() // groups)
    shape = (channels, geometry[0][0], geometry[1][0], c // groups)
    operands, q, options = weights(b, x, shape, 0, b.draw.chance(0.8))
    options.update(window_options(geometry, padding), act=act8(b))
    b.one("CONV_2D", [x, *operands], (n, *size, channels), x.dtype, q, **options)


@generates("DEPTHWISE_CONV_2D")
def depthwise(b: Builder) -> None:
    """Always with a bias: LiteRT's default kernel crashes without one."""
    x = b.take(DTYPES, rank=4, where=quantized)
    n, h, w, c = x.shape
    geometry, padding, size = windows(b, h, w)
    multiplier = b.draw.pick([1, 1, 1, 2, 3, 8])
    shape = (1, geometry[0][0], geometry[1][0], c * multiplier)
    operands, q, options = weights(b, x, shape, 3, True)
    options.pop("quantizedBiasType", None)
    options.update(window_options(geometry, padding), act=act8(b), depthMultiplier=multiplier)
    if x.dtype == "int16":  # the schema has no bias dtype for it: 64 bits
        operands[1] = b.const(b.draw.integers("int64", (c * multiplier,), -(2**30), 2**30), q=Q(1.0))
    b.one("DEPTHWISE_CONV_2D", [x, *operands], (n, *size, c * multiplier), x.dtype, q, **options)


@generates("TRANSPOSE_CONV")
def transpose_conv(b: Builder) -> None:
    x = b.take(DTYPES, rank=4, where=quantized)
    n, h, w, c = x.shape
    kernel = (b.draw.between(1, 4), b.draw.between(1, 4))
    stride = (b.draw.between(1, 3), b.draw.between(1, 3))
    padding = b.draw.pick(["SAME", "VALID"])
    sizes = [e * s for e, s in zip((h, w), stride, strict=True)]
    if padding == "VALID":
        sizes = [e + max(k - s, 0) for e, k, s in zip(sizes, kernel, stride, strict=True)]
    channels = b.draw.extent()
    operands, q, options = weights(b, x, (channels, *kernel, c), 0, b.draw.chance(0.7))
    shape = (n, *sizes, channels)
    inputs = [b.const(shape, "int32"), operands[0], x, *operands[1:]]
    b.one(
        "TRANSPOSE_CONV", inputs, shape, x.dtype, q, padding=padding, strideH=stride[0], strideW=stride[1],
        act=b.draw.pick(["none", "none", "relu", "relu6"]), **options,
    )  # fmt: skip


@generates("FULLY_CONNECTED")
def fully_connected(b: Builder) -> None:
    x = b.take(DTYPES, rank=(2, 3, 4), where=quantized)
    units, depth = b.draw.extent(), x.shape[-1]
    operands, q, options = weights(b, x, (units, depth), 0, b.draw.chance(0.8))
    keep = b.draw.chance(0.5)
    shape = (*x.shape[:-1], units) if keep else (int(np.prod(x.shape)) // depth, units)
    b.one("FULLY_CONNECTED", [x, *operands], shape, x.dtype, q, keepNumDims=keep, act=act8(b), **options)


@generates("BATCH_MATMUL")
def batch_matmul(b: Builder) -> None:
    x = b.take(("int8", "int16"), rank=(2, 3, 4), where=quantized)
    adj_x, adj_y = b.draw.chance(0.3), b.draw.chance(0.4)
    rows, depth = (x.shape[-1], x.shape[-2]) if adj_x else x.shape[-2:]
    columns = b.draw.extent()
    batch = x.shape[:-2] if b.draw.chance(0.7) else ()
    shape = (*batch, columns, depth) if adj_y else (*batch, depth, columns)
    y = b.operand(x.dtype, shape, b.q(x.dtype, 0.02), b.draw.chance(0.4))
    assert x.q and y.q
    reach = (19000, 19000, 32767) if x.dtype == "int16" else (74, 74, 127)
    scale = x.q.scale * y.q.scale * reach[0] * reach[1] * 2.5 * float(np.sqrt(depth)) / reach[2] * b.draw.scale(1.0)
    zero = 0 if x.dtype == "int16" else b.draw.zero_point(x.dtype)
    q = Q(float(np.float32(np.clip(scale, 1e-37, 1e37))), zero)
    accident = out_of_range(x, y.q.scale, q, depth)
    b.one("BATCH_MATMUL", [x, y], (*x.shape[:-2], rows, columns), x.dtype, q, adjX=adj_x, adjY=adj_y, accident=accident)
