"""Layout: whole graphs from channels first (NCHW) to channels last (NHWC), which the kernels compute.

A forward walk. Each operator that has a layout reads its data with the channels last; operators that do not care work
on whatever order of axes their data has, with their axes renamed; a transpose of the model only renames the axes of
what is there. Only where an operator needs its operand in the order of the model, or the model ends, that order is
made, once per value. Explicit transposes between NCHW and NHWC so cancel with each other and with those of this pass.

Results are bit-identical: an operator whose float sum would be added in another order keeps the order of the model,
unless the caller lets float convolutions add in `any_order`.
"""

from __future__ import annotations

from typing import Any

from tvm import IRModule, relax

from ..rewrite import bindings_of, emit_named, op_name, plain_attrs
from . import rules
from .forms import Forms, static_shape
from .reshapes import reshape_rule  # noqa: F401  (registers its rules)


def channels_last(mod: IRModule, any_order: bool = False) -> IRModule:
    """`mod` with every operator in NCHW (NCW, NCDHW) that has a channels-last variant in that; others follow.

    Modules without such operators are returned as they are. Inputs and outputs keep their layout.
    """
    bindings = bindings_of(mod["main"])
    if not any(rules.wants_channels_last(binding.value, any_order) for binding in bindings):
        return mod
    main = mod["main"]
    builder = relax.BlockBuilder()
    forms = Forms(builder.emit, any_order)
    with builder.function("main", list(main.params), attrs=plain_attrs(main)):
        with builder.dataflow():
            for binding in bindings:
                _visit(binding, forms, builder)
            result = builder.emit_output(forms.original(main.body.body))
        builder.emit_func_output(result)
    return relax.transform.DeadCodeElimination(["main"])(builder.get())


def _visit(binding: relax.VarBinding, forms: Forms, builder: relax.BlockBuilder) -> None:
    value, var = binding.value, binding.var
    rule = rules.RULES.get(op_name(value)) if static_shape(var) is not None or op_name(value) == "split" else None
    if isinstance(value, relax.TupleGetItem):
        rule = rules.tuple_item
    found: Any = rule(value, forms) if rule is not None else None
    for expr, order in found or [(forms.original(value), None)]:
        forms.define(var, emit_named(builder, expr, var.name), order)
