"""relay.testing: what tests of expressions use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .expressions import Expr, Function, as_expr
from .functors import RULES
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
    """`with TempOpAttr(operator, attribute, rule):` rewrites calls of an operator in relay.transform.Legalize
    ("FTVMLegalize") and relay.qnn.transform.Legalize ("FTVMQnnLegalize") by a rule of the script's own; see
    `functors.RULES`. Other attributes told Relay's compilers what ours decides by itself."""

    def __init__(self, op_name: str, attr_key: str, attr_value: Any) -> None:
        self._key, self._rule = (op_name, attr_key), attr_value

    def __enter__(self) -> TempOpAttr:
        self._outer = RULES.get(self._key)
        RULES[self._key] = self._rule
        return self

    def __exit__(self, *_: Any) -> None:
        del RULES[self._key]
        if self._outer is not None:
            RULES[self._key] = self._outer
