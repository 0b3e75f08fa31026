"""Registry of the QNN operators that form separate kernels: several TE stages, scheduled by the generic scheduler.

A rule takes (Constants, result shape, *Operand, **attributes) and returns the result tensor. Elementwise rules may
follow it.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import te

from .operands import Constants, Operand
from .sums import row_sum, window_sum

StageRule = Callable[..., te.Tensor]
STAGES: dict[str, StageRule] = {}
BOUNDED: set[str] = set()  # operators whose rules may read anywhere: their kernels are kept inside their operands


def stages(name: str) -> Callable[[StageRule], StageRule]:
    """Register the decorated rule for the operator."""

    def register(rule: StageRule) -> StageRule:
        STAGES[name] = rule
        return rule

    return register


@stages("qnn.window_sum")
def _window_sum(constants: Constants, shape: tuple[int, ...], data: Operand, **attributes: object) -> te.Tensor:
    return window_sum(data.tensor, **attributes)  # type: ignore[arg-type]


@stages("qnn.row_sum")
def _row_sum(constants: Constants, shape: tuple[int, ...], data: Operand) -> te.Tensor:
    return row_sum(data.tensor if data.tensor is not None else constants.add(data.value))
