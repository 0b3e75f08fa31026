"""The rules by operator, and what they share."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax

from ..sizes import Axes, Sizes, leaves

Rule = Callable[[Sizes, relax.Call], "tuple[relax.Expr, Axes]"]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Registers a function for these operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def along(axes: Axes, axis: int) -> Axes:
    """The size along this axis, if it has one."""
    return {axis: axes[axis]} if axis in axes else {}


def only_data(sizes: Sizes, call: relax.Call) -> relax.Expr:
    """The first argument, which must be the only one with such a size."""
    data, *others = call.args
    if any(sizes.of(leaf) for other in others for leaf in leaves(other)):
        raise sizes.refused(call)
    return data
