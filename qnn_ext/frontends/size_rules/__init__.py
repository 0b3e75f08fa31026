"""How operators carry on sizes that are known only at run time: a rule for each, which may change the call."""

from __future__ import annotations

import importlib
import pkgutil

from tvm import relax

from ...op.relax_table import traits_of
from ...op.traits import Kind
from ...passes.rewrite import op_name
from ..sizes import Axes, Sizes
from .pointwise import pointwise
from .registry import RULES

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def carried(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """What to emit for a call that reads values with such sizes, and the sizes of its result, or of all fields of a
    tuple. Raises UnsupportedOperatorError if the call cannot be computed."""
    rule = RULES.get(op_name(call))
    if rule is None and traits_of(call).kind is Kind.POINTWISE:
        rule = pointwise
    if rule is None:
        raise sizes.refused(call)
    return rule(sizes, call)
