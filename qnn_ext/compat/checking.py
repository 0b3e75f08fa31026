"""relay.testing: what tests of expressions use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .expressions import Expr, Function, as_expr
from .modules import IRModule


def run_infer_type(expr: Any) -> Expr:
    """The expression, whose type is known: raises ShapeError if its operands do not fit together."""
    expr = as_expr(expr)
    if not isinstance(expr, Function):
        expr.checked_type  # noqa: B018
    return expr


def run_opt_pass(expr: Any, opt_pass: Callable[[IRModule], IRModule], import_prelude: bool = False) -> Any:
    """`main` after a pass; for an expression without parameters, what it computes."""
    found = opt_pass(IRModule.from_expr(expr))["main"]
    return found if isinstance(expr, Function) else found.body


class TempOpAttr:
    """Relay's way to change how an operator is rewritten. Ours are rewritten as their target needs, so that nothing
    changes, also no result."""

    def __init__(self, op_name: str, attr_key: str, attr_value: Any) -> None:
        self.op_name, self.attr_key = op_name, attr_key

    def __enter__(self) -> TempOpAttr:
        return self

    def __exit__(self, *_: Sequence[Any]) -> None:
        pass
