"""torchao's int4 weights for CPUs, in the layout of PyTorch's own kernel.

    y = x · Wᵀ with w[n, k] = (q[n, k] − 8) · scale[n, g] + zero[n, g] for q from 0 to 15, g = ⌊k / group⌋

Scales and zeros are one tensor (G, N, 2). The layout of q depends on the machine that packed it. PyTorch can only pack,
so the places of all values are found by packing their numbers, four bits at a time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from tvm import relax

from ..... import op as qnn
from .....errors import ModelFormatError, UnsupportedOperatorError
from .....numerics.packed import pack
from .....op.base import constant, constant_value, shape_of
from ..registry import converter
from ..values import dtype_of

_MIDDLE = 8
_TILES = 1  # PyTorch's inner_k_tiles, which CPUs ignore
_BLOCK = 64  # rows that are packed independently of others, or a multiple of their number


@converter("aten._weight_int4pack_mm_for_cpu.default")
def _int4_linear(importer: Any, x: relax.Expr, packed: relax.Expr, group: int, scales_and_zeros: Any) -> relax.Expr:
    if dtype_of(x) != "float32":
        raise UnsupportedOperatorError(f"int4 weights are multiplied by float32, found {dtype_of(x)}")
    data, parts = constant_value(packed), constant_value(scales_and_zeros)
    if data is None or parts is None:
        raise UnsupportedOperatorError("the weight, its scales and zeros must be constants")
    rows, depth = data.shape[0], 2 * data.shape[1]
    if depth != shape_of(x)[-1] or group < 1 or depth % group or parts.shape != (depth // group, rows, 2):
        raise ModelFormatError(
            f"the weight has {rows} rows of {depth} values in groups of {group} and scales of shape {parts.shape}, but "
            f"is multiplied by {shape_of(x)}"
        )
    scale, zero = (np.ascontiguousarray(part.T, np.float32) for part in (parts[..., 0], parts[..., 1]))
    if not (np.isfinite(scale).all() and np.isfinite(zero).all()):
        raise ModelFormatError("the scales and zeros of a weight must be finite")
    if ((scale == 0) & (zero != 0)).any():
        raise UnsupportedOperatorError("a group has the scale 0 and another zero")
    middle: np.ndarray = np.asarray(_MIDDLE, np.int32)
    if zero.any():
        middle = np.asarray(_MIDDLE - np.divide(zero, scale, out=np.zeros_like(zero), where=scale != 0), np.float32)
    weight, factors, offsets = constant(pack(unpacked(data), "uint4")), constant(scale), constant(middle)
    return importer.emit(qnn.blockwise_dense(x, weight, factors, offsets, "uint4", group))


def unpacked(packed: np.ndarray) -> np.ndarray:
    """The integers (N, K) uint8 of a weight that PyTorch packed as (N, K / 2) bytes on a machine like this one. Raises
    ModelFormatError for any other."""
    rows = packed.shape[0]
    for size in dict.fromkeys((min(_BLOCK, rows), rows)):
        parts = [packed[start : start + size] for start in range(0, rows, size)]
        values = np.concatenate([_values(part) for part in parts])
        if np.array_equal(_packed(values), packed):
            return values
    raise ModelFormatError("the weight is not packed as PyTorch does it on this machine")


def _values(packed: np.ndarray) -> np.ndarray:
    values = np.empty(2 * packed.size, np.uint8)
    values[_places(packed.shape[0], 2 * packed.shape[1])] = _halves(packed)
    return values.reshape(packed.shape[0], -1)


@lru_cache(maxsize=4)
def _places(rows: int, depth: int) -> np.ndarray:
    """The number n · K + k of the value that each half byte of a packed weight (N, K) holds."""
    numbers = np.arange(rows * depth).reshape(rows, depth)
    places = np.zeros(rows * depth, np.int64)
    for shift in range(0, (rows * depth - 1).bit_length(), 4):
        places |= _halves(_packed(numbers >> shift & 15)).astype(np.int64) << shift
    return places


def _packed(values: np.ndarray) -> np.ndarray:
    """Integers from 0 to 15 (N, K) as PyTorch packs them."""
    try:
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.from_numpy(values.astype(np.int32)), _TILES)
    except RuntimeError as error:
        raise ModelFormatError(f"PyTorch packs no weight of shape {values.shape}: {error}") from None
    return packed.numpy()  # type: ignore[no-any-return]


def _halves(packed: np.ndarray) -> np.ndarray:
    """The half bytes, lower ones first."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)
