"""DYNAMIC_UPDATE_SLICE, SCATTER_ND, SPARSE_TO_DENSE, SEGMENT_SUM, UNSORTED_SEGMENT_SUM and its kin, EMBEDDING_LOOKUP,
REVERSE_SEQUENCE, MATRIX_DIAG, MATRIX_SET_DIAG: elements written to, or read from, places that other tensors name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant, constant_value, shape_of
from ...reversal import reversed_sequences
from ...run_time import checked_indices
from ..integers import require_dtype, same_dtype
from ..node import Node
from ..registry import converter
from ..weights import packed_matrix, stays_packed
from .shape import block, check_elements, reshape

_INDICES = ("int32", "int64")


# ---- DYNAMIC_UPDATE_SLICE ----------------------------------------------------------------------------------------


@converter("DYNAMIC_UPDATE_SLICE", max_version=4)
def convert_dynamic_update_slice(node: Node) -> relax.Expr:
    """x with x[s₀:s₀+u₀, s₁:s₁+u₁, …] replaced by an update of shape (u₀, u₁, …). A start is moved so that the update
    stays inside."""
    shape, size, starts = node.shape(0), node.shape(1), node.shape(2)
    same_dtype(node, 0, 1)
    if len(size) != len(shape) or starts != (len(shape),) or any(u > n for u, n in zip(size, shape, strict=True)):
        raise node.malformed(f"an update of shape {size} at {starts} positions of data of shape {shape}")
    require_dtype(node, node.dtype(2), *_INDICES)
    room = np.array(shape, np.int64) - size
    start = node.emit(relax.op.clip(node.emit(relax.op.astype(node.input(2), "int64")), 0, int(room.max(initial=0))))
    start = node.emit(relax.op.minimum(start, constant(room)))
    known = constant_value(node.input(2))
    if known is not None:
        start = constant(np.clip(known.astype(np.int64), 0, room))
    update, mask, moving = node.input(1), None, np.flatnonzero(room)
    if len(moving) == 1:  # whole rows, as of a cache
        only = int(moving[0])
        first = block(node, start, [0], [only], [only + 1], [1])
        places = node.emit(relax.op.add(first, constant(np.arange(size[only], dtype=np.int64))))
        return qnn.write_rows(node.input(0), update, places, only)
    for axis in moving:
        update, inside = _spread(node, update, start, int(axis), shape[axis])
        mask = inside if mask is None else node.emit(relax.op.logical_and(mask, inside))
    return update if mask is None else relax.op.where(mask, update, node.input(0))


def _spread(node: Node, update: relax.Expr, start: relax.Expr, axis: int, size: int) -> tuple[relax.Expr, relax.Expr]:
    """The update along an axis of the data: for each place the element of the update that lands there, or any other
    one; and, as a tensor that broadcasts, whether one does."""
    rank, length = len(shape_of(update)), shape_of(update)[axis]
    check_elements(node, (size,), "folded")
    first = block(node, start, [0], [axis], [axis + 1], [1])
    place = node.emit(relax.op.subtract(constant(np.arange(size, dtype=np.int64)), first))
    taken = node.emit(relax.op.take(update, place, axis=axis, mode="clip"))
    inside = node.emit(
        relax.op.logical_and(
            node.emit(relax.op.greater_equal(place, constant(np.int64(0)))),
            node.emit(relax.op.less(place, constant(np.int64(length)))),
        )
    )
    return taken, reshape(node, inside, [size if number == axis else 1 for number in range(rank)])


# ---- SCATTER_ND, EMBEDDING_LOOKUP --------------------------------------------------------------------------------


@converter("SCATTER_ND", max_version=1)
def convert_scatter_nd(node: Node) -> relax.Expr:
    """out[indices[i…, 0], …, indices[i…, k − 1], q…] = Σ updates[i…, q…], and 0 elsewhere: stored values, whatever
    their zero point is."""
    indices, updates = node.shape(0), node.shape(1)
    shape = check_elements(node, node.integers(2), "folded")
    depth = indices[-1] if indices else 0
    if not 1 <= depth <= len(shape) or updates != (*indices[:-1], *shape[depth:]):
        raise node.malformed(f"indices of shape {indices} and updates of shape {updates} do not match a shape {shape}")
    dtype = node.dtype(1)
    require_dtype(node, node.dtype(0), "int32")
    require_dtype(node, dtype, "float32", "int8", "uint8", "int32", "int64", "bool")
    places = node.emit(relax.op.astype(checked_indices(node.emit, node.input(0), shape[:depth], node.label), "int64"))
    wide = "int32" if dtype in ("int8", "uint8", "bool") else dtype
    zeros = node.emit(relax.op.zeros(shape, wide))
    terms = node.emit(relax.op.astype(node.input(1), wide)) if wide != dtype else node.input(1)
    sums = node.emit(relax.op.scatter_nd(zeros, places, terms, "add"))
    return sums if wide == dtype else relax.op.astype(sums, dtype)


@converter("SPARSE_TO_DENSE", max_version=3)
def convert_sparse_to_dense(node: Node) -> relax.Expr:
    """out[indices[i]] = values[i], or one value for all, and a default value elsewhere; indices are numbers, or rows of
    them."""
    shape = check_elements(node, node.integers(1), "folded")
    given, values = node.shape(0), node.shape(2)
    count, depth = (given[0] if given else 1), (given[1] if len(given) == 2 else 1)
    if len(given) > 2 or depth != len(shape) or values not in ((), (count,)) or node.shape(3) not in ((), (1,)):
        raise node.malformed(f"indices of shape {given} and values of shape {values} do not match a shape {shape}")
    require_dtype(node, node.dtype(0), *_INDICES)
    require_dtype(node, same_dtype(node, 2, 3), "float32", "int8", "uint8", "int32", "int64")
    rows = reshape(node, node.input(0), [count, depth])
    places = node.emit(relax.op.astype(checked_indices(node.emit, rows, shape, node.label), "int64"))
    filled = node.emit(relax.op.broadcast_to(reshape(node, node.input(3), []), list(shape)))
    terms = node.emit(relax.op.broadcast_to(node.input(2), [count]))
    return relax.op.scatter_nd(filled, places, terms, "update")


_SEGMENTS = {"SUM": "add", "PROD": "mul", "MAX": "max", "MIN": "min"}


@converter(*(f"UNSORTED_SEGMENT_{kind}" for kind in _SEGMENTS), max_version=1)
def convert_unsorted_segment(node: Node) -> relax.Expr:
    """out[s, q…] = Σ data[i…, q…] over all i with segments[i…] = s, or the product or an extreme; of none, what leaves
    a value as it is. Rows of negative segments belong to none."""
    shape, segments = node.shape(0), node.shape(1)
    (count,) = node.integers(2) if len(node.integers(2)) == 1 else (-1,)
    if count < 1 or not segments or shape[: len(segments)] != segments:
        raise node.malformed(f"{count} segments, named by a tensor of shape {segments}, of data of shape {shape}")
    require_dtype(node, node.dtype(0), "float32", "int32")
    require_dtype(node, node.dtype(1), "int32")
    kind, dtype = node.operator.name.removeprefix("UNSORTED_SEGMENT_"), np.dtype(node.dtype(0))
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    neutral = {"SUM": 0, "PROD": 1, "MAX": limits.min, "MIN": limits.max}[kind]
    rest = shape[len(segments) :]
    check_elements(node, (count + 1, *rest), "folded")
    lowest = int(np.iinfo(np.int32).min)
    checked = node.emit(qnn.check_bounds(node.input(1), [lowest], [count - 1], node.label))
    is_none = node.emit(relax.op.less(checked, constant(np.int32(0))))
    places = node.emit(relax.op.where(is_none, constant(np.int32(count)), checked))  # a row that is cut off
    places = reshape(node, node.emit(relax.op.astype(places, "int64")), [*segments, 1])
    start = node.emit(relax.op.full([count + 1, *rest], constant(np.asarray(neutral, dtype)), str(dtype)))
    found = node.emit(relax.op.scatter_nd(start, places, node.input(0), _SEGMENTS[kind]))
    return block(node, found, [0], [0], [count], [1])


@converter("SEGMENT_SUM", max_version=1)
def convert_segment_sum(node: Node) -> relax.Expr:
    """out[s] = Σ data[i] over all i with segments[i] = s; the constant segments are in order and end with the last
    row's."""
    shape, segments = node.shape(0), node.integers(1)
    if not segments or node.shape(1) != shape[:1] or segments != sorted(segments) or segments[0] < 0:
        raise node.malformed(f"segments {segments[:8]} of data of shape {shape}")
    require_dtype(node, node.dtype(0), "float32", "int32")
    result = check_elements(node, (segments[-1] + 1, *shape[1:]), "folded")
    places = constant(np.array(segments, np.int64).reshape(-1, 1))
    zeros = node.emit(relax.op.zeros(result, node.dtype(0)))
    return relax.op.scatter_nd(zeros, places, node.input(0), "add")


