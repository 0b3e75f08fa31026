"""Multiplications by ones, which get a group's factors where no product can take them: where they go, and putting them
there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from ..module import QnnModule
from ..op.base import constant, shape_of
from ..op.observe import observed_sites
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..passes.rewrite import Rebuild, bindings_of, op_name, variables_of
from .annotate import annotate
from .annotate.families import Family, family_of
from .channel_groups import factored_tensors
from .channels import channel_axis_behind, weight_of
from .config import QConfig


def factored_sites(module: QnnModule) -> list[str]:
    """The tensors behind which a multiplication by factors makes a group that can be scaled: those that are quantized,
    alone or joined with others, are in none yet, and that only homogeneous operators and products read."""
    function = module.ir["main"]
    observed = [call.args[0] for call, _ in observed_sites(annotate(module, QConfig()).ir).values()]
    marked = _with_sums(function, _before_joins(function, {str(v.name) for v in observed if isinstance(v, relax.Var)}))
    inside, axes = factored_tensors(function), channel_axes(function)
    chosen = [
        str(var.name)
        for var, axis in axes.items()
        if var.name in marked and str(var.name) not in inside and shape_of(var)[axis] > 1
    ]
    while chosen:
        inside = factored_tensors(with_factors(module, chosen).ir["main"])
        left = [name for name in chosen if name in inside]
        if len(left) == len(chosen):
            break
        chosen = left
    return chosen


def _before_joins(function: relax.Function, names: Collection[str]) -> set[str]:
    """These tensors, and in place of those that are joined or moved from others, the others."""
    found = set(names)
    for binding in reversed(bindings_of(function)):
        value, name = binding.value, str(binding.var.name)
        if name in found and family_of(value, ()) in (Family.JOIN, Family.MOVE):
            found.remove(name)
            found.update(str(var.name) for var in variables_of(value))
    return found


def _with_sums(function: relax.Function, names: Collection[str]) -> set[str]:
    """These tensors, and others that are added to one of them, which must have the same factors."""
    found = set(names)
    sums = [[str(v.name) for v in variables_of(b.value)] for b in bindings_of(function) if op_name(b.value) == "add"]
    known = -1
    while known < (known := len(found)):
        found.update(name for added in sums if found & set(added) for name in added)
    return found


def with_factors(module: QnnModule, names: Collection[str]) -> QnnModule:
    """`module` with a multiplication by ones, a factor for each channel, behind the tensors of these names, which it
    takes over. Names that are not those of tensors with channels are left out."""
    if not names:
        return module
    axes = {str(var.name): axis for var, axis in channel_axes(module.ir["main"]).items() if str(var.name) in names}
    new = Rebuild(module.ir["main"])
    with new.main():
        for binding in new.bindings:
            name, value = str(binding.var.name), new.substituted(binding.value)
            if name not in axes:
                new.bind(binding.var, value)
                continue
            shape = shape_of(binding.var)[axes[name] :]
            factors = constant(np.ones((shape[0], *(1 for _ in shape[1:])), np.float32))
            plain = new.builder.emit(value, name_hint=f"{name}_part")
            new.environment[binding.var] = new.builder.emit(relax.op.multiply(plain, factors), name_hint=name)
    return replace(module, ir=new.module())


def channel_axes(function: relax.Function) -> dict[relax.Var, int]:
    """The axis of the channels of each float tensor that is computed from a product's result."""
    axes: dict[relax.Var, int] = {}
    for binding in bindings_of(function):
        axis = _channel_axis(binding.var, binding.value, axes)
        if axis is not None:
            axes[binding.var] = axis
    return axes


def _channel_axis(var: relax.Var, value: Any, axes: Mapping[relax.Var, int]) -> int | None:
    weight = weight_of(value, transposed=True)
    if weight is not None:
        return weight.output_axis
    if not isinstance(value, relax.Call) or not isinstance(var.ty, relax.TensorType) or str(var.ty.dtype) != "float32":
        return None
    for operand in variables_of(value):
        if operand not in axes:
            continue
        if traits_of(value).kind is Kind.POINTWISE:
            axis = axes[operand] if shape_of(operand) == shape_of(var) else None
        else:
            axis = channel_axis_behind(value, operand, axes[operand])
        if axis is not None and shape_of(var)[axis] == shape_of(operand)[axes[operand]]:
            return axis
    return None
