"""TE compute of qnn.first_violation: the extremes of the data, compared once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, tirx

from ...module import DIVISOR
from ...qparams import dtype_range
from .operands import Constants, Expr, Operand
from .reduce import reduced
from .stages import stages


def _is_value(number: int, dtype: str) -> bool:
    lowest, highest = dtype_range(dtype)
    return lowest <= number <= highest


@stages("qnn.first_violation")
def first_violation(
    constants: Constants,
    out_shape: tuple[int, ...],
    data: Operand,
    status: Operand,
    *,
    low: Sequence[int],
    high: Sequence[int],
    kind: str,
    first: int,
) -> te.Tensor:
    """Compares the least and the greatest value, which say as much as a comparison per element."""
    values, before = (o.tensor if o.tensor is not None else constants.add(o.value) for o in (data, status))
    if 0 in data.shape or (kind == DIVISOR and not _is_value(low[0], data.dtype)):
        return te.compute(out_shape, lambda i: before[i], name="status")
    by_column = len(low) > 1
    axes = tuple(range(len(values.shape) - by_column))  # a constant scalar is a vector here

    def extreme(combine: Any, tensor: te.Tensor, dtype: str, name: str) -> te.Tensor:
        return reduced(tensor, axes, False, combine, dtype, name)

    if kind == DIVISOR:
        zero = tirx.const(low[0], data.dtype)
        nonzero = te.compute(data.shape, lambda *i: (values(*i) != zero).astype("int8"), name="nonzero")
        found = [extreme(te.min, nonzero, "int8", "all_nonzero")]
    else:
        found = [extreme(te.min, values, data.dtype, "lowest"), extreme(te.max, values, data.dtype, "highest")]

    def failures(index: int) -> list[tuple[Expr, Expr]]:
        """(whether it fails, the value) of each bound."""
        ends = [(tensor(index) if by_column else tensor()).astype("int64") for tensor in found]
        limits = [tirx.const(limit, "int64") for limit in (low[index], high[index])]
        if kind == DIVISOR:
            return [(ends[0] == tirx.const(0, "int64"), limits[0])]
        return [(ends[0] < limits[0], ends[0]), (ends[1] > limits[1], ends[1])]

    def body(i: Expr) -> Expr:
        number, value = tirx.const(0, "int64"), tirx.const(0, "int64")
        for index in reversed(range(len(low))):
            for fails, culprit in reversed(failures(index)):
                number = tirx.Select(fails, tirx.const(first + index, "int64"), number)
                value = tirx.Select(fails, culprit, value)
        known = before[0] != tirx.const(0, "int64")
        return tirx.Select(known, before[i], tirx.Select(i == 0, number, value))

    return te.compute(out_shape, body, name="status")
