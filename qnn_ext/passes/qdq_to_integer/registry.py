"""The registry of qdq_to_integer: Relax operator, or kind of operators -> its rule on integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax

from ...op.relax_table import traits_of
from ...op.traits import Kind
from ..rewrite import op_name
from .context import Context

# (call, context) -> Quantized, Mapped or an expression; None: no integer form, so the operator runs in float.
# A rule that knows the reason gives it with context.refuse(...).
Rule = Callable[[relax.Call, Context], Any]
RULES: dict[str | Kind, Rule] = {}


def integer_rule(*names: str | Kind) -> Callable[[Rule], Rule]:
    """Register the decorated rule for these operators ("nn.conv2d", "matmul", …), or for those of a kind without their
    own rule."""

    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f"two integer rules for {name}")
            RULES[name] = function
        return function

    return register


def rule_of(value: Any) -> Rule | None:
    """The rule of an operator, or None; for those of the dialect, rules for kinds do not apply."""
    name = op_name(value)
    if name in RULES or name.startswith("qnn."):
        return RULES.get(name)
    return RULES.get(traits_of(value).kind)
