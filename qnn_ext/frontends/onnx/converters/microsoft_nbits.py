"""Weights of 2, 4 and 8 bits in blocks, of com.microsoft: MatMulNBits, GatherBlockQuantized."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from .... import op as qnn
from ....numerics.packed import WIDTHS, pack, packed_bytes, unpack
from ....op import compound
from ....op.base import constant, shape_of
from ....op.blockwise import LONGEST_GROUP
from ..indices import index_input
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import cast, number, over, plus, times

DTYPES = {WIDTHS[dtype]: dtype for dtype in ("uint2", "uint4", "uint8")}
INT8_ACTIVATIONS = 4
"""The accuracy_level at which activations are quantized."""
MOST_PADDING = 4
"""How many times K the columns may become if a g_idx makes blocks of different lengths."""
LEAST_INT8_BLOCK = {2: 32, 4: 16, 8: 16}
"""The smallest block for which ONNX Runtime does so, by bits."""
LARGEST_INT8_BLOCK = 256
"""The largest one. It divides longer ones."""


@dataclass(frozen=True)
class BlockedWeight:
    """A weight, as B of MatMulNBits: (N, K) integers of `dtype`, packed, and the scales and zero points (N, blocks) of
    its blocks.

    order: the column of A that each column of the weight belongs to, K for one of zeros; None if they are in order
    """

    packed: np.ndarray
    scale: np.ndarray
    zero_point: np.ndarray
    dtype: str
    block: int
    order: np.ndarray | None = None

    @property
    def parts(self) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
        """The three tensors as constants."""
        return constant(self.packed), constant(self.scale), constant(self.zero_point)


@converter("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(node: Node) -> relax.Expr:
    """A · Bᵀ + bias, with 2-, 4- or 8-bit weights B in blocks along K, which stay packed.

    With accuracy_level 4, ONNX Runtime's CPU kernels quantize each row of A block by block, symmetrically to int8, and
    add products within a block as integers; so does this, and differs from it only where sums of floats are rounded. At
    the other levels it multiplies in float32, also if zero points are floats, if there is a g_idx, or if 2-bit weights
    are in blocks of 16.
    """
    bits, block = node.attribute("bits", 4), node.attribute("block_size", 32)
    columns, depth = node.attribute("N"), node.attribute("K")
    if bits not in DTYPES:
        raise node.unsupported(f"weights of {bits} bits")
    if not isinstance(block, int) or not 16 <= block <= LONGEST_GROUP or block & (block - 1):
        raise node.malformed(f"block_size must be a power of two from 16 on, found {block}")
    if not all(isinstance(size, int) and size > 0 for size in (columns, depth)):
        raise node.malformed(f"N and K must be positive, found {columns} and {depth}")
    shape, dtype = node.shape(0), node.dtype(0)
    if not shape or shape[-1] != depth:
        raise node.malformed(f"A must have {depth} columns (K), found shape {shape}")
    weight = _weight(node, columns, depth, bits, block)
    rows = cast(node, compound.reshape(node.input(0), (math.prod(shape[:-1]), depth), node.emit), "float32")
    if weight.order is not None:
        if weight.order.max() == depth:  # a column of zeros behind the others
            rows = node.emit(relax.op.nn.pad(rows, [0, 0, 0, 1]))
        rows = node.emit(relax.op.take(rows, constant(weight.order), 1))
    integers = weight.order is None and weight.zero_point.dtype.kind != "f"
    if node.attribute("accuracy_level", 0) == INT8_ACTIVATIONS and integers and block >= LEAST_INT8_BLOCK[bits]:
        product = of_int8(node, rows, weight)
    else:
        node.note(f"its activations are floats: they are multiplied by {bits}-bit weights in float32")
        product = node.emit(qnn.blockwise_dense(rows, *weight.parts, weight.dtype, weight.block))
    if node.has_input(5):
        product = plus(node, product, cast(node, node.input(5), "float32"))
    return cast(node, compound.reshape(product, (*shape[:-1], columns), node.emit), dtype)


@converter("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(node: Node) -> relax.Expr:
    """Rows of a matrix with blocks along its rows, as of an embedding: they are taken packed, and then dequantized."""
    axes = node.attribute("gather_axis", 0), node.attribute("quantize_axis", 1)
    bits, block, dtype = node.attribute("bits", 4), node.attribute("block_size", 128), node.onnx_dtype(0)
    packed = node.constant(0)
    if packed.ndim != 2 or axes not in ((0, 1), (0, -1), (-2, 1), (-2, -1)):
        raise node.unsupported(f"axes other than rows and columns of a matrix, found {axes} and shape {packed.shape}")
    if not isinstance(block, int) or not 16 <= block <= LONGEST_GROUP or block & (block - 1):
        raise node.malformed(f"block_size must be a power of two from 16 on, found {block}")
    shared = 0
    if dtype == "uint8":
        if bits not in DTYPES:
            raise node.unsupported(f"data of {bits} bits")
        dtype, shared, depth = DTYPES[bits], 1 << (bits - 1), packed.shape[1] * 8 // bits
    elif dtype in ("int4", "uint4"):
        packed, depth = pack(packed, dtype), packed.shape[1]
    else:
        raise node.unsupported(f"data of {dtype}")
    rows, blocks = len(packed), -(-depth // block)
    scale = finite(node, _sized(node, 2, "scales", (rows, blocks)), "scales")
    zero_point = np.asarray(shared, np.int32)
    if node.has_input(3):
        held = node.onnx_dtype(3) == "uint8"
        zero_point = _sized(node, 3, "zero_points", (rows, packed_bytes(blocks, dtype) if held else blocks))
        zero_point = zero_point if held else pack(zero_point, dtype)
    parts = constant(packed), constant(scale), constant(zero_point)
    table = node.emit(qnn.blockwise_dequantize(*parts, depth, dtype, block))
    taken = node.emit(relax.op.take(table, index_input(node, 1, rows, negative=True), 0, mode="clip"))
    return cast(node, taken, node.dtype(2))


# ---- weights -----------------------------------------------------------------------------------------------------


def _weight(node: Node, columns: int, depth: int, bits: int, block: int) -> BlockedWeight:
    dtype, blocks = DTYPES[bits], -(-depth // block)
    packed = _sized(node, 1, "B", (columns, blocks * block * bits // 8))
    if packed.dtype != np.uint8:
        raise node.malformed(f"B must be uint8, found {packed.dtype}")
    scale = finite(node, _sized(node, 2, "scales", (columns, blocks)), "scales")
    zero_point = np.asarray(1 << (bits - 1), np.int32)
    if node.has_input(3):
        if node.dtype(3) == "uint8":
            zero_point = _sized(node, 3, "zero_points", (columns, packed_bytes(blocks, dtype)))
        else:
            zero_point = finite(node, _sized(node, 3, "zero_points", (columns, blocks)), "zero_points")
    found = _order(node, blocks, block) if node.has_input(4) and node.shape(4) != (0,) else None
    if found is None:
        return BlockedWeight(packed[:, : packed_bytes(depth, dtype)], scale, zero_point, dtype, block)
    order, block = found
    values = np.pad(unpack(packed, dtype, depth), ((0, 0), (0, 1)))
    return BlockedWeight(pack(values[:, order], dtype), scale, zero_point, dtype, block, order)


def _sized(node: Node, index: int, name: str, shape: tuple[int, int]) -> np.ndarray:
    """A constant input with as many elements as a matrix of `shape`, as that matrix."""
    value = node.constant(index)
    if value.size != math.prod(shape):
        raise node.malformed(
            f"{name} must have {shape[0]} × {shape[1]} elements to fit the other inputs and attributes "
            f"({node.attribute('bits', 4)} bits, blocks of {node.attribute('block_size')}), found shape {value.shape}"
        )
    return value.reshape(shape)


def finite(node: Node, values: np.ndarray, name: str) -> np.ndarray:
    """Floats, in float32 unless they are float16."""
    if values.dtype != np.float16:
        values = values.astype(np.float32)
    if not np.isfinite(values).all():
        raise node.malformed(f"{name} must be finite")
    return values


def _order(node: Node, blocks: int, block: int) -> tuple[np.ndarray, int] | None:
    """The columns of A block by block, as g_idx assigns them, and the length of a block; None if that is their order.

    Blocks of different lengths are filled up to the longest with column K, which is zeros.
    """
    groups = np.asarray(node.integers(4))
    depth = node.attribute("K")
    if groups.shape != (depth,) or groups.min() < 0 or groups.max() >= blocks:
        raise node.malformed(f"g_idx must have K = {depth} elements between 0 and {blocks - 1}")
    if np.array_equal(groups, np.arange(depth) // block):
        return None
    order = np.argsort(groups, kind="stable")
    if np.array_equal(groups[order], np.arange(depth) // block):
        return order.astype(np.int32), block
    sizes = np.bincount(groups, minlength=blocks)
    longest = int(sizes.max())
    if blocks * longest > MOST_PADDING * depth or longest > LONGEST_GROUP:
        raise node.unsupported(
            f"a g_idx with {longest} of K = {depth} columns in one of {blocks} blocks: quantize with blocks of one "
            "length, as tools do by default"
        )
    padded = np.full((blocks, longest), depth, np.int32)
    padded[groups[order], np.arange(depth) - np.repeat(np.cumsum(sizes) - sizes, sizes)] = order
    return padded.reshape(-1), longest


# ---- activations -------------------------------------------------------------------------------------------------


def of_int8(node: Node, rows: relax.Expr, weight: BlockedWeight) -> relax.Expr:
    """rows · weightᵀ, with the rows quantized block by block."""
    weight = _divided(weight, shape_of(rows)[1])
    data, data_scale = _quantized(node, rows, weight.block)
    return node.emit(qnn.blockwise_dense_int8(data, data_scale, *weight.parts, weight.dtype, weight.block))


def _divided(weight: BlockedWeight, depth: int) -> BlockedWeight:
    """The same weight in blocks of no more than the largest."""
    if weight.block <= LARGEST_INT8_BLOCK:
        return weight
    blocks, each = -(-depth // LARGEST_INT8_BLOCK), weight.block // LARGEST_INT8_BLOCK
    zero_point = weight.zero_point
    if zero_point.ndim:
        zeros = unpack(zero_point, weight.dtype, weight.scale.shape[1])
        zero_point = pack(np.repeat(zeros, each, axis=1)[:, :blocks], weight.dtype)
    scale = np.ascontiguousarray(np.repeat(weight.scale, each, axis=1)[:, :blocks])
    return replace(weight, scale=scale, zero_point=zero_point, block=LARGEST_INT8_BLOCK)


def _quantized(node: Node, rows: relax.Expr, block: int) -> tuple[relax.Expr, relax.Expr]:
    """Each block of a row as int8, and its scale: s = max |x| / 127, q = rint(x · (127 / max |x|)), zeros as zeros."""
    count, depth = shape_of(rows)
    blocks = -(-depth // block)
    if blocks * block != depth:
        rows = node.emit(relax.op.nn.pad(rows, [0, 0, 0, blocks * block - depth]))
    parts = compound.reshape(rows, (count, blocks, block), node.emit)
    extent = node.emit(relax.op.max(node.emit(relax.op.abs(parts)), -1, True))
    zero = number(0)
    inverse = node.emit(
        relax.op.where(node.emit(relax.op.greater(extent, zero)), over(node, number(127), extent), zero)
    )
    steps = node.emit(qnn.quantize(times(node, parts, inverse), 1.0, 0, out_dtype="int8"))
    data = compound.reshape(steps, (count, blocks * block), node.emit)
    if blocks * block != depth:
        data = node.emit(relax.op.strided_slice(data, [1], [0], [depth]))
    return data, compound.reshape(over(node, extent, number(127)), (count, blocks), node.emit)
