"""Clusters: which operators become one kernel, so that only the last one's result is ever a tensor in memory.

A cluster is a head (a product, a pool, a float function) with the pointwise operators after it, up to the last point
that only a single value leaves, by the rules of `passes.regions`; branches that meet again are inside. Pointwise
operators without such a head form clusters of their own. Values inside a cluster stay in registers and are not
quantized.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import IRModule, relax

from ...op.arguments import data_of
from ...op.base import shape_of
from ...op.relax_table import traits_of
from ...passes.regions import MAX_ELEMENTWISE, Regions
from ...passes.rewrite import bindings_of, operands
from .families import Family, family_of, is_constant


@dataclass(frozen=True)
class Cluster:
    """Indices of bindings that are computed together.

    head: the operator that the others follow, None for pointwise operators alone
    members: all of them, ascending, head included; end: the one whose result leaves the cluster
    """

    head: int | None
    members: tuple[int, ...]
    end: int


class Graph(Regions):
    """The bindings of `main`, their families, their readers, and their clusters.

    float_functions: see QConfig
    separate_sums: whether sums of two tensors read both of them quantized, and no accumulator in registers
    integers_only: whether a kernel may contain only operators with an integer form: a bias and a clip after a product
                   or a sum of two tensors, and functions of one tensor, which become tables
    dynamic:       whether scales are computed at run time
    """

    most = MAX_ELEMENTWISE * 2 // 3  # a kernel will also dequantize its operands

    def __init__(
        self,
        mod: IRModule,
        float_functions: Sequence[str],
        separate_sums: bool = False,
        integers_only: bool = False,
        dynamic: bool = False,
    ) -> None:
        self.function = mod["main"]
        super().__init__(self.function, bindings_of(self.function))
        self.values = [binding.value for binding in self.bindings]
        self.families = [family_of(value, float_functions, dynamic) for value in self.values]
        self.families = [self._family_of_part(index) for index in range(len(self.values))]
        self._separate_sums = separate_sums or integers_only
        self._integers_only = integers_only
        self._cluster: dict[int, Cluster] = {}
        self._find_clusters()

    def _family_of_part(self, index: int) -> Family:
        """The family of a binding, where a part of what is no move, such as a loop's result, is a result itself."""
        value = self.values[index]
        whole = self.index.get(value.tuple_value) if isinstance(value, relax.TupleGetItem) else None
        return self.families[index] if whole is None or self.families[whole] is Family.MOVE else Family.FLOAT

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

    def leading_to(self, exprs: Iterable[Any], behind: Callable[[int], Iterable[Any]]) -> Iterator[int]:
        """The bindings of some expressions, and of all that `behind` leads to from one of them, once each."""
        pending, seen = [*exprs], set()
        while pending:
            expr = pending.pop()
            if isinstance(expr, relax.Var) and expr in self.index and expr not in seen:
                seen.add(expr)
                yield self.index[expr]
                pending += behind(self.index[expr])

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

    def before_products(self) -> set[int]:
        """The bindings whose results a product reads, directly or through anything that works on integers."""
        found: set[int] = set()
        for index in reversed(range(len(self.values))):
            for reader in self.readers(index):
                family = self.families[reader] if reader < len(self.values) else Family.FLOAT
                if family is Family.PRODUCT or (family is not Family.FLOAT and reader in found):
                    found.add(index)
        return found

    # ---- finding clusters ----------------------------------------------------------------------------------------

    def _find_clusters(self) -> None:
        """Products first, later ones before earlier: if two meet in a sum, the later one takes it. Pointwise operators
        that no head takes are clustered last."""
        indices = [index for index in range(len(self.bindings)) if self._is_tensor(index)]
        products = [index for index in reversed(indices) if self.families[index] is Family.PRODUCT]
        others = [index for index in indices if self.families[index] in (Family.SUM, Family.FLOAT, Family.ANNOTATED)]
        for head, members in self.grouped((*products, *others)).items():
            self._add(head, members)
        for index in indices:
            if self.families[index] is Family.JOIN:
                self._add(index, [index])
        for first in indices:
            if self.families[first] is Family.POINTWISE and first not in self.taken:
                self._add(None, self.take(self.around(first)))

    def _add(self, head: int | None, members: list[int]) -> None:
        self._cluster.update(dict.fromkeys(members, Cluster(head, tuple(members), members[-1])))

    def _is_tensor(self, index: int) -> bool:
        return is_float(self.bindings[index].var)

    def is_elementwise(self, index: int) -> bool:
        return self.families[index] is Family.POINTWISE

    def follows(self, index: int, region: set[int], head: int) -> bool:
        """A pointwise operator with as many elements, or a reshape before it."""
        if not self._is_tensor(index) or self._size(index) != self._size(head):
            return False
        if traits_of(self.values[index]).reshapes:
            return True
        if not self.is_elementwise(index):
            return False
        own = self._tensors(head) if self.is_elementwise(head) else []
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

    def comes_aside(self, index: int, inside: set[int], head: int, last: int) -> bool:
        """A pointwise operator with as many elements."""
        if self._separate_sums or not self._is_tensor(index) or not self.is_elementwise(index):
            return False
        return self._size(index) == self._size(last) and not self.is_full(head, inside, index)

    def _size(self, index: int) -> int:
        return math.prod(shape_of(self.bindings[index].var))


def is_float(expr: Any) -> bool:
    """Whether an expression is a float32 tensor."""
    return isinstance(expr.ty, relax.TensorType) and str(expr.ty.dtype) == "float32"
