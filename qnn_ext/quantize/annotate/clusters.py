"""Clusters: which operators become one kernel, so that only the last one's result is ever a tensor in memory.

A cluster is a head (a product, a pool, a float function) with the pointwise operators after it, up to the last point
that only a single value leaves, as `passes.fuse` groups them; branches that meet again are inside. Pointwise operators
without such a head form clusters of their own. Values inside a cluster stay in registers and are not quantized.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import IRModule, relax

from ...op.base import shape_of
from ...op.relax_table import traits_of
from ...passes.fuse import MAX_POINTWISE
from ...passes.rewrite import bindings_of, consumers, op_name, operands
from .families import Family, data_of, family_of, is_constant


@dataclass(frozen=True)
class Cluster:
    """Indices of bindings that are computed together.

    head: the operator that the others follow, None for pointwise operators alone
    members: all of them, ascending, head included; end: the one whose result leaves the cluster
    """

    head: int | None
    members: tuple[int, ...]
    end: int


class Graph:
    """The bindings of `main`, their families, their readers, and their clusters.

    float_functions: see QConfig
    separate_sums: whether sums of two tensors read both of them quantized, and no accumulator in registers
    integers_only: whether a kernel may contain only operators with an integer form: a bias and a clip after a product
                   or a sum of two tensors, and functions of one tensor, which become tables
    """

    def __init__(
        self, mod: IRModule, float_functions: Sequence[str], separate_sums: bool = False, integers_only: bool = False
    ) -> None:
        self.function = mod["main"]
        self.bindings = bindings_of(self.function)
        self.values = [binding.value for binding in self.bindings]
        self.names = [op_name(value) for value in self.values]
        self.families = [family_of(value, float_functions) for value in self.values]
        self.index = {binding.var: i for i, binding in enumerate(self.bindings)}
        readers = consumers(self.function, self.bindings)
        self.readers_of = {var: set(found) for var, found in readers.items()}
        self._separate_sums = separate_sums or integers_only
        self._integers_only = integers_only
        self._taken: set[int] = set()
        self._cluster: dict[int, Cluster] = {}
        self._find_clusters()

    def readers(self, index: int) -> set[int]:
        """The bindings that read a binding's result; len(bindings) stands for the model's outputs."""
        return self.readers_of.get(self.bindings[index].var, set())

    @property
    def clusters(self) -> list[Cluster]:
        """All clusters, in the order in which their results become available."""
        return sorted(set(self._cluster.values()), key=lambda cluster: cluster.end)

    def cluster_of(self, index: int) -> Cluster:
        """The cluster that computes a binding. Moves belong to none, unless they are inside one."""
        return self._cluster[index]

    def in_cluster(self, index: int) -> bool:
        """Whether a binding is part of a cluster."""
        return index in self._cluster

    def root(self, expr: Any) -> Any | None:
        """The float32 variable whose values an operand holds, moved or unchanged; None for constants and integers."""
        while isinstance(expr, relax.Var) and expr in self.index:
            index = self.index[expr]
            if self.families[index] is not Family.MOVE or is_constant(data_of(self.values[index])):
                break
            expr = data_of(self.values[index])
        return expr if isinstance(expr, relax.Var) and is_float(expr) else None

    def external(self, cluster: Cluster) -> list[tuple[int, Any]]:
        """(member, operand) of the float32 variables that pointwise members read from outside the cluster."""
        inside = set(cluster.members)
        found = []
        for member in cluster.members:
            if self.families[member] is Family.POINTWISE and member != cluster.head:
                for operand in operands(self.values[member]):
                    if isinstance(operand, relax.Var) and is_float(operand) and self.index.get(operand) not in inside:
                        found.append((member, operand))
        return found

    # ---- finding clusters ----------------------------------------------------------------------------------------

    def _find_clusters(self) -> None:
        """Products first, later ones before earlier: if two meet in a sum, the later one takes it. Only after each head
        has taken what follows it do heads take side branches; the remaining pointwise operators are clustered last.
        """
        indices = [index for index in range(len(self.bindings)) if self._is_tensor(index)]
        products = [index for index in reversed(indices) if self.families[index] is Family.PRODUCT]
        others = [index for index in indices if self.families[index] in (Family.SUM, Family.FLOAT)]
        tails = {}
        for head in (*products, *others):
            tails[head] = self._tail(head)
            self._taken.update(tails[head])
        for head, tail in tails.items():
            self._add(head, tail)
        for index in indices:
            if self.families[index] is Family.JOIN:
                self._cluster[index] = Cluster(index, (index,), index)
        for first in indices:
            if self.families[first] is Family.POINTWISE and first not in self._taken:
                self._add(None, self._tail(first))

    def _add(self, head: int | None, tail: list[int]) -> None:
        members = self._with_sides(tail, head)
        cluster = Cluster(head, tuple(sorted(members)), max(tail))
        self._taken.update(members)
        self._cluster.update(dict.fromkeys(members, cluster))

    def _is_tensor(self, index: int) -> bool:
        return is_float(self.bindings[index].var)

    def _tail(self, head: int) -> list[int]:
        region, closed = {head}, [head]
        size = _size(self.bindings[head].var)
        pending = set(self.readers(head))
        while pending:
            following = min(pending)
            if len(region) > MAX_POINTWISE or not self._fits(following, size, region, head):
                break
            region.add(following)
            if pending == {following} and self.families[following] is Family.POINTWISE:
                closed = sorted(region)
            pending = (pending | self.readers(following)) - region
        return closed

    def _fits(self, index: int, size: int, region: set[int], head: int) -> bool:
        """Whether a reader can be computed in the kernel: a pointwise operator of the same shape, or a reshape before
        it."""
        if index >= len(self.bindings) or index in self._taken or not self._is_tensor(index):
            return False
        if _size(self.bindings[index].var) != size:
            return False
        if traits_of(self.values[index]).reshapes:
            return True
        if self.families[index] is not Family.POINTWISE:
            return False
        own = self._tensors(head) if self.families[head] is Family.POINTWISE else []
        if self._separate_sums and not all(self.index.get(v) in region or v in own for v in self._tensors(index)):
            return False
        return not self._integers_only or len(own) == 1 or self._is_bound(index) or self._is_bias(index, region, head)

    def _is_bound(self, index: int) -> bool:
        return traits_of(self.values[index]).clips is not None

    def _is_bias(self, index: int, region: set[int], head: int) -> bool:
        """Whether this adds a constant directly to a product's result."""
        reshaped = all(traits_of(self.values[i]).reshapes for i in region - {head})
        plain = self.families[head] is Family.PRODUCT and reshaped
        return plain and self.names[index] == "add" and any(map(is_constant, self.values[index].args))

    def _tensors(self, index: int) -> list[Any]:
        return [v for v in operands(self.values[index]) if isinstance(v, relax.Var) and is_float(v)]

    def _with_sides(self, tail: list[int], head: int | None) -> set[int]:
        """`tail`, and the pointwise operators on other tensors that are read only by it."""
        inside = set(tail)
        size = _size(self.bindings[max(tail)].var)
        pending = [var for index in tail if index != head for var in self._tensors(index)]
        while pending and not self._separate_sums:
            index = self.index.get(pending.pop())
            if index is None or index in inside or index in self._taken or len(inside) > MAX_POINTWISE:
                continue
            plain = self.families[index] is Family.POINTWISE and _size(self.bindings[index].var) == size
            if plain and self.readers(index) <= inside:
                inside.add(index)
                pending += self._tensors(index)
        return inside


def is_float(expr: Any) -> bool:
    """Whether an expression is a float32 tensor."""
    return isinstance(expr.ty, relax.TensorType) and str(expr.ty.dtype) == "float32"


def _size(expr: Any) -> int:
    return math.prod(shape_of(expr))
