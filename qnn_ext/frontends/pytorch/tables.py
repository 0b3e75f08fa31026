"""Tables of embeddings whose rows are integers of 8, 4 or 2 bits, each row with a scale and an offset of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from ... import op as qnn
from ...errors import ModelFormatError
from ...op.base import constant, shape_of
from ...op.compound import reshape
from ...passes.rewrite import Emit
from ..run_time import checked_indices
from .bags import members, sums

BITS = {"byte": 8, "4bit": 4, "2bit": 2}
"""By PyTorch's names: of operators that take tables as bytes."""


@dataclass(frozen=True)
class Table:
    """Rows q · scale + offset in float32, rounded once.

    values: uint8 (rows, bytes), in each byte 8 / bits values from the lowest bits up; scale, offset: float32 (rows,)
    """

    values: np.ndarray
    scale: np.ndarray
    offset: np.ndarray
    bits: int

    def rows(self, emit: Emit, indices: relax.Expr) -> relax.Expr:
        """The rows at indices (count,), which must be within the table: float32 (count, width)."""
        (count,) = shape_of(indices)
        q = emit(relax.op.take(constant(self.values), indices, axis=0, mode="clip"))
        if self.bits < 8:
            shifts = constant(np.arange(0, 8, self.bits, dtype=np.uint8))
            shifted = emit(relax.op.right_shift(reshape(q, (*shape_of(q), 1), emit), shifts))
            q = emit(relax.op.bitwise_and(shifted, constant(np.uint8(2**self.bits - 1))))
            q = reshape(q, (count, self.values.shape[1] * 8 // self.bits), emit)

        def column(values: np.ndarray) -> relax.Expr:
            return emit(relax.op.take(constant(values[:, None]), indices, axis=0, mode="clip"))

        return emit(qnn.fma(emit(relax.op.astype(q, "float32")), column(self.scale), column(self.offset)))


def of_bytes(packed: np.ndarray, bits: int, label: str) -> Table:
    """The table in the layout of PyTorch's `embedding_bag_*_prepack`: at the end of each row its scale and its offset,
    of float32 for 8 bits, else of float16. Raises ModelFormatError."""
    dtype = np.dtype(np.float32 if bits == 8 else np.float16)
    if packed.dtype != np.uint8 or packed.ndim != 2 or packed.shape[1] < 2 * dtype.itemsize:
        raise ModelFormatError(f"{label}: a table of {packed.dtype} {packed.shape} holds no rows of {bits} bits")
    values, last = np.split(packed, [packed.shape[1] - 2 * dtype.itemsize], axis=1)
    scale, offset = np.ascontiguousarray(last).view(dtype).astype(np.float32).T
    return Table(values, scale, offset, bits)


def looked_up(emit: Emit, table: Table, indices: relax.Expr, label: str) -> relax.Expr:
    """The rows at any indices, one after the other: float32 (count, width)."""
    flat = reshape(indices, (int(np.prod(shape_of(indices))),), emit)
    return table.rows(emit, checked_indices(emit, flat, len(table.values), label))


def bags_of(
    emit: Emit,
    table: Table,
    indices: relax.Expr,
    offsets: relax.Expr | None,
    weights: relax.Expr | None,
    kept: np.ndarray | None,
    closed: bool,
    label: str,
) -> relax.Expr:
    """Sums of rows, each times its weight if there are any: of each row of indices, or of those between two offsets.

    kept: for each index its row in the table, −1 for a row that was pruned and counts as zeros; None or [0] where all
    rows are there. closed: as in `members`. Raises ModelFormatError
    """
    shape = shape_of(indices)
    count = int(np.prod(shape))
    flat = reshape(indices, (count,), emit)
    if offsets is None:
        offsets = constant(np.arange(shape[0], dtype=np.int64) * shape[-1])
    inside = members(emit, offsets, count, closed)
    if kept is None or (len(kept) == 1 and kept[0] == 0):
        rows = looked_up(emit, table, flat, label)
    else:
        places = checked_indices(emit, flat, len(kept), label)
        found = emit(relax.op.take(constant(_checked(kept, len(table.values), label)), places, axis=0, mode="clip"))
        inside = emit(relax.op.logical_and(inside, emit(relax.op.greater_equal(found, constant(np.int32(0))))))
        rows = table.rows(emit, emit(relax.op.maximum(found, constant(np.int32(0)))))
    if weights is not None:
        weights = reshape(weights, (count,), emit)
    return sums(emit, rows, inside, weights)


def _checked(kept: np.ndarray, rows: int, label: str) -> np.ndarray:
    if kept.dtype != np.int32 or kept.ndim != 1 or (kept.size and (kept.min() < -1 or kept.max() >= rows)):
        raise ModelFormatError(f"{label}: compressed_indices_mapping must hold int32 from -1 to {rows - 1}")
    return kept
