"""MatMulBnb4 of com.microsoft: weights of 4 bits whose values are those of a table, as bitsandbytes writes them."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....limits import check_elements
from ....op.base import constant
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import cast

_FP4_HALF = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_TABLES = {
    0: np.array([*_FP4_HALF, *(-value for value in _FP4_HALF)], np.float32),
    1: np.array(
        [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
        + [-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725]
        + [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0],
        np.float32,
    ),
}
"""What each of the 16 codes stands for: quant_type 0, FP4; 1, NF4, the quantiles of a normal distribution."""


@converter("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(node: Node) -> relax.Expr:
    """A · Bᵀ, B (N, K) = table[code] · absmax of its block: blocks of B's elements in order, across rows.

    Two codes are in a byte, the first in its upper half. The table's steps are uneven, so that B has no integers to
    multiply: it is unpacked, and the product is in float32, as ONNX Runtime's.
    """
    columns, depth, block = (node.attribute(name) for name in ("N", "K", "block_size"))
    if not all(isinstance(size, int) and size > 0 for size in (columns, depth, block)):
        raise node.malformed(f"N, K and block_size must be positive, found {columns}, {depth} and {block}")
    table = _TABLES.get(node.attribute("quant_type"))
    if table is None:
        raise node.malformed(f"quant_type must be 0 (FP4) or 1 (NF4), found {node.attribute('quant_type')}")
    if not node.attribute("transB", 1):
        raise node.unsupported("weights that are not transposed (transB = 0)")
    if node.shape(0)[-1:] != (depth,):
        raise node.malformed(f"A must have {depth} columns (K), found shape {node.shape(0)}")
    count = columns * depth
    check_elements((count,), node.label)
    packed, largest = node.constant(1).reshape(-1), node.constant(2).reshape(-1)
    if packed.dtype != np.uint8 or packed.size != -(-count // 2) or largest.size != -(-count // block):
        raise node.malformed(
            f"{count} weights in blocks of {block} need {-(-count // 2)} bytes and {-(-count // block)} scales, found "
            f"{packed.size} of {packed.dtype} and {largest.size}"
        )
    codes = np.stack([packed >> 4, packed & 15], 1).reshape(-1)[:count]
    weight = table[codes] * np.repeat(largest.astype(np.float32), block)[:count]
    node.note("the 4-bit codes of its weights stand for the values of a table, not for integers")
    turned = constant(np.ascontiguousarray(weight.reshape(columns, depth).T))
    product = node.emit(relax.op.matmul(cast(node, node.input(0), "float32"), turned))
    return cast(node, product, node.dtype(0))
