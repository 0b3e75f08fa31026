"""What a framework refuses when it runs: an index out of range, an integer divided by zero. Constants are judged at
import, other values by checks of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tvm import relax

from .. import op as qnn
from ..errors import ModelFormatError
from ..op.base import constant, constant_value

Emit = Callable[[relax.Expr], relax.Expr]


def checked_indices(
    emit: Emit, indices: relax.Expr, lengths: int | Sequence[int], label: str, negative: bool = False
) -> relax.Expr:
    """Indices that lie within 0 … length − 1, or, where `negative` ones count from the end, −length … length − 1; those
    are turned into the former.

    lengths: of the axis that is indexed, or a sequence with one for each element along the last axis of `indices`.
    label: the node. Raises ModelFormatError where constant indices lie outside.
    """
    sizes = [int(size) for size in lengths] if isinstance(lengths, Sequence) else [int(lengths)]
    lowest = [-size if negative else 0 for size in sizes]
    known = constant_value(indices)
    if known is not None:
        wide = known.astype(np.int64)
        outside = (wide < np.array(lowest)) | (wide >= np.array(sizes))
        if outside.any():
            found = sorted({int(value) for value in wide[outside]})[0]
            ranges = ", ".join(f"{low} … {size - 1}" for low, size in zip(lowest, sizes, strict=True))
            raise ModelFormatError(f"{label}: index {found} is out of range {ranges}")
        return constant(np.where(wide < 0, wide + np.array(sizes), wide).astype(known.dtype)) if negative else indices
    highest = [size - 1 for size in sizes]
    checked = emit(qnn.check_bounds(indices, lowest, highest, label))
    dtype = str(indices.ty.dtype)
    if not negative or dtype.startswith("u"):
        return checked
    if max(sizes) - 1 > np.iinfo(dtype).max:  # int8 indices of a longer axis
        checked, dtype = emit(relax.op.astype(checked, "int64")), "int64"
    size = np.asarray(sizes if len(sizes) > 1 else sizes[0], dtype)
    from_end = emit(relax.op.less(checked, constant(np.zeros((), dtype))))
    return emit(relax.op.where(from_end, emit(relax.op.add(checked, constant(size))), checked))


def checked_divisor(emit: Emit, divisor: relax.Expr, label: str, zero: int = 0) -> relax.Expr:
    """A divisor of integers, which must not be `zero`, 0 or a zero point; of floats, which may be anything.

    label: the node. Raises ModelFormatError where a constant one is.
    """
    if not str(divisor.ty.dtype).startswith(("int", "uint")):
        return divisor
    known = constant_value(divisor)
    if known is None:
        return emit(qnn.check_divisor(divisor, label, zero))
    if (known == zero).any():
        raise ModelFormatError(f"{label}: integer division by a constant zero")
    return divisor
