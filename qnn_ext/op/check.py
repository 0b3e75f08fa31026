"""qnn.check_bounds, qnn.check_divisor: values that may occur at run time and that the model's framework rejects.

The interpreter raises at once. A compiled model continues without leaving its own memory and reports the violation at
the end: `passes/checks.py` turns the checks into one status tensor, through a chain of `first_violation`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..module import BOUNDS, DIVISOR, Check
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
STATUS_SHAPE = (2,)  # the first check that failed, counted from 1 (0 for none), and the value it found


def _infer(data: TensorInfo, *, low: Sequence[int], high: Sequence[int], label: str) -> tuple[Shape, str]:
    check_dtype(data, *DTYPES)
    _check_lengths(data, low, high)
    return data.shape, data.dtype


def _check_lengths(data: TensorInfo, low: Sequence[int], high: Sequence[int]) -> None:
    if len(low) != len(high) or len(low) not in (1, *data.shape[-1:]):
        raise ShapeError(
            f"low and high must have one element, or one for each along the last axis of {data.shape}, "
            f"found {len(low)} and {len(high)}"
        )


def _violation(data: np.ndarray, low: Sequence[int], high: Sequence[int], kind: str) -> tuple[int, int] | None:
    """Index in `low` of the first bound that is violated, and a value that violates it."""
    if not data.size:
        return None
    for index, (column, least, most) in enumerate(zip(data.reshape(-1, len(low)).T, low, high, strict=True)):
        if kind == DIVISOR:
            if (column == least).any():
                return index, least
            continue
        for value in (int(column.min()), int(column.max())):
            if not least <= value <= most:
                return index, value
    return None


def _reference(data: np.ndarray, *, low: Sequence[int], high: Sequence[int], label: str) -> np.ndarray:
    found = _violation(data, low, high, BOUNDS)
    if found is not None:
        index, value = found
        raise Check(label, BOUNDS, low[index], high[index]).error(value)
    return data


CHECK_BOUNDS = define(
    "check_bounds", "data", _infer, _reference, Traits(Kind.OTHER), "data, which must lie within bounds"
)


def check_bounds(data: relax.Expr, low: int | Sequence[int], high: int | Sequence[int], label: str) -> relax.Call:
    """y = data, which are indices that must satisfy low ≤ data ≤ high.

    data: integers. low, high: inclusive bounds of all elements, or one pair of bounds for each position along the last
    axis, for indices with several components. label: the node, for the message.

    The interpreter and an engine raise InputError if they do not; until then a compiled model computes with clipped
    indices. Raises ShapeError.
    """
    bounds = [tuple(bound) if isinstance(bound, Sequence) else (bound,) for bound in (low, high)]
    return CHECK_BOUNDS.call(data, low=bounds[0], high=bounds[1], label=label)


def _infer_divisor(data: TensorInfo, *, zero: int, label: str) -> tuple[Shape, str]:
    check_dtype(data, *DTYPES)
    return data.shape, data.dtype


def _reference_divisor(data: np.ndarray, *, zero: int, label: str) -> np.ndarray:
    if (data == zero).any():
        raise Check(label, DIVISOR, zero, zero).error(zero)
    return data


CHECK_DIVISOR = define(
    "check_divisor", "data", _infer_divisor, _reference_divisor, Traits(Kind.OTHER), "data, which must not be zero"
)


def check_divisor(data: relax.Expr, label: str, zero: int = 0) -> relax.Call:
    """y = data, a divisor, none of whose elements may equal `zero`.

    data: integers. zero: 0, or the zero point. label: the node, for the message.

    The interpreter and an engine raise InputError if one does. Raises ShapeError.
    """
    return CHECK_DIVISOR.call(data, zero=zero, label=label)


def _infer_first(
    data: TensorInfo, status: TensorInfo, *, low: Sequence[int], high: Sequence[int], kind: str, first: int
) -> tuple[Shape, str]:
    check_dtype(data, *DTYPES)
    check_dtype(status, "int64")
    _check_lengths(data, low, high)
    if status.shape != STATUS_SHAPE or kind not in (BOUNDS, DIVISOR):
        raise ShapeError(f"status must have shape {STATUS_SHAPE}, found {status.shape}; kind {BOUNDS} or {DIVISOR}")
    return status.shape, status.dtype


def _reference_first(
    data: np.ndarray, status: np.ndarray, *, low: Sequence[int], high: Sequence[int], kind: str, first: int
) -> np.ndarray:
    found = None if status[0] else _violation(data, low, high, kind)
    return status if found is None else np.array([first + found[0], found[1]], np.int64)


FIRST_VIOLATION = define(
    "first_violation",
    "data status",
    _infer_first,
    _reference_first,
    Traits(Kind.OTHER, others=("status",)),
    "the status, or the first check that fails",
)


def first_violation(
    data: relax.Expr, status: relax.Expr, low: Sequence[int], high: Sequence[int], kind: str, first: int
) -> relax.Call:
    """`status` if it already names a check or the data satisfy all bounds; otherwise (first + i, value), where i is the
    first bound that is violated and `value` violates it.

    status: int64 of shape (2,), (0, …) for no violation. kind: BOUNDS for low ≤ x ≤ high, DIVISOR for x ≠ low.
    first: number of this check, from 1. Raises ShapeError.
    """
    return FIRST_VIOLATION.call(data, status, low=tuple(low), high=tuple(high), kind=kind, first=first)


export_to_script(check_bounds=check_bounds, check_divisor=check_divisor, first_violation=first_violation)
