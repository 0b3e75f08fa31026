"""Fuse: groups each product with the elementwise operators around it into a function that becomes one kernel.

    conv2d_accumulate (T1) [− window_sum·zw (T2)] + constant → requantize → clip → add a residual → table → …
    conv2d_accumulate → dequantize → + bias → + dequantize(residual) → relu → quantize

    dequantize → conv2d_accumulate of floats → + bias → relu → quantize

so no int32 or float32 feature map is ever written to memory. The remaining QNN operators (a lone requantize, an
addition of two feature maps, float operators next to a quantize or dequantize) are grouped in the same way, without a
product at the head. This is decided here, on the QNN graph, because Relax's own FuseOps does not fuse a product with an
epilogue that re-indexes its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import IRModule, relax

from ..numerics.annotations import COMPOSITE, LAYER, SOURCES
from ..op.arguments import data_of
from ..op.base import call_attributes, constant_value, has_float_rows, shape_of
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..topi_int8.generic.elementwise import RULES
from ..topi_int8.generic.float_elementwise import FLOAT_RULES
from ..topi_int8.generic.stages import STAGES
from . import matrix_moves, shuffles
from .regions import Regions
from .rewrite import Emit, Rebuild, bindings_of, function_of, is_anonymous, op_name, operands, rewrite, substitute

# operators that canonicalize puts between a side term of a product and its subtraction from the product
SIDE_STEPS = ("multiply", "repeat", "astype", "permute_dims")
# The most QNN operators in a kernel with a rounding of their own: a residual sum, a product, quantize, requantize. TVM
# simplifies the inlined expression again at each of its levels, so every additional one multiplies the compile time:
# eight take minutes, and so do four that round midpoints away from zero, which therefore count twice.
MAX_ROUNDINGS = 4
# Functions whose own expression has so many levels that TVM takes seconds for it behind a product, and minutes for Mish
DEEP_FUNCTIONS = ("softplus",)


@dataclass
class Group:
    """Indices of the bindings of one kernel, ascending; the last one yields its result."""

    members: list[int]


def fuse(mod: IRModule, grid: bool = False) -> IRModule:
    """Move groups of bindings of `main` into private functions with a "Composite" attribute. grid: for a GPU"""
    mod = _repeat_dequantize(mod)
    function = mod["main"]
    bindings = bindings_of(function)
    groups = find_groups(function, bindings, grid)
    last = {group.members[-1]: group for group in groups}
    inside = {index for group in groups for index in group.members}

    functions: dict[int, relax.Function] = {}
    parameters: dict[int, list[relax.Var]] = {}
    for end, group in last.items():
        functions[end], parameters[end] = _extract([bindings[index] for index in group.members])

    new = Rebuild(function)
    names = {end: new.builder.add_func(functions[end], _kernel_name(bindings, last[end])) for end in last}
    with new.main():
        for index, binding in enumerate(bindings):
            if index in last:
                new.bind(binding.var, relax.Call(names[index], [new.substituted(var) for var in parameters[index]]))
            elif index not in inside:
                new.keep(binding)
    return new.module()


def _repeat_dequantize(mod: IRModule) -> IRModule:
    """Give each elementwise reader its own dequantize, which is cheaper than a float feature map between kernels."""
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


def find_groups(function: relax.Function, bindings: Sequence[relax.VarBinding], grid: bool = False) -> list[Group]:
    """Groups in no particular order; no binding belongs to two of them.

    Products come first, later ones before earlier ones, so that a residual addition of two convolutions goes to the
    later one: by then the other's result exists. Only when each product has the operators after it do products take
    operators on other inputs, and only then are the remaining elementwise operators grouped with each other.
    """
    graph = _Graph(function, bindings, grid)
    products = [index for index in reversed(range(len(bindings))) if graph.is_product(index)]
    groups = [Group(members) for members in graph.grouped(products).values()]
    for head in range(len(bindings)):
        if head not in graph.taken and graph.heads_kernel(head):
            members = graph.around(head)
            if any(graph.names[index].startswith("qnn.") for index in members):
                groups.append(Group(graph.take(members)))
    return groups


class _Graph(Regions):
    """The QNN graph: products, and what else has a kernel of ours."""

    def __init__(self, function: relax.Function, bindings: Sequence[relax.VarBinding], grid: bool) -> None:
        super().__init__(function, bindings)
        self._grid = grid
        self.traits = [traits_of(binding.value) for binding in bindings]
        self._elementwise = [is_elementwise(binding.value) for binding in bindings]

    def is_product(self, index: int) -> bool:
        """Whether an operator gets its kernel from the strategy registry."""
        return self.traits[index].kind is Kind.ACCUMULATOR

    def is_elementwise(self, index: int) -> bool:
        return self._elementwise[index]

    def heads_kernel(self, index: int) -> bool:
        """Whether an operator that is not a product can come before elementwise ones in a kernel."""
        name = self.names[index]
        if name in STAGES and not name.startswith("qnn."):  # in float; a quantize after it can end the kernel
            return has_float_rows(self.bindings[index].value)
        return self._elementwise[index] or name in STAGES or self.is_product(index)

    def tail(self, head: int) -> list[int]:
        closed = super().tail(head)
        return closed[:-1] if len(closed) > 1 and self._belongs_to_reader(closed[-1]) else closed

    def _belongs_to_reader(self, index: int) -> bool:
        """Whether it is a dequantize, or sums of 32 bits widened, that the following kernel can apply when it reads."""
        inside = all(reader < len(self.bindings) and self._elementwise[reader] for reader in self.readers(index))
        value = self.bindings[index].value
        return inside and (is_repeatable(value) or _widens_sums(value))

    def follows(self, index: int, region: set[int], head: int) -> bool:
        return self._elementwise[index] and self._shape(index) == self._shape(head)

    def is_full(self, head: int, inside: Iterable[int], another: int) -> bool:
        members = {*inside, another} - {head}
        return super().is_full(head, members, another) or sum(map(self._roundings, members)) > MAX_ROUNDINGS

    def _roundings(self, index: int) -> int:
        """How much an operator counts towards MAX_ROUNDINGS."""
        attributes = call_attributes(self.bindings[index].value) if self.names[index].startswith("qnn.") else {}
        if attributes.get("function") in DEEP_FUNCTIONS:
            return MAX_ROUNDINGS + 1
        if self.traits[index].output is None:
            return 0
        return 2 if attributes.get("rounding") == "TONEAREST" else 1

    def with_sides(self, tail: Sequence[int], head: int) -> list[int]:
        """Also the moves around a product of two run-time operands, and the shuffle behind a convolution."""
        members = super().with_sides(tail, head)
        if not self.is_product(head):
            return members
        if self.traits[head].weight is not None:
            return shuffles.behind(self, head, self._with_dequantize(head, members), self._grid)
        return matrix_moves.behind(self, matrix_moves.in_front(self, head, members), self._shape(head))

    def _with_dequantize(self, head: int, members: list[int]) -> list[int]:
        """`members` and the dequantize of a float convolution's data from 8 bits, which its kernel applies as it copies
        them, strip by strip, as it copies what it pads."""
        value = self.bindings[head].value
        if not shuffles.is_convolution(value):
            return members
        found = self.index.get(data_of(value))
        if found is None or found in self.taken or self.readers(found) != {head}:
            return members
        data = self.bindings[found].value
        is_narrow = op_name(data) == "qnn.dequantize" and str(data_of(data).ty.dtype) in matrix_moves.NARROW
        return [found, *members] if is_narrow else members

    def comes_aside(self, index: int, inside: set[int], head: int, last: int) -> bool:
        """A side term of the product, or elementwise operators; if their readers broadcast them, only a dequantize."""
        if self.is_product(head) and self._is_term(index, self._operands(head)):
            return True
        if not all(self._elementwise[other] for other in (index, *self.readers(index))):
            return False
        fits = self._shape(index) == self._shape(last) or self.names[index] == "qnn.dequantize"
        return fits and not self.is_full(head, inside, index)

    def _is_term(self, index: int, data: Sequence[Any], steps: int = len(SIDE_STEPS)) -> bool:
        """Whether it is a sum over an operand of the product, or one of the steps between that sum and the product."""
        if self.traits[index].kind is Kind.SIDE_TERM:
            return any(summed.same_as(operand) for summed in self._operands(index) for operand in data)
        if self.names[index] not in SIDE_STEPS or steps == 0:
            return False
        return any(self._is_term(source, data, steps - 1) for source in self.sources(index))

    def _operands(self, index: int) -> list[Any]:
        return self.traits[index].operands(self.bindings[index].value)

    def _shape(self, index: int) -> tuple[int, ...]:
        return shape_of(self.bindings[index].var)


def is_repeatable(value: Any) -> bool:
    """Whether it is a dequantize of 8 or 16 bits, which are cheaper to read than its result."""
    return op_name(value) == "qnn.dequantize" and str(data_of(value).ty.dtype) in ("int8", "uint8", "int16", "uint16")


def _widens_sums(value: Any) -> bool:
    """Whether it is a cast of int32 to int64, which doubles the bytes between kernels."""
    return op_name(value) == "astype" and (str(data_of(value).ty.dtype), str(value.ty.dtype)) == ("int32", "int64")


def is_elementwise(value: Any) -> bool:
    """Whether an operator can be computed inside another one's kernel, element by element."""
    name = op_name(value)
    return name in RULES and (name not in FLOAT_RULES or str(data_of(value).ty.dtype) in ("float32", "float64"))


