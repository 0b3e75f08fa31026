"""qnn.pool_sum: real values of quantized data, added up over windows in float32 one by one, as PyTorch does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..errors import ShapeError
from .avg_pool2d import pool_output_size
from .base import Shape, TensorInfo, check_dtype, check_qparams, define, export_to_script
from .traits import Data, Kind, Traits

DTYPES = ("int8", "uint8", "int16", "uint16")


def pooled_size(
    size: Sequence[int], pool_size: Sequence[int], strides: Sequence[int], padding: Sequence[int], ceil_mode: bool
) -> tuple[int, ...]:
    """Number of windows along each spatial dimension; padding: all beginnings, then all ends."""
    rank = len(size)
    return tuple(
        pool_output_size(size[i], pool_size[i], strides[i], padding[i], padding[rank + i], ceil_mode)
        for i in range(rank)
    )


def check_geometry(data: TensorInfo, pool_size: Sequence[int], strides: Sequence[int], padding: Sequence[int]) -> None:
    """Raise ShapeError unless the windows fit channels-last data and each contains at least one of its cells."""
    rank = data.ndim - 2
    if rank < 1 or (len(pool_size), len(strides), len(padding)) != (rank, rank, 2 * rank):
        raise ShapeError(
            f"pool_size {tuple(pool_size)}, strides {tuple(strides)} and padding {tuple(padding)} do not match "
            f"channels-last data {data.shape}"
        )
    if min(*pool_size, *strides) < 1 or min(padding) < 0:
        raise ShapeError("pool_size and strides must be positive, padding must not be negative")
    if any(low >= k or high >= k for low, high, k in zip(padding[:rank], padding[rank:], pool_size, strict=True)):
        raise ShapeError(f"padding {tuple(padding)} would leave some windows {tuple(pool_size)} without data")


def _infer(
    data: TensorInfo,
    scale: TensorInfo,
    zero_point: TensorInfo,
    *,
    pool_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
) -> tuple[Shape, str]:
    check_dtype(data, *DTYPES)
    check_qparams(scale, zero_point)
    check_geometry(data, pool_size, strides, padding)
    spatial = pooled_size(data.shape[1:-1], pool_size, strides, padding, ceil_mode)
    return (data.shape[0], *spatial, data.shape[-1]), "float32"


def window_totals(
    data: np.ndarray,
    scale: np.ndarray,
    zero_point: np.ndarray,
    *,
    pool_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool,
) -> np.ndarray:
    """The reference of `qnn.pool_sum`."""
    rank, size = data.ndim - 2, data.shape[1:-1]
    out_size = pooled_size(size, pool_size, strides, padding, ceil_mode)
    shifted = data.astype(np.int32) - zero_point.reshape(())
    real = shifted.astype(np.float32) * scale.reshape(()).astype(np.float32)
    reach = [(out - 1) * s + k for out, s, k in zip(out_size, strides, pool_size, strict=True)]
    widths = [(padding[i], max(reach[i] - size[i] - padding[i], 0)) for i in range(rank)]
    real = np.pad(real, [(0, 0), *widths, (0, 0)])
    total = np.zeros((data.shape[0], *out_size, data.shape[-1]), np.float32)
    for tap in np.ndindex(*pool_size):
        cells = tuple(slice(t, t + (o - 1) * s + 1, s) for t, o, s in zip(tap, out_size, strides, strict=True))
        total = total + real[(slice(None), *cells)]
    return total


POOL_SUM = define(
    "pool_sum",
    "data scale zero_point",
    _infer,
    window_totals,
    Traits(Kind.SUM, data=(Data("data", "scale", "zero_point"),), shift_invariant=True),
    "real sums over windows",
)


def pool_sum(
    data: relax.Expr,
    scale: relax.Expr,
    zero_point: relax.Expr,
    pool_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    ceil_mode: bool = False,
) -> relax.Call:
    """y = Σ f32(data − zero_point)·scale over windows, added in float32 from the first cell of a window to the last.

    data:    int8, uint8, int16 or uint16, channels last: (N, spatial…, C), with any number of spatial dimensions; scale
             (float) and zero_point (int32): scalars
    padding: all beginnings, then all ends; stands for real 0.0, as do cells that `ceil_mode` reaches

    Raises ShapeError. Source: avg_pool2d of PyTorch and ONNX Runtime.
    """
    return POOL_SUM.call(
        data,
        scale,
        zero_point,
        pool_size=tuple(pool_size),
        strides=tuple(strides),
        padding=tuple(padding),
        ceil_mode=bool(ceil_mode),
    )


export_to_script(pool_sum=pool_sum)
