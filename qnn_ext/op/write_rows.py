"""qnn.write_rows: rows of a tensor replaced at positions known only at run time, as a key-value cache is updated.

Where the tensor is a state that nothing reads any more, a program writes into the state's own memory and copies
nothing, see `compiling.program.in_place`.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo, rows: TensorInfo, positions: TensorInfo, *, axis: int, copies: bool) -> tuple[Shape, str]:
    check_dtype(rows, data.dtype)
    check_dtype(positions, "int32", "int64")
    if not 0 <= axis < data.ndim:
        raise ShapeError(f"axis must be from 0 to {data.ndim - 1}, found {axis}")
    count = rows.shape[axis] if rows.ndim == data.ndim else None
    if count is None or tuple(rows.shape) != (*data.shape[:axis], count, *data.shape[axis + 1 :]):
        raise ShapeError(f"rows {rows.shape} must have the shape of data {data.shape}, but for axis {axis}")
    if tuple(positions.shape) not in ((count,), *([(data.shape[0], count)] if axis else [])):
        raise ShapeError(
            f"positions must have shape ({count},), or ({data.shape[0]}, {count}) for an axis behind the first, "
            f"found {positions.shape}"
        )
    return data.shape, data.dtype


def _reference(data: np.ndarray, rows: np.ndarray, positions: np.ndarray, *, axis: int, copies: bool) -> np.ndarray:
    result = data.copy()
    samples = [(result, rows, positions)] if positions.ndim == 1 else list(zip(result, rows, positions, strict=True))
    for out, new, places in samples:
        out, new = (np.moveaxis(array, axis - (positions.ndim - 1), 0) for array in (out, new))
        for row, place in zip(new, places, strict=True):
            if 0 <= place < out.shape[0]:
                out[place] = row
    return result


WRITE_ROWS = define(
    "write_rows",
    "data rows positions",
    _infer,
    _reference,
    Traits(Kind.OTHER, others=("rows", "positions")),
    "data with some rows replaced",
)


def write_rows(
    data: relax.Expr, rows: relax.Expr, positions: relax.Expr, axis: int, copies: bool = False
) -> relax.Call:
    """y = data, but y[…, positions[i], …] = rows[…, i, …] for each i in order; a row whose position lies outside of the
    data is left out.

    data:      any shape and dtype. rows: the same, but for the size n of `axis`
    positions: int32 or int64 of shape (n,), or (data.shape[0], n): for each sample its own
    axis:      0 … data.ndim − 1; at least 1 if each sample has its own positions
    copies:    whether data must stay as they are even if nothing reads them any more

    Raises ShapeError. Source: torch.Tensor.index_copy_, ONNX TensorScatter.
    """
    return WRITE_ROWS.call(data, rows, positions, axis=axis, copies=copies)


export_to_script(write_rows=write_rows)
