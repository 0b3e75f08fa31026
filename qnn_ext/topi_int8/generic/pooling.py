"""TE compute of qnn.avg_pool2d: integer window sums, then one rounding."""

from __future__ import annotations

import numpy as np
from tvm import te, tirx

from ...numerics import fixed_point, float_multiplier, tir
from ...numerics.windows import window_counts
from .operands import Constants, Expr, Operand, Stage
from .stages import stages


@stages("qnn.avg_pool2d")
def avg_pool2d(
    constants: Constants,
    out_shape: tuple[int, ...],
    data: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    output_scale: Operand,
    output_zero_point: Operand,
    *,
    pool_size: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, ...],
    dilation: tuple[int, int],
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
    count_include_pad: bool,
    reciprocal: bool,
    **layout: object,
) -> te.Tensor:
    """NHWC only: Canonicalize converts to it."""
    _, height, width, _ = data.shape
    counts = window_counts((height, width), out_shape[1:3], pool_size, strides, padding, dilation, count_include_pad)
    if (counts == counts.flat[0]).all():
        counts = counts.flat[0]  # division by a constant becomes a multiplication
    top, left = padding[:2]
    zero = int(input_zero_point.constant().reshape(()))
    r, s = te.reduce_axis((0, pool_size[0]), "r"), te.reduce_axis((0, pool_size[1]), "s")
    padded = any(padding) or _reaches_beyond((height, width), out_shape, pool_size, strides, dilation)

    def cell(n: Expr, y: Expr, x: Expr, c: Expr) -> Expr:
        row = y * strides[0] + r * dilation[0] - top
        column = x * strides[1] + s * dilation[1] - left
        if not padded:
            return data.tensor(n, row, column, c).astype("int32")
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        return tirx.if_then_else(inside, data.tensor(n, row, column, c).astype("int32"), tirx.const(zero, "int32"))

    # cells outside count as the zero point, so Σ (q − z) is the sum over the window − z · (number of its cells)
    total = te.compute(out_shape, lambda n, y, x, c: te.sum(cell(n, y, x, c), axis=[r, s]), name="pool_sum")
    cells = pool_size[0] * pool_size[1]
    in_scale, out_scale = (scale.constant().reshape(-1) for scale in (input_scale, output_scale))

    def average(*indices: Expr) -> Expr:
        stage = Stage(constants, indices)
        count = stage.read(Operand(None, counts.astype(np.int32)))
        shifted = total(*indices) - tirx.const(zero * cells, "int32")  # Σ (q − z)
        zero_point = stage.parameter(output_zero_point, -1)
        if rounding == "TFLITE":
            return tir.saturate(_divide_half_away(shifted + count * tirx.const(zero, "int32"), count), out_dtype)
        if rounding == "TONEAREST_EVEN" and in_scale[0] == out_scale[0] and not reciprocal:
            real = shifted.astype("float32") / count.astype("float32")
            return tir.round_to_int(real, zero_point, out_dtype)
        scale = out_scale[0] * counts.astype(out_scale.dtype)
        if rounding == "TONEAREST_EVEN":
            multiplier = stage.read(Operand(None, float_multiplier(in_scale[0], scale)))
            return tir.requantize_float(shifted, multiplier, zero_point, out_dtype)
        return _relay(stage, shifted, in_scale[0], scale, zero_point, rounding, compute_dtype, out_dtype)

    return te.compute(out_shape, average, name="average")


def _relay(
    stage: Stage,
    x: Expr,
    in_scale: np.ndarray,
    out_scale: np.ndarray,
    zero_point: Expr,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> Expr:
    """Relay's roundings with a scale per window: the multipliers are read like any broadcast operand."""
    ratio = np.asarray(in_scale.astype(np.float64) / out_scale.astype(np.float64))
    if compute_dtype == "int64":
        fp = fixed_point(ratio, rounding=rounding)
        multiplier, shift = (stage.read(Operand(None, array)) for array in (fp.multiplier, fp.shift))
        return tir.requantize_fixed(x, multiplier, shift, zero_point, out_dtype, rounding)
    multiplier = stage.read(Operand(None, ratio.astype(compute_dtype)))
    return tir.requantize_float_relay(x, multiplier, zero_point, out_dtype, rounding)


def _divide_half_away(total: Expr, count: Expr) -> Expr:
    """total / count in integers, midpoints away from zero."""
    zero = tirx.const(0, "int32")
    magnitude = tirx.truncdiv(
        tirx.Select(total < zero, -total, total) + tirx.truncdiv(count, tirx.const(2, "int32")), count
    )
    return tirx.Select(total < zero, -magnitude, magnitude)


def _reaches_beyond(
    size: tuple[int, int],
    out_shape: tuple[int, ...],
    pool_size: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
) -> bool:
    ends = [
        (out - 1) * stride + (k - 1) * step + 1
        for out, stride, k, step in zip(out_shape[1:3], strides, pool_size, dilation, strict=True)
    ]
    return any(end > limit for end, limit in zip(ends, size, strict=True))