@converter("EMBEDDING_LOOKUP", max_version=5)
def convert_embedding_lookup(node: Node) -> relax.Expr:
    """The rows of a table; those of a quantized table become real values where the result is float."""
    shape = node.shape(1)
    if len(node.shape(0)) != 1 or not shape or not shape[0]:
        raise node.malformed(f"row numbers of shape {node.shape(0)} for a table of shape {shape}")
    require_dtype(node, node.dtype(0), *_INDICES)
    rows = checked_indices(node.emit, node.input(0), shape[0], node.label)
    if stays_packed(node.tensor(1)):
        return _packed_rows(node, rows)
    taken = node.emit(relax.op.take(node.input(1), rows, axis=0, mode="clip"))
    if node.dtype(1) == node.output_tensor().dtype:
        return taken
    if node.output_tensor().dtype != "float32" or not node.is_quantized(1) or node.qparams(1).zero_point.any():
        raise node.unsupported(f"a table of {node.dtype(1)} and a result of {node.output_tensor().dtype}")
    qparams = node.qparams(1)
    scale = constant(qparams.scale.astype(np.float32))
    if qparams.per_channel:
        if qparams.axis != 0:
            raise node.unsupported(f"scales along axis {qparams.axis} of the table; they must be one for each row")
        scale = node.emit(relax.op.take(scale, rows, axis=0, mode="clip"))
        scale = reshape(node, scale, [shape_of(rows)[0], *[1] * (len(shape) - 1)])
    return relax.op.multiply(node.emit(relax.op.astype(taken, "float32")), scale)


