"""The one registry of qdq_to_integer: Relax operator -> how it works on integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm import relax

if TYPE_CHECKING:
    from .walker import Context

# (call, context) -> Quantized, Mapped or an expression; None: no integer form, the operator runs in float.
# A rule that sees why gives the reason with context.refuse(...).
Rule = Callable[[relax.Call, "Context"], Any]
RULES: dict[str, Rule] = {}


def integer_rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated rule for these operators ("nn.conv2d", "matmul", …)."""

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"two integer rules for {name}")
            RULES[name] = function
        return function

    return register
