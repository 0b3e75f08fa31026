"""Fuse: groups each integer product with everything elementwise behind it into one function that becomes one kernel.

    conv2d_accumulate (T1) [− window_sum·zw (T2)] + constant → requantize → clip → add a residual → table → …

so no int32 feature map is ever written to memory. What is left of the QNN operators (a lone requantize, an addition
of two feature maps) is grouped in the same way, without a product at its head. Decided here, on the QNN graph, because
Relax's own FuseOps does not fuse a product with an epilogue that re-indexes its blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import IRModule, relax

from ..op.base import constant_value, shape_of
from ..topi_int8.generic.elementwise import RULES as ELEMENTWISE_RULES
from .rewrite import bindings_of, consumers, emit_named, op_name, operands, plain_attrs, substitute

# one kernel each, by strategy
ANCHORS = ("qnn.conv2d_accumulate", "qnn.dense_accumulate", "qnn.batch_matmul_accumulate")
# terms of a product that are computed inside its kernel
SIDE_TERMS = ("qnn.window_sum", "qnn.row_sum")
# what may stand between such a term and the subtraction from the product
SIDE_STEPS = ("multiply", "repeat", "astype")
# QNN operators in the epilogue of one kernel: requantize, a residual sum, a product, a table. TVM simplifies the
# inlined expression again at every level of it, so that each further one multiplies the compile time: ten take minutes
MAX_EPILOGUE = 4

COMPOSITE = "Composite"
LAYER = "qnn_layer"  # attribute: the model's name of what a kernel computes


@dataclass
class Group:
    """Indices of the bindings of one kernel, ascending; the last one yields its result."""

    members: list[int]


def fuse(mod: IRModule) -> IRModule:
    """Move groups of bindings of `main` into private functions with a "Composite" attribute."""
    function = mod["main"]
    bindings = bindings_of(function)
    groups = find_groups(function, bindings)
    last = {group.members[-1]: group for group in groups}
    inside = {index for group in groups for index in group.members}

    functions: dict[int, relax.Function] = {}
    parameters: dict[int, list[relax.Var]] = {}
    for end, group in last.items():
        functions[end], parameters[end] = _extract([bindings[index] for index in group.members])

    builder = relax.BlockBuilder()
    environment: dict[relax.Var, relax.Expr] = {}
    names = {end: builder.add_func(functions[end], _kernel_name(bindings, last[end])) for end in last}
    with builder.function("main", list(function.params), attrs=plain_attrs(function)):
        with builder.dataflow():
            for index, binding in enumerate(bindings):
                if index in last:
                    args = [environment.get(var, var) for var in parameters[index]]
                    value = relax.Call(names[index], args)
                elif index in inside:
                    continue
                else:
                    value = substitute(binding.value, environment)
                environment[binding.var] = emit_named(builder, value, binding.var.name)
            result = builder.emit_output(substitute(function.body.body, environment))
        builder.emit_func_output(result)
    return builder.get()


def find_groups(function: relax.Function, bindings: Sequence[relax.VarBinding]) -> list[Group]:
    """Groups in no particular order; no binding is in two of them.

    Products come first, later ones before earlier, so that of two convolutions that meet in a residual addition the
    later takes it: the other's result exists by then.
    """
    readers = consumers(function, bindings)
    taken: set[int] = set()
    groups = []
    heads = [i for i in reversed(range(len(bindings))) if op_name(bindings[i].value) in ANCHORS]
    heads += [i for i in range(len(bindings)) if op_name(bindings[i].value).startswith("qnn.")]
    for head in heads:
        if head in taken:
            continue
        group = _grow(head, bindings, readers, taken)
        taken.update(group.members)
        groups.append(group)
    return groups


def _grow(head: int, bindings: Sequence[relax.VarBinding], readers: dict, taken: set[int]) -> Group:
    """Follow the only reader of each value as long as it is elementwise and keeps the shape."""
    members = [head]
    shape = shape_of(bindings[head].var)
    current = head
    while True:
        reading = readers[bindings[current].var]
        if len(set(reading)) != 1 or reading[0] >= len(bindings) or reading[0] in taken:
            break
        following = reading[0]
        if op_name(bindings[following].value) not in ELEMENTWISE_RULES or shape_of(bindings[following].var) != shape:
            break
        if sum(op_name(bindings[index].value).startswith("qnn.") for index in members[1:]) == MAX_EPILOGUE:
            break
        members.append(following)
        current = following
    if op_name(bindings[head].value) in ANCHORS:
        members += _side_terms(members, bindings, readers, taken)
    return Group(sorted(members))


def _side_terms(members: list[int], bindings: Sequence[relax.VarBinding], readers: dict, taken: set[int]) -> list[int]:
    """Window sums (and their multiplication by zw) that only this group reads, and that read its own activations."""
    by_var = {binding.var: index for index, binding in enumerate(bindings)}
    data = bindings[min(members)].value.args[0]
    found: list[int] = []
    pending = [operand for index in members for operand in operands(bindings[index].value)]
    while pending:
        index = by_var.get(pending.pop())
        if index is None or index in members or index in found or index in taken:
            continue
        value = bindings[index].value
        if not set(readers[bindings[index].var]) <= {*members, *found}:
            continue
        if op_name(value) in SIDE_TERMS and value.args[0].same_as(data):
            found.append(index)
        elif op_name(value) in SIDE_STEPS and _reaches_side_term(value, by_var, bindings, data):
            found.append(index)
            pending.extend(operands(value))
    return found


def _reaches_side_term(value: relax.Call, by_var: dict, bindings: Sequence[relax.VarBinding], data: relax.Expr) -> bool:
    for operand in operands(value):
        index = by_var.get(operand)
        if index is None:
            continue
        inner = bindings[index].value
        if op_name(inner) in SIDE_TERMS:
            return bool(inner.args[0].same_as(data))
        if op_name(inner) in SIDE_STEPS:
            return _reaches_side_term(inner, by_var, bindings, data)
    return False


def _extract(members: list[relax.VarBinding]) -> tuple[relax.Function, list[relax.Var]]:
    """The bindings as a function of the variables they read from outside; constants move inside."""
    defined = {binding.var for binding in members}
    outside: list[relax.Var] = []
    for binding in members:
        for operand in operands(binding.value):
            is_outer = isinstance(operand, relax.Var) and operand not in defined and operand not in outside
            if is_outer and constant_value(operand) is None:
                outside.append(operand)
    builder = relax.BlockBuilder()
    params = [relax.Var(var.name, var.ty) for var in outside]
    environment = dict(zip(outside, params, strict=True))
    label = "+".join(op_name(binding.value).removeprefix("qnn.") for binding in members)
    attributes = {COMPOSITE: label, LAYER: members[-1].var.name, "Primitive": True}
    with builder.function("kernel", params, attrs=attributes, private=True):
        with builder.dataflow():
            for binding in members:
                environment[binding.var] = builder.emit(
                    substitute(binding.value, environment), name_hint=binding.var.name
                )
            result = builder.emit_output(environment[members[-1].var])
        builder.emit_func_output(result)
    return builder.get()["kernel"], outside


def _kernel_name(bindings: Sequence[relax.VarBinding], group: Group) -> str:
    """conv2d, dense, … for the product; the first operator's name otherwise."""
    names = [op_name(bindings[index].value).removeprefix("qnn.") for index in group.members]
    head = next((name for name in names if f"qnn.{name}" in ANCHORS), names[0])
    return "qnn_" + head.removesuffix("_accumulate")
