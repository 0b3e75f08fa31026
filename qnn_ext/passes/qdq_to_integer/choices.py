"""Integer rules of operators that select from two tensors: with equal scales, integers compare like the reals."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...op.arguments import with_arguments
from .context import Context
from .registry import integer_rule
from .tables import tabulate


@integer_rule("maximum", "minimum")
def _extreme(call: relax.Call, context: Context) -> Any:
    one, two = (context.quantized(arg) for arg in call.args)
    if one is not None and two is not None and one.same_parameters(two):
        return one.moved(context.emit(with_arguments(call, x1=one.data, x2=two.data)))
    return tabulate(call, context)


@integer_rule("where")
def _where(call: relax.Call, context: Context) -> Any:
    condition, *choices = call.args
    one, two = map(context.quantized, choices)
    if one is not None and two is not None and one.same_parameters(two):
        return one.moved(context.emit(relax.op.where(context.value(condition), one.data, two.data)))
    return tabulate(call, context)
