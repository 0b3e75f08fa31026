"""Layout: converts whole graphs from channels first (NCHW) to channels last (NHWC), the kernels' layout.

This is a forward walk. Each operator with a layout reads its data channels last; layout-agnostic operators work on
whatever axis order their data has, with their axes renumbered; a transpose in the model only renumbers the axes of
existing values. The model's own order is restored only where an operator needs its operand in it, and for the model's
outputs, once per value. So explicit transposes between NCHW and NHWC cancel with each other and with this pass's own.
What enlarges a tensor behind the last operator with a layout, such as the interpolation that ends a segmentation, reads
it in the model's order: the transpose that the output needs then moves the smaller tensor.

Results are bit-identical: an operator whose float sums would be added in a different order keeps the model's layout,
unless the caller allows float convolutions to add in `any_order`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import IRModule, relax

from ...op.arguments import data_of
from ...op.relax_table import traits_of
from ..rewrite import Rebuild, emit_named, op_name, variables_of
from .forms import Forms, static_shape
from .propagation import rule_of, wants_channels_last
from .reshapes import reshape_rule  # noqa: F401  (registers its rules)

_REPEATING = ("take", "repeat", "tile", "broadcast_to", "image.resize2d")


def channels_last(mod: IRModule, any_order: bool = False) -> IRModule:
    """`mod` with every operator in NCHW (NCW, NCDHW) that has a channels-last variant converted to it; others follow.

    Modules without such operators are returned unchanged. Inputs and outputs keep their layout.
    """
    new = Rebuild(mod["main"])
    if not any(wants_channels_last(binding.value, any_order) for binding in new.bindings):
        return mod
    forms = Forms(new.builder.emit, any_order)
    enlarging = _enlarging_ends(new.bindings)
    with new.main():
        for binding in new.bindings:
            _visit(binding, forms, new.builder, stays=binding.var in enlarging)
        new.result = forms.original(new.function.body.body)
    return new.live_module()


def _enlarging_ends(bindings: Sequence[relax.VarBinding]) -> set[relax.Var]:
    """What repeats or interpolates elements of a tensor, and is not read, directly or not, by another operator with a
    layout."""
    laid_out: set[relax.Var] = set()  # what such operators read
    found = set()
    for binding in reversed(bindings):
        value, var = binding.value, binding.var
        if var not in laid_out and _enlarges(binding):
            found.add(var)
        elif traits_of(value).layouts or var in laid_out:
            laid_out.update(variables_of(value))
    return found


def _enlarges(binding: relax.VarBinding) -> bool:
    if op_name(binding.value) not in _REPEATING:
        return False
    before, after = static_shape(data_of(binding.value)), static_shape(binding.var)
    return before is not None and after is not None and math.prod(after) > math.prod(before)


def _visit(binding: relax.VarBinding, forms: Forms, builder: relax.BlockBuilder, stays: bool) -> None:
    """stays: whether it reads its operands in the model's order"""
    value, var = binding.value, binding.var
    known = static_shape(var) is not None or op_name(value) == "split" or isinstance(value, relax.TupleGetItem)
    rule = rule_of(value) if known and not stays else None
    found: Any = rule(value, forms) if rule is not None else None
    for expr, order in found or [(forms.original(value), None)]:
        forms.define(var, emit_named(builder, expr, var.name), order)
