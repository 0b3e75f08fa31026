"""Long vectors of TIR as ARM's registers of four 32-bit values, and back: LLVM does not split calls of instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

Expr = Any
LANES = 4  # of a register of 32-bit values


def lanes_of(x: Expr) -> int:
    """How many values an expression has."""
    return int(str(x.ty.dtype).partition("x")[2] or 1)


def registers(var: tirx.Var, lanes: int) -> list[Expr]:
    """A vector of 32-bit values as registers; the last one repeats what fills it up."""
    if lanes == LANES:
        return [var]
    return [
        shuffle([var], [min(lane, lanes - 1) for lane in range(first, first + LANES)])
        for first in range(0, lanes, LANES)
    ]


def joined(parts: Sequence[Expr], lanes: int) -> Expr:
    """The first `lanes` values of some vectors as one vector."""
    return parts[0] if len(parts) == 1 and lanes_of(parts[0]) == lanes else shuffle(parts, range(lanes))


def shuffle(values: Sequence[Expr], order: Sequence[int]) -> Expr:
    """The values of some vectors, which count on from one to the next, in an order."""
    return tirx.Shuffle(list(values), [tirx.const(lane, "int32") for lane in order])


def call_llvm(dtype: str, name: str, *args: Expr) -> Expr:
    """LLVM's intrinsic, which has no effect beside its value."""
    return tirx.call_llvm_pure_intrin(dtype, name, *args)
