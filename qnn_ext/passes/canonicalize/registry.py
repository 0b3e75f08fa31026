"""The registry of Canonicalize: operator name -> rewrite rule."""

from __future__ import annotations

from collections.abc import Callable

from ..rewrite import Rule

RULES: dict[str, Rule] = {}


def canonical(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated (call, emit) -> expression (None: leave it) for these operators."""

    def register(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return register