def _extract(members: list[relax.VarBinding]) -> tuple[relax.Function, list[relax.Var]]:
    """The bindings as a function of the outside variables they read; constants move inside."""
    defined = {binding.var for binding in members}
    outside: list[relax.Var] = []
    for binding in members:
        for operand in operands(binding.value):
            is_outer = isinstance(operand, relax.Var) and operand not in defined and operand not in outside
            if is_outer and constant_value(operand) is None:
                outside.append(operand)
    label = "+".join(op_name(binding.value).removeprefix("qnn.") for binding in members)
    named = next(binding for binding in reversed(members) if not traits_of(binding.value).rearranges)
    sources = [name for name in (str(binding.var.name) for binding in members) if not is_anonymous(name)]
    attributes = {COMPOSITE: label, LAYER: named.var.name, SOURCES: sources, "Primitive": True}
    return function_of("kernel", members, outside, members[-1].var, attributes, private=True), outside


def _kernel_name(bindings: Sequence[relax.VarBinding], group: Group) -> str:
    """conv2d, dense, … for the product; the first operator's name otherwise."""
    values = [bindings[index].value for index in group.members]
    head = next((value for value in values if traits_of(value).kind is Kind.ACCUMULATOR), values[0])
    return "qnn_" + op_name(head).removeprefix("qnn.").removesuffix("_accumulate")
