"""qnn.group_norm and qnn.instance_norm: integers normalized over the channels of a group, and over each channel.

Their statistics are those of qnn.normalize, exact, over the rows that groups are when they are laid out one by one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import mul
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ShapeError
from .base import (
    Shape,
    TensorInfo,
    check_dtype,
    check_out_dtype,
    check_qparams,
    define,
    export_to_script,
    normalize_axis,
)
from .normalize import NORMALIZE
from .requantize import QUANTIZE
from .traits import Data, Kind, Output, Traits

ARGUMENTS = "data gamma beta input_scale input_zero_point output_scale output_zero_point"
TRAITS = Traits(
    Kind.ROWS,
    data=(Data("data", "input_scale", "input_zero_point"),),
    output=Output("output_scale", "output_zero_point", offset=True),
    others=("gamma", "beta"),
    shift_invariant=True,
)


def channels_second(axis: int, ndim: int) -> list[int]:
    """The order of axes in which the channels follow the batch."""
    axis = normalize_axis(axis, ndim)
    return [0, axis, *(other for other in range(1, ndim) if other != axis)]


# ---- group_norm --------------------------------------------------------------------------------------------------


def _infer_group_norm(
    data: TensorInfo,
    gamma: TensorInfo,
    beta: TensorInfo,
    input_scale: TensorInfo,
    input_zero_point: TensorInfo,
    output_scale: TensorInfo,
    output_zero_point: TensorInfo,
    *,
    num_groups: Any,
    axis: int,
    epsilon: float,
    reciprocal: bool,
    out_dtype: str,
) -> tuple[Shape, str]:
    if data.ndim < 2 or normalize_axis(axis, data.ndim) == 0:
        raise ShapeError(f"data must have a batch, and channels along another axis, found {data.shape} and axis {axis}")
    batch, channels, *rest = (data.shape[i] for i in channels_second(axis, data.ndim))
    for vector in (gamma, beta):
        check_dtype(vector, "float32")
        if vector.shape != (channels,):
            raise ShapeError(f"{vector.name} must have one value for each of {channels} channels, found {vector.shape}")
    if isinstance(num_groups, int) and (num_groups < 1 or (isinstance(channels, int) and channels % num_groups)):
        raise ShapeError(f"{channels} channels cannot be divided into num_groups={num_groups}")
    check_qparams(output_scale, output_zero_point)
    check_out_dtype(out_dtype, "int8", "uint8", "int16", "uint16")
    row = reduce(mul, rest, channels // num_groups if isinstance(channels, int) else 1)
    rows = replace(data, shape=(batch, num_groups, row))
    NORMALIZE.infer(rows, input_scale, input_zero_point, epsilon=epsilon, centered=True)
    return data.shape, out_dtype


def _reference_group_norm(
    data: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    input_scale: np.ndarray,
    input_zero_point: np.ndarray,
    output_scale: np.ndarray,
    output_zero_point: np.ndarray,
    *,
    num_groups: int,
    axis: int,
    epsilon: float,
    reciprocal: bool,
    out_dtype: str,
) -> np.ndarray:
    order = channels_second(axis, data.ndim)
    moved = data.transpose(order)
    rows = moved.reshape(moved.shape[0], num_groups, -1)
    unit = NORMALIZE.reference(rows, input_scale, input_zero_point, epsilon=epsilon, centered=True)
    column = (-1, *(1,) * (data.ndim - 2))
    real = unit.reshape(moved.shape) * gamma.reshape(column) + beta.reshape(column)
    quantized = QUANTIZE.reference(
        real,
        output_scale,
        output_zero_point,
        axis=-1,
        out_dtype=out_dtype,
        rounding="TONEAREST_EVEN",
        reciprocal=reciprocal,
    )
    return quantized.transpose(np.argsort(order))


GROUP_NORM = define(
    "group_norm", ARGUMENTS, _infer_group_norm, _reference_group_norm, TRAITS, "quantized group normalization"
)


def group_norm(
    data: relax.Expr,
    gamma: relax.Expr,
    beta: relax.Expr,
    input_scale: relax.Expr,
    input_zero_point: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    num_groups: int | None,
    axis: int = 1,
    epsilon: float = 1e-5,
    reciprocal: bool = False,
    out_dtype: str = "int8",
) -> relax.Call:
    """q = saturate(round((n·γ + β) / s_out) + z_out), n the data with mean 0 and variance 1 over each group.

    data: int8, uint8 or int16, (N, …) with C channels along `axis`; scales float, zero points int32: scalars
    gamma, beta: (C,) float32
    num_groups: a divisor of C; a group is C / num_groups channels that follow each other, of one sample. None: as
                `instance_norm`
    reciprocal: multiply by f32(1 / s_out) instead of dividing, as `quantize`
    out_dtype: int8, uint8, int16 or uint16

    n is that of `normalize`, with exact statistics; product, sum and quotient are rounded to float32 one by one, and
    midpoints go to even. Raises ShapeError. Source: ONNX GroupNormalization-21 and PyTorch group_norm between
    dequantize and quantize.
    """
    groups = {} if num_groups is None else {"num_groups": int(num_groups)}
    return (GROUP_NORM if groups else INSTANCE_NORM).call(
        data,
        gamma,
        beta,
        input_scale,
        input_zero_point,
        output_scale,
        output_zero_point,
        **groups,
        axis=int(axis),
        epsilon=float(epsilon),
        reciprocal=bool(reciprocal),
        out_dtype=out_dtype,
    )


# ---- instance_norm -----------------------------------------------------------------------------------------------


def _channels(data: Any, axis: int) -> Any:
    """The number of channels: of the groups, when each is one channel."""
    return data.shape[normalize_axis(axis, data.ndim)] if data.ndim else 0


def _infer_instance_norm(data: TensorInfo, *args: TensorInfo, axis: int, **attributes: Any) -> tuple[Shape, str]:
    return _infer_group_norm(data, *args, num_groups=_channels(data, axis), axis=axis, **attributes)


def _reference_instance_norm(data: np.ndarray, *args: np.ndarray, axis: int, **attributes: Any) -> np.ndarray:
    return _reference_group_norm(data, *args, num_groups=_channels(data, axis), axis=axis, **attributes)


INSTANCE_NORM = define(
    "instance_norm",
    ARGUMENTS,
    _infer_instance_norm,
    _reference_instance_norm,
    TRAITS,
    "quantized instance normalization",
)


def instance_norm(
    data: relax.Expr,
    gamma: relax.Expr,
    beta: relax.Expr,
    input_scale: relax.Expr,
    input_zero_point: relax.Expr,
    output_scale: relax.Expr,
    output_zero_point: relax.Expr,
    axis: int = 1,
    epsilon: float = 1e-5,
    reciprocal: bool = False,
    out_dtype: str = "int8",
) -> relax.Call:
    """`group_norm` with each channel a group: mean and variance are those of one channel of one sample.

    Raises ShapeError. Source: ONNX InstanceNormalization and PyTorch instance_norm between dequantize and quantize.
    """
    return group_norm(
        data,
        gamma,
        beta,
        input_scale,
        input_zero_point,
        output_scale,
        output_zero_point,
        None,
        axis,
        epsilon,
        reciprocal,
        out_dtype,
    )


export_to_script(group_norm=group_norm, instance_norm=instance_norm)
