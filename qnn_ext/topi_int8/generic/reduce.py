"""TE computes of qnn.mean, qnn.sum, qnn.max and qnn.min: an integer reduction, then one rounding."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np
from tvm import te, tirx

from ...numerics import float_multiplier, tir
from ...numerics.multiplier import mean_multiplier
from ...qparams import dtype_range
from .elementwise import fixed, rescaled
from .operands import Constants, Expr, Operand, Stage
from .stages import StageRule, stages


def reduced(
    data: te.Tensor, axes: tuple[int, ...], keepdims: bool, combine: Callable[..., Expr], dtype: str, name: str
) -> te.Tensor:
    """`data`, converted to `dtype`, combined over `axes`; combine is te.sum, te.max or te.min."""
    sizes = [int(dim) for dim in data.shape]
    inner = {axis: te.reduce_axis((0, sizes[axis]), f"k{axis}") for axis in axes}
    outer = [axis for axis in range(len(sizes)) if axis not in inner]
    shape = [1 if axis in inner else size for axis, size in enumerate(sizes) if keepdims or axis not in inner]

    def body(*indices: Expr) -> Expr:
        spatial = [indices[axis] for axis in outer] if keepdims else indices
        position = {**dict(zip(outer, spatial, strict=True)), **inner}
        element = data(*(position[axis] for axis in range(len(sizes))))
        return combine(element.astype(dtype), axis=list(inner.values()))

    if not sizes:
        return te.compute((), lambda: data().astype(dtype), name=name)
    return te.compute(tuple(shape), body, name=name)


def _axes(axis: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """The axes in ascending order; no axis stands for all."""
    return tuple(sorted({a % ndim for a in axis})) if axis and ndim else tuple(range(ndim))


def sum_dtype(dtype: str, count: int, zero_point: int = 0) -> str:
    """int32 if it holds every sum of `count` values, with and without zero_point subtracted; else int64."""
    low, high = dtype_range(dtype)
    largest = max(abs(value - shift) for value in (low, high) for shift in (0, zero_point))
    return "int32" if count * largest < 1 << 31 else "int64"


def _sum_rule(divide: bool) -> StageRule:
    def build(
        constants: Constants,
        out_shape: tuple[int, ...],
        data: Operand,
        input_scale: Operand,
        input_zero_point: Operand,
        output_scale: Operand,
        output_zero_point: Operand,
        *,
        axis: tuple[int, ...],
        keepdims: bool,
        rounding: str,
        compute_dtype: str,
        out_dtype: str,
    ) -> te.Tensor:
        axes = _axes(axis, len(data.shape))
        count = prod(data.shape[a] for a in axes)
        zero = int(input_zero_point.constant().reshape(()))
        wide = sum_dtype(data.dtype, count, zero)
        total = reduced(data.tensor, axes, keepdims, te.sum, wide, "total")
        in_scale, out_scale = (scale.constant().reshape(-1) for scale in (input_scale, output_scale))

        def finish(*indices: Expr) -> Expr:
            stage = Stage(constants, indices)
            x = (total(*indices) - tirx.const(zero * count, wide)).astype("int32")  # wraps, as the reference
            zero_point = stage.parameter(output_zero_point, -1)
            if not divide:
                return rescaled(stage, x, in_scale, out_scale, zero_point, -1, rounding, compute_dtype, out_dtype)
            return _mean(stage, x, count, in_scale, out_scale, zero_point, rounding, compute_dtype, out_dtype)

        return te.compute(out_shape, finish, name="mean" if divide else "sum")

    return build


def _mean(
    stage: Stage,
    total: Expr,
    count: int,
    in_scale: np.ndarray,
    out_scale: np.ndarray,
    zero_point: Expr,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
) -> Expr:
    """The twin of op.reduce._mean."""
    if rounding == "TFLITE":
        multiplier = mean_multiplier(float(in_scale[0]), float(out_scale[0]), count)
        return fixed(stage, total, multiplier, zero_point, -1, rounding, out_dtype)
    if rounding == "TONEAREST_EVEN" and in_scale[0] == out_scale[0]:
        real = total.astype("float32") / tirx.const(float(np.float32(count)), "float32")
        return tir.round_to_int(real, zero_point, out_dtype)
    divided = out_scale * out_scale.dtype.type(count)
    if rounding == "TONEAREST_EVEN":
        multiplier = stage.along(float_multiplier(in_scale, divided), -1)
        return tir.requantize_float(total, multiplier, zero_point, out_dtype)
    return rescaled(stage, total, in_scale, divided, zero_point, -1, rounding, compute_dtype, out_dtype)


def _extreme_rule(combine: Callable[..., Expr]) -> StageRule:
    def build(
        constants: Constants,
        out_shape: tuple[int, ...],
        data: Operand,
        input_scale: Operand,
        input_zero_point: Operand,
        output_scale: Operand,
        output_zero_point: Operand,
        *,
        axis: tuple[int, ...],
        keepdims: bool,
        rounding: str,
        compute_dtype: str,
        out_dtype: str,
    ) -> te.Tensor:
        axes = _axes(axis, len(data.shape))
        extreme = reduced(data.tensor, axes, keepdims, combine, data.dtype, "extreme")
        in_scale, out_scale = (scale.constant().reshape(-1) for scale in (input_scale, output_scale))
        zero = tirx.const(int(input_zero_point.constant().reshape(())), "int32")

        def finish(*indices: Expr) -> Expr:
            stage = Stage(constants, indices)
            x = extreme(*indices).astype("int32") - zero
            zero_point = stage.parameter(output_zero_point, -1)
            return rescaled(
                stage, x, in_scale, out_scale, zero_point, -1, rounding, compute_dtype, out_dtype, narrow=True
            )

        return te.compute(out_shape, finish, name="rescaled")

    return build


stages("qnn.mean")(_sum_rule(divide=True))
stages("qnn.sum")(_sum_rule(divide=False))
stages("qnn.max")(_extreme_rule(te.max))
stages("qnn.min")(_extreme_rule(te.min))
