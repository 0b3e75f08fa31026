"""Fuse: groups each integer product with everything elementwise around it into one function that becomes one kernel.

    conv2d_accumulate (T1) [− window_sum·zw (T2)] + constant → requantize → clip → add a residual → table → …
    conv2d_accumulate → dequantize → + bias → + dequantize(residual) → relu → quantize

so no int32 or float32 feature map is ever written to memory. What is left of the QNN operators (a lone requantize, an
addition of two feature maps, float operators next to a quantize or dequantize) is grouped in the same way, without a
product at its head. Decided here, on the QNN graph, because Relax's own FuseOps does not fuse a product with an
epilogue that re-indexes its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import IRModule, relax

from ..op.base import call_attributes, constant_value, has_float_rows, shape_of
from ..topi_int8.generic.elementwise import RULES
from ..topi_int8.generic.float_elementwise import FLOAT_RULES
from . import matrix_moves
from .rewrite import Emit, bindings_of, consumers, emit_named, op_name, operands, plain_attrs, rewrite, substitute

# one kernel each, by strategy
ANCHORS = ("qnn.conv2d_accumulate", "qnn.dense_accumulate", "qnn.batch_matmul_accumulate")
# terms of a product that are computed inside its kernel
SIDE_TERMS = ("qnn.window_sum", "qnn.row_sum")
# what may stand between such a term and the subtraction from the product
SIDE_STEPS = ("multiply", "repeat", "astype", "permute_dims")
# float operators with stages of their own, which a quantize behind them can end
FLOAT_STAGES = ("nn.softmax", "nn.layer_norm")
# Elementwise operators of one kernel behind its head, and of these the QNN operators that round by themselves: a
# residual sum, a product, quantize, requantize. TVM simplifies the inlined expression again at every level of it, so
# that each further one multiplies the compile time: eight take minutes, and so do four that round midpoints away from
# zero, which therefore count twice.
MAX_ELEMENTWISE = 24
MAX_ROUNDINGS = 4
SIMPLE = ("qnn.dequantize", "qnn.fma", "qnn.table")

COMPOSITE = "Composite"
LAYER = "qnn_layer"  # attribute: the model's name of what a kernel computes


@dataclass
class Group:
    """Indices of the bindings of one kernel, ascending; the last one yields its result."""

    members: list[int]


def fuse(mod: IRModule) -> IRModule:
    """Move groups of bindings of `main` into private functions with a "Composite" attribute."""
    mod = _repeat_dequantize(mod)
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


def _repeat_dequantize(mod: IRModule) -> IRModule:
    """A dequantize of its own for each elementwise reader: cheaper than a float feature map between kernels."""
    known: dict[Any, relax.Call] = {}  # variable -> the dequantize it is bound to

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if is_elementwise(expr):
            own = {operand: emit(known[operand]) for operand in operands(expr) if operand in known}
            expr = substitute(expr, own)
        if not is_repeatable(expr):
            return expr
        var = emit(expr)
        known[var] = expr
        return var

    return rewrite(mod, rule)


def find_groups(function: relax.Function, bindings: Sequence[relax.VarBinding]) -> list[Group]:
    """Groups in no particular order; no binding is in two of them.

    Products come first, later ones before earlier, so that of two convolutions that meet in a residual addition the
    later takes it: the other's result exists by then. Only when each product has what is behind it do they take what
    comes from the side, and only then the elementwise operators among themselves.
    """
    graph = _Graph(function, bindings)
    products = [index for index in reversed(range(len(bindings))) if graph.names[index] in ANCHORS]
    tails = {head: graph.take(graph.tail(head)) for head in products}
    groups = [Group(graph.take(graph.with_moves(graph.with_sides(tails[head], head), head))) for head in products]
    for head in range(len(bindings)):
        if head not in graph.taken and graph.heads_kernel(head):
            members = graph.with_sides(graph.tail(head), head)
            if any(graph.names[index].startswith("qnn.") for index in members):
                groups.append(Group(graph.take(members)))
    return groups


class _Graph:
    """The bindings of a function with who reads whom; `taken`: those that have a group."""

    def __init__(self, function: relax.Function, bindings: Sequence[relax.VarBinding]) -> None:
        self.bindings = bindings
        self.names = [op_name(binding.value) for binding in bindings]
        self.taken: set[int] = set()
        readers = consumers(function, bindings)
        self._readers = [set(readers[binding.var]) for binding in bindings]
        self._index = {binding.var: index for index, binding in enumerate(bindings)}
        self.elementwise = [is_elementwise(binding.value) for binding in bindings]

    def take(self, members: Iterable[int]) -> list[int]:
        self.taken.update(members)
        return sorted(members)

    def heads_kernel(self, index: int) -> bool:
        """Whether an operator other than a product can stand before elementwise ones in a kernel."""
        name = self.names[index]
        if name in FLOAT_STAGES:
            return has_float_rows(self.bindings[index].value)
        return self.elementwise[index] or name.startswith("qnn.")

    def tail(self, head: int) -> list[int]:
        """The head and what is elementwise behind it, up to the last point where a single value leaves.

        Branches that meet again are inside. As every value but the last is read by members alone, no path leaves
        the group and comes back.
        """
        region, closed = {head}, [head]
        pending = set(self._readers[head])
        while pending:
            following = min(pending)
            if not self._fits(following, shape_of(self.bindings[head].var)) or self._full(head, region, following):
                break
            if pending == {following}:
                closed = [*region, following]
            region.add(following)
            pending = (pending | self._readers[following]) - region
        return closed[:-1] if len(closed) > 1 and self._belongs_to_reader(closed[-1]) else closed

    def _belongs_to_reader(self, index: int) -> bool:
        """A dequantize that the kernel behind can do when it reads the integers."""
        readers = self._readers[index]
        inside = all(reader < len(self.bindings) and self.elementwise[reader] for reader in readers)
        return inside and is_repeatable(self.bindings[index].value)

    def _fits(self, index: int, shape: tuple[int, ...]) -> bool:
        if index >= len(self.bindings) or index in self.taken or not self.elementwise[index]:
            return False
        return shape_of(self.bindings[index].var) == shape

    def _full(self, head: int, region: Iterable[int], another: int) -> bool:
        """Whether `another` would make the kernel's expression too large."""
        inside = [index for index in (*region, another) if index != head]
        return len(inside) > MAX_ELEMENTWISE or sum(map(self._roundings, inside)) > MAX_ROUNDINGS

    def _roundings(self, index: int) -> int:
        """What an operator counts of MAX_ROUNDINGS."""
        if not self.names[index].startswith("qnn.") or self.names[index] in SIMPLE:
            return 0
        return 2 if call_attributes(self.bindings[index].value).get("rounding") == "TONEAREST" else 1

    def with_sides(self, members: Sequence[int], head: int) -> list[int]:
        """`members` and what only they read: the second term of a product, elementwise operators on other inputs."""
        data = list(self.bindings[head].value.args[:2]) if self.names[head] in ANCHORS else []
        inside = set(members)
        shape = shape_of(self.bindings[max(members)].var)
        pending = [index for member in sorted(members) if self.elementwise[member] for index in self.sources(member)]
        while pending:
            index = pending.pop()
            if index in inside or index in self.taken or not self._readers[index] <= inside:
                continue
            term = self._is_term(index, data)
            if not term and (not self._comes_aside(index, shape) or self._full(head, inside, index)):
                continue
            inside.add(index)
            pending.extend(self.sources(index))
        return sorted(inside)

    def with_moves(self, members: list[int], head: int) -> list[int]:
        """`members` and the moves around a product of two operands that come at run time."""
        if self.names[head] != "qnn.batch_matmul_accumulate":
            return members
        return matrix_moves.behind(self, matrix_moves.in_front(self, head, members), shape_of(self.bindings[head].var))

    def readers(self, index: int) -> set[int]:
        """The bindings that read a value."""
        return self._readers[index]

    def sources(self, index: int) -> list[int]:
        """The bindings that an operator reads."""
        found = (self._index.get(operand) for operand in operands(self.bindings[index].value))
        return [source for source in found if source is not None]

    def _comes_aside(self, index: int, shape: tuple[int, ...]) -> bool:
        """Whether to compute an operator where elementwise ones read it; of what they broadcast, only the cheapest."""
        if not all(self.elementwise[other] for other in (index, *self._readers[index])):
            return False
        return shape_of(self.bindings[index].var) == shape or self.names[index] == "qnn.dequantize"

    def _is_term(self, index: int, data: Sequence[Any], steps: int = len(SIDE_STEPS)) -> bool:
        """A sum over the operands that the product reads, or one of a few steps between it and the product."""
        if self.names[index] in SIDE_TERMS:
            return any(self.bindings[index].value.args[0].same_as(operand) for operand in data)
        if self.names[index] not in SIDE_STEPS or steps == 0:
            return False
        return any(self._is_term(source, data, steps - 1) for source in self.sources(index))


def is_repeatable(value: Any) -> bool:
    """A dequantize of few bits: to read those is cheaper than to read its result."""
    return op_name(value) == "qnn.dequantize" and str(value.args[0].ty.dtype) in ("int8", "uint8", "int16", "uint16")


def is_elementwise(value: Any) -> bool:
    """Whether an operator can be computed inside the kernel of another one, for each element by itself."""
    name = op_name(value)
    return name in RULES and (name not in FLOAT_RULES or str(value.args[0].ty.dtype) in ("float32", "float64"))


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
