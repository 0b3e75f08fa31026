"""Errors that a framework raises at run time: an index out of range, an integer division by zero. Constants are checked
at import, other values by checks in the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from .. import op as qnn
from ..errors import ModelFormatError, UnsupportedOperatorError
from ..op.base import constant, constant_value

Emit = Callable[[relax.Expr], relax.Expr]


def checked_indices(
    emit: Emit, indices: relax.Expr, lengths: int | Sequence[int], label: str, negative: bool = False
) -> relax.Expr:
    """Indices within 0 … length − 1, or, where `negative` ones count from the end, −length … length − 1, which are
    mapped to the former.

    lengths: the length of the indexed axis, or a sequence with one length per element along the last axis of `indices`.
    label: the node. Raises ModelFormatError when constant indices are out of range.
    """
    sizes = [int(size) for size in lengths] if isinstance(lengths, Sequence) else [int(lengths)]
    lowest = [-size if negative else 0 for size in sizes]
    length = np.array(sizes if len(sizes) > 1 else sizes[0])
    known = constant_value(indices)
    if known is not None:
        wide = known.astype(np.int64)
        outside = (wide < np.array(lowest)) | (wide >= np.array(sizes))
        if outside.any():
            found = sorted({int(value) for value in wide[outside]})[0]
            ranges = ", ".join(f"{low} … {size - 1}" for low, size in zip(lowest, sizes, strict=True))
            raise ModelFormatError(f"{label}: index {found} is out of range {ranges}")
        return constant(np.where(wide < 0, wide + length, wide).astype(known.dtype)) if negative else indices
    highest = [size - 1 for size in sizes]
    checked = emit(qnn.check_bounds(indices, lowest, highest, label))
    dtype = str(indices.ty.dtype)
    if not negative or dtype.startswith("u"):
        return checked
    if max(sizes) - 1 > np.iinfo(dtype).max:  # int8 indices into a longer axis
        checked, dtype = emit(relax.op.astype(checked, "int64")), "int64"
    from_end = emit(relax.op.less(checked, constant(np.zeros((), dtype))))
    return emit(relax.op.where(from_end, emit(relax.op.add(checked, constant(length.astype(dtype)))), checked))


def check_count(count: int, length: int, label: str) -> None:
    """Raises ModelFormatError when more of the largest values are asked for than a row has: TVM would read past its
    end; and UnsupportedOperatorError for none of them, which TVM takes for all.

    label: the node
    """
    if not 0 <= count <= length:
        raise ModelFormatError(f"{label}: k must be from 1 to {length}, found {count}")
    if count == 0 < length:
        raise UnsupportedOperatorError(f"{label}: k is 0, which leaves nothing to compute; take this out of the model")


def checked_divisor(emit: Emit, divisor: relax.Expr, label: str, zero: int = 0) -> relax.Expr:
    """A divisor: among integers it must not equal `zero`, which is 0 or a zero point; among floats it may be anything.

    label: the node. Raises ModelFormatError when a constant divisor does.
    """
    if not str(divisor.ty.dtype).startswith(("int", "uint")):
        return divisor
    known = constant_value(divisor)
    if known is None:
        return emit(qnn.check_divisor(divisor, label, zero))
    if (known == zero).any():
        raise ModelFormatError(f"{label}: integer division by a constant zero")
    return divisor
