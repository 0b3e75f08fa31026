"""Layout: converts whole graphs from channels first (NCHW) to channels last (NHWC), the kernels' layout.

This is a forward walk. Each operator with a layout reads its data channels last; layout-agnostic operators work on
whatever axis order their data has, with their axes renumbered; a transpose in the model only renumbers the axes of
existing values. The model's own order is restored only where an operator needs its operand in it, and for the model's
outputs, once per value. So explicit transposes between NCHW and NHWC cancel with each other and with this pass's own.

Results are bit-identical: an operator whose float sums would be added in a different order keeps the model's layout,
unless the caller allows float convolutions to add in `any_order`.
"""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax

from ..rewrite import Rebuild, emit_named, op_name
from .forms import Forms, static_shape
from .propagation import rule_of, wants_channels_last
from .reshapes import reshape_rule  # noqa: F401  (registers its rules)


def channels_last(mod: IRModule, any_order: bool = False) -> IRModule:
    """`mod` with every operator in NCHW (NCW, NCDHW) that has a channels-last variant converted to it; others follow.

    Modules without such operators are returned unchanged. Inputs and outputs keep their layout.
    """
    new = Rebuild(mod["main"])
    if not any(wants_channels_last(binding.value, any_order) for binding in new.bindings):
        return mod
    forms = Forms(new.builder.emit, any_order)
    with new.main():
        for binding in new.bindings:
            _visit(binding, forms, new.builder)
        new.result = forms.original(new.function.body.body)
    return new.live_module()


def _visit(binding: relax.VarBinding, forms: Forms, builder: relax.BlockBuilder) -> None:
    value, var = binding.value, binding.var
    known = static_shape(var) is not None or op_name(value) == "split" or isinstance(value, relax.TupleGetItem)
    rule = rule_of(value) if known else None
    found: Any = rule(value, forms) if rule is not None else None
    for expr, order in found or [(forms.original(value), None)]:
        forms.define(var, emit_named(builder, expr, var.name), order)
