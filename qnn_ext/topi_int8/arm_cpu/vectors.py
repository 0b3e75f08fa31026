"""Long TIR vectors as ARM registers of four 32-bit values, and back: LLVM does not split calls of its intrinsics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

Expr = Any
LANES = 4  # 32-bit values in a register


def lanes_of(x: Expr) -> int:
    """The number of lanes of an expression."""
    return int(str(x.ty.dtype).partition("x")[2] or 1)


def registers(var: tirx.Var, lanes: int) -> list[Expr]:
    """A vector of 32-bit values as registers; the last one is filled up by repetition."""
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
    """The values of some vectors, numbered consecutively from one to the next, in the given order."""
    return tirx.Shuffle(list(values), [tirx.const(lane, "int32") for lane in order])


def call_llvm(dtype: str, name: str, *args: Expr) -> Expr:
    """A call of an LLVM intrinsic without side effects."""
    return tirx.call_llvm_pure_intrin(dtype, name, *args)
