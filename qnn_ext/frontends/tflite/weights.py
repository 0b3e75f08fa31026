"""Constant matrices of integers that stay packed, with few bits each: quantized as a whole, per row, or block by block.

Products and lookups read them so: `passes/blockwise.py` sees to those of dequantized matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from tvm import relax

from ... import op as qnn
from ...numerics import bfloat16
from ...numerics.packed import WIDTHS, narrow_range, pack, packed_bytes, unpack
from ...op.base import constant
from ...op.blockwise import LONGEST_GROUP, dequantized, groups_of
from ...qparams import QParams
from .node import Node, shape_of
from .tensors import Tensor


def stays_packed(tensor: Tensor) -> bool:
    """Whether a tensor is a constant of few bits, or quantized block by block."""
    return tensor.narrow is not None or tensor.blocks is not None


@dataclass(frozen=True)
class PackedMatrix:
    """w[n, k] = (q[n, k] − zero_point[n, g]) · scale[n, g] with g = ⌊k / group⌋: see `op.blockwise`.

    row_scale: (N, 1) float32 if all groups of a row have the same scale, None if the file has one for each
    """

    values: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray
    dtype: str
    depth: int
    group: int
    row_scale: np.ndarray | None = None

    def dequantized(self, node: Node) -> relax.Expr:
        """The matrix in float32, computed where it is not multiplied by and no rows of it are taken."""
        parts = constant(self.values), constant(self.scale), constant(self.zero_point)
        return node.emit(qnn.blockwise_dequantize(*parts, self.depth, self.dtype, self.group))

    def floats(self, scale: np.ndarray | None = None) -> np.ndarray:
        """The matrix in float32, with other scales if they are given."""
        return dequantized(
            self.values,
            self.scale if scale is None else scale,
            self.zero_point,
            depth=self.depth,
            weight_dtype=self.dtype,
            group_size=self.group,
        )

    def sums(self, node: Node, rows: relax.Expr) -> tuple[relax.Expr, np.ndarray, np.ndarray]:
        """Products of int8 rows (M, K), up to a factor for each row of the matrix: Σ_k rows[m, k] · q[n, k] · s[n, g],
        (M, N); Σ_k q[n, k] · s[n, g], (1, N); and the factors, (1, N) or (1, 1). All float32.

        s is the scale; or 1, and the factor the scale, where a row has only one: the sums are integers then, exact
        below 2²⁴.
        """
        scale, factor = self.scale, np.ones((1, 1), np.float32)
        if self.row_scale is not None:
            scale, factor = np.ones(scale.shape, np.float32), self.row_scale.T
        parts = constant(self.values), constant(scale), constant(self.zero_point)
        ones = constant(np.ones((shape_of(rows)[0], 1), np.float32))
        product = node.emit(qnn.blockwise_dense_int8(rows, ones, *parts, self.dtype, self.group))
        return product, self.floats(scale).sum(axis=1, dtype=np.float64).astype(np.float32)[None], factor


def packed_matrix(node: Node, index: int, bfloat16_scales: bool = False) -> PackedMatrix | None:
    """A constant input as a matrix, all dimensions but the first as one.

    bfloat16_scales: round the scales of blocks, as XNNPACK does

    None if it is not quantized, or its scales or zero points are none of a `PackedMatrix`. Raises ModelFormatError,
    UnsupportedOperatorError where blocks contradict the matrix.
    """
    tensor = node.tensor(index)
    dtype = tensor.narrow or tensor.dtype
    if tensor.stored is None or dtype not in WIDTHS or not tensor.shape or 0 in tensor.shape:
        return None
    rows, depth = tensor.shape[0], math.prod(tensor.shape[1:])
    if tensor.blocks is not None:
        scale, group = _block_scales(node, tensor, rows, depth), tensor.blocks.size
        scale = bfloat16.bits_of(scale.astype(np.float32)) if bfloat16_scales else scale
        return PackedMatrix(_values(tensor, dtype, rows, depth), scale, np.zeros((), np.int32), dtype, depth, group)
    qparams = tensor.qparams
    if qparams is None or qparams.axis not in (None, 0):
        return None
    group = min(depth, LONGEST_GROUP)
    zero_point = _zero_points(qparams, dtype, (rows, groups_of(depth, group)))
    if zero_point is None:
        return None
    row_scale = np.broadcast_to(qparams.scale.astype(np.float32).reshape(-1, 1), (rows, 1))
    scale = np.repeat(row_scale, groups_of(depth, group), axis=1)
    return PackedMatrix(_values(tensor, dtype, rows, depth), scale, zero_point, dtype, depth, group, row_scale)


def _values(tensor: Tensor, dtype: str, rows: int, depth: int) -> np.ndarray:
    """The integers, each row from a byte of its own on."""
    assert tensor.stored is not None
    if depth * WIDTHS[dtype] % 8 == 0:
        return tensor.stored.reshape(-1).view(np.uint8).reshape(rows, packed_bytes(depth, dtype))
    return pack(unpack(tensor.stored, dtype, rows * depth).reshape(rows, depth), dtype)


def _zero_points(qparams: QParams, dtype: str, groups: tuple[int, int]) -> np.ndarray | None:
    """One zero point, or one for each group; None if they do not fit `dtype`."""
    values = qparams.zero_point.reshape(-1, 1)
    if (values == values[0]).all():
        return values[0].astype(np.int32).reshape(())
    low, high = narrow_range(dtype)
    return pack(np.broadcast_to(values, groups), dtype) if low <= values.min() and values.max() <= high else None


def _block_scales(node: Node, tensor: Tensor, rows: int, depth: int) -> np.ndarray:
    blocks, tensors = tensor.blocks, node.assembly.graph.tensors
    assert blocks is not None
    if not 0 <= blocks.scales < len(tensors):
        raise node.malformed(f"{tensor.label()}: its scales are tensor {blocks.scales} of {len(tensors)}")
    scales = tensors[blocks.scales]
    data = scales.data
    if data is None or scales.dtype not in ("float16", "float32"):
        raise node.malformed(f"{tensor.label()}: its scales, {scales.label()}, must be constants of float16 or float32")
    if depth % blocks.size or data.size != rows * depth // blocks.size:
        raise node.malformed(
            f"{tensor.label()}: {data.size} scales do not match shape {tensor.shape} in blocks of {blocks.size}"
        )
    if not np.isfinite(data).all():
        raise node.malformed(f"{tensor.label()}: its scales must be finite")
    if 0 < blocks.zero_points < len(tensors):
        zeros = tensors[blocks.zero_points].data
        if zeros is None or zeros.any():
            raise node.unsupported(f"{tensor.label()} with zero points of blocks, which LiteRT does not read")
    return data.reshape(rows, depth // blocks.size)
