"""The TIR operator for an integer that TVM shall know nothing about but its dtype; its value is x.

TVM's analyzers follow a variable of a `let` to its value. For integers that goes wrong in two ways: they analyze a
value again wherever the variable occurs, so that the time doubles with each `let` inside another; and where a value has
other bounds under one condition than under another, they stop with an internal error. Here they see only the dtype.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from .operator import define

Expr = Any
HELD = "tirx.qnn_held"


def held(x: Expr, dtype: str) -> Expr:
    """x, an integer of this dtype."""
    return tirx.call_intrin(dtype, HELD, x)


define(HELD, "x", 1, lambda call: call.args[0])
