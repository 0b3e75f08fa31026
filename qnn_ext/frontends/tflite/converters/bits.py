"""BITWISE_XOR, RIGHT_SHIFT and BITCAST."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant, shape_of
from ....op.bitcast import DTYPES
from ..integers import require_dtype, same_dtype
from ..node import Node
from ..registry import converter
from .shape import check_elements

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")


@converter("BITWISE_XOR", max_version=1)
def convert_bitwise_xor(node: Node) -> relax.Expr:
    """The bits in which the operands differ."""
    require_dtype(node, same_dtype(node, 0, 1), *_INTEGERS)
    return relax.op.bitwise_xor(node.input(0), node.input(1))


@converter("RIGHT_SHIFT", max_version=1)
def convert_right_shift(node: Node) -> relax.Expr:
    """x >> n with x's sign; n counts as at least 0 and at most one bit less than x has."""
    dtype = same_dtype(node, 0, 1)
    require_dtype(node, dtype, *_INTEGERS)
    most = np.iinfo(dtype).bits - 1
    bits = node.emit(relax.op.minimum(node.input(1), constant(np.array(most, dtype))))
    bits = node.emit(relax.op.maximum(bits, constant(np.array(0, dtype))))
    return relax.op.right_shift(node.input(0), bits)


@converter("BITCAST", max_version=1)
def convert_bitcast(node: Node) -> relax.Expr:
    """The same bits as numbers of another dtype: narrower ones have a dimension more, the last, with the lowest bits
    first; wider ones have one less."""
    source, target = node.dtype(0), node.output_tensor().dtype
    for dtype in (source, target):
        require_dtype(node, dtype, *DTYPES)
    size, wanted = np.dtype(source).itemsize, np.dtype(target).itemsize
    if size == wanted:
        return qnn.bitcast(node.input(0), target)
    return (_split if size > wanted else _joined)(node, node.input(0), size, wanted, target)


def _split(node: Node, data: relax.Expr, size: int, wanted: int, target: str) -> relax.Expr:
    count, emit = size // wanted, node.emit
    check_elements(node, (*shape_of(data), count))
    wide, narrow = f"uint{8 * size}", f"uint{8 * wanted}"
    bits = emit(relax.op.expand_dims(emit(qnn.bitcast(data, wide)), [len(shape_of(data))]))
    shifts = constant(np.arange(count, dtype=wide) * np.array(8 * wanted, wide))
    parts = emit(relax.op.bitwise_and(emit(relax.op.right_shift(bits, shifts)), _mask(wanted, wide)))
    return qnn.bitcast(emit(relax.op.astype(parts, narrow)), target)


def _joined(node: Node, data: relax.Expr, size: int, wanted: int, target: str) -> relax.Expr:
    shape, count, emit = shape_of(data), wanted // size, node.emit
    if not shape or shape[-1] != count:
        raise node.malformed(f"numbers of {size} bytes with shape {shape} do not form numbers of {wanted}")
    wide = f"uint{8 * wanted}"
    bits = emit(relax.op.astype(emit(qnn.bitcast(data, f"uint{8 * size}")), wide))
    parts = emit(relax.op.left_shift(bits, constant(np.arange(count, dtype=wide) * np.array(8 * size, wide))))
    return qnn.bitcast(emit(relax.op.sum(parts, [len(shape) - 1])), target)  # no two of them have a bit in common


def _mask(size: int, dtype: str) -> relax.Expr:
    return constant(np.array((1 << 8 * size) - 1, dtype))