def _packed_rows(node: Node, rows: relax.Expr) -> relax.Expr:
    """Rows of a table that stays packed, as floats."""
    dtype, table = node.output_tensor().dtype, packed_matrix(node, 1)
    if dtype not in ("float32", "float16") or table is None or table.zero_point.any():
        raise node.unsupported(
            f"a table of {node.tensor(1).narrow} and a result of {dtype}; rows must have scales, without zero points, "
            "and the result be float32 or float16"
        )
    taken = node.emit(relax.op.take(table.dequantized(node), rows, axis=0, mode="clip"))
    taken = reshape(node, taken, [shape_of(rows)[0], *node.shape(1)[1:]])
    return taken if dtype == "float32" else relax.op.astype(taken, dtype)


# ---- REVERSE_SEQUENCE --------------------------------------------------------------------------------------------


@converter("REVERSE_SEQUENCE", max_version=1)
def convert_reverse_sequence(node: Node) -> relax.Expr:
    """For each sample b, its first lengths[b] steps in reverse order, the others as they are."""
    shape, rank = node.shape(0), len(node.shape(0))
    steps, batch = int(node.options["seq_dim"]), int(node.options["batch_dim"])
    if not (0 <= steps < rank and 0 <= batch < rank and steps != batch) or node.shape(1) != (shape[batch],):
        raise node.malformed(f"sequences along axis {steps}, samples along axis {batch} of data of shape {shape}")
    require_dtype(node, node.dtype(0), "float32", "uint8", "int16", "int32", "int64")
    require_dtype(node, node.dtype(1), *_INDICES)
    lengths = checked_indices(node.emit, node.input(1), shape[steps] + 1, node.label)
    return reversed_sequences(node.emit, node.input(0), lengths, steps, batch)


# ---- MATRIX_DIAG, MATRIX_SET_DIAG --------------------------------------------------------------------------------


def _with_diagonal(node: Node, matrices: relax.Expr, diagonals: relax.Expr, shape: Sequence[int]) -> relax.Expr:
    """Matrices of a shape with other elements on their main diagonals, a vector for each."""
    *batch, rows, columns = check_elements(node, shape, "folded")
    vector = reshape(node, diagonals, [*batch, min(rows, columns), 1])
    if rows > columns:
        vector = node.emit(relax.op.nn.pad(vector, [*[0] * (2 * len(batch)), 0, rows - columns, 0, 0]))
    return relax.op.where(constant(np.eye(rows, columns, dtype=bool)), vector, matrices)


@converter("MATRIX_DIAG", max_version=1)
def convert_matrix_diag(node: Node) -> relax.Expr:
    """Square matrices with these diagonals and zeros elsewhere."""
    shape, dtype = node.shape(0), node.dtype()
    if not shape:
        raise node.malformed("a diagonal without dimensions")
    return _with_diagonal(node, constant(np.zeros((), dtype)), node.input(0), [*shape, shape[-1]])


@converter("MATRIX_SET_DIAG", max_version=1)
def convert_matrix_set_diag(node: Node) -> relax.Expr:
    """Matrices with these main diagonals."""
    shape, diagonal = node.shape(0), node.shape(1)
    same_dtype(node, 0, 1)
    if len(shape) < 2 or diagonal != (*shape[:-2], min(shape[-2:])):
        raise node.malformed(f"diagonals of shape {diagonal} for matrices of shape {shape}")
    return _with_diagonal(node, node.input(0), node.input(1), shape)
