"""relay.analysis: what expressions are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from .expressions import Call, Expr, Function, Op, Var, as_expr, free_vars, post_order

__all__ = ["all_vars", "bound_vars", "count_layers", "free_vars", "list_op_freqs", "post_order_visit", "well_formed"]


def all_vars(expr: Any) -> list[Var]:
    """Every variable in an expression, parameters included."""
    expr = as_expr(expr)
    params = expr.params if isinstance(expr, Function) else []
    inside = free_vars(expr.body if isinstance(expr, Function) else expr)
    return [*params, *(item for item in inside if all(item is not param for param in params))]


def post_order_visit(expr: Any, fvisit: Callable[[Expr], None]) -> None:
    """Call `fvisit` with every expression, operands first."""
    expr = as_expr(expr)
    for item in post_order(expr.body if isinstance(expr, Function) else expr):
        fvisit(item)


def count_layers(expr: Any, valid_ops: list[str]) -> int:
    """The number of calls of these operators."""
    found: list[Expr] = []
    post_order_visit(expr, found.append)
    return sum(isinstance(item, Call) and isinstance(item.op, Op) and item.op.name in valid_ops for item in found)


def bound_vars(expr: Any) -> list[Var]:
    """The parameters of a function; other expressions bind nothing."""
    expr = as_expr(expr)
    return list(expr.params) if isinstance(expr, Function) else []


def list_op_freqs(mod: Any) -> dict[str, int]:
    """How often each operator is called in a module; an imported model is one call."""
    found: list[Expr] = []
    post_order_visit(mod["main"], found.append)
    return dict(Counter(item.op.name for item in found if isinstance(item, Call) and isinstance(item.op, Op)))


def well_formed(expr: Any, diag_ctx: Any = None) -> bool:
    """Whether no two parameters are the same variable."""
    bound = bound_vars(expr)
    return len({id(var) for var in bound}) == len(bound)
