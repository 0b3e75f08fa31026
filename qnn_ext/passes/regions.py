"""Regions: which operators one kernel computes, from its head on, and how many of them.

`fuse` asks this on the integer graph, for kernels; `quantize.annotate.clusters` on a float graph, because what will be
one kernel is quantized at its ends only. Each says what its graph's operators are; the rules are here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from tvm import relax

from .rewrite import consumers, op_name, operands

# The most elementwise operators in a kernel after its head.
MAX_ELEMENTWISE = 24


class Regions(ABC):
    """The bindings of a function and which of them read which.

    names: of the operators
    index: variable -> its binding
    taken: the bindings that already belong to a region
    most:  how many elementwise operators may follow a head
    """

    most = MAX_ELEMENTWISE

    def __init__(self, function: relax.Function, bindings: Sequence[relax.VarBinding]) -> None:
        self.bindings = bindings
        self.names = [op_name(binding.value) for binding in bindings]
        self.index = {binding.var: index for index, binding in enumerate(bindings)}
        self.readers_of = {var: set(found) for var, found in consumers(function, bindings).items()}
        self.taken: set[int] = set()

    # ---- what a graph says of its operators ----------------------------------------------------------------------

    @abstractmethod
    def is_elementwise(self, index: int) -> bool:
        """Whether an operator can be computed inside another one's kernel, element by element."""

    @abstractmethod
    def follows(self, index: int, region: set[int], head: int) -> bool:
        """Whether the kernel of `head` and `region` can also compute one of their readers."""

    @abstractmethod
    def comes_aside(self, index: int, inside: set[int], head: int, last: int) -> bool:
        """Whether the kernel that ends with `last` can also compute an operator that only it reads."""

    # ---- the rules -----------------------------------------------------------------------------------------------

    def readers(self, index: int) -> set[int]:
        """The bindings that read a value; len(bindings) stands for the function's result."""
        return self.readers_of.get(self.bindings[index].var, set())

    def sources(self, index: int) -> list[int]:
        """The bindings that an operator reads."""
        found = (self.index.get(operand) for operand in operands(self.bindings[index].value))
        return [source for source in found if source is not None]

    def take(self, members: Iterable[int]) -> list[int]:
        """The members, ascending, which from now on belong to a region."""
        self.taken.update(members)
        return sorted(members)

    def is_full(self, head: int, inside: Iterable[int], another: int) -> bool:
        """Whether `another` would make the kernel's expression too large."""
        return len({*inside, another} - {head}) > self.most

    def tail(self, head: int) -> list[int]:
        """The head and the elementwise operators after it, up to the last point where only a single value leaves.

        Branches that meet again are included. As every value except the last is read only by members, no path leaves
        the region and comes back.
        """
        region, closed = {head}, [head]
        pending = set(self.readers(head))
        while pending:
            following = min(pending)
            free = following < len(self.bindings) and following not in self.taken
            if not free or not self.follows(following, region, head) or self.is_full(head, region, following):
                break
            region.add(following)
            if pending == {following} and self.is_elementwise(following):
                closed = sorted(region)
            pending = (pending | self.readers(following)) - region
        return closed

    def with_sides(self, tail: Sequence[int], head: int) -> list[int]:
        """`tail` and what only its elementwise operators read."""
        inside, last = set(tail), max(tail)
        pending = [source for member in sorted(tail) if self._reads(member, head) for source in self.sources(member)]
        while pending:
            index = pending.pop()
            free = index not in inside and index not in self.taken and self.readers(index) <= inside
            if free and self.comes_aside(index, inside, head, last):
                inside.add(index)
                pending.extend(self.sources(index))
        return sorted(inside)

    def _reads(self, member: int, head: int) -> bool:
        return member != head or self.is_elementwise(head)

    def grouped(self, heads: Iterable[int]) -> dict[int, list[int]]:
        """Head -> the members of its kernel. First each head takes the operators after it; only then does each, in the
        same order, take operators on other inputs."""
        tails = {head: self.take(self.tail(head)) for head in heads}
        return {head: self.take(self.with_sides(tail, head)) for head, tail in tails.items()}

    def around(self, head: int) -> list[int]:
        """What a kernel with this head would compute."""
        return self.with_sides(self.tail(head), head)
