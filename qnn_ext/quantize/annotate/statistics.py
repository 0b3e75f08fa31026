"""Statistics: deviations and variances that a network computes of its own tensors, as in pooling over time.

√(Σx²/n − (Σx/n)²) is the difference of numbers that may be a thousand times as large, and small deviations have all of
a square root's slope. An error of one of 256 steps in a mean or in a mean square is then as large as the result. Like
normalizations, they are computed in float, from tensors as they are before they are quantized for others: they have
next to no multiply-accumulates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...op.base import constant_value
from ...passes.rewrite import operands
from .clusters import Graph
from .families import Family
from .logarithms import KEEP_RATIOS

_SUMS = ("mean", "sum", "variance", "std")
_BETWEEN = (*KEEP_RATIOS, "negative", "minimum", *_SUMS)


def statistics(graph: Graph) -> set[int]:
    """The bindings of square roots, and of differences of sums, that are computed from sums, and of what leads from
    tensors to them: sums, pointwise operators that are not in the kernel of a product, and moves for them alone."""
    found: set[int] = set()
    for index, name in enumerate(graph.names):
        read = list(operands(graph.values[index]))
        if name in ("variance", "std"):
            found |= {index, *_behind(graph, read)}
        elif _is_root(graph, index) or (name == "subtract" and all(_from_sums(graph, operand) for operand in read)):
            behind = _behind(graph, read)
            if any(graph.names[other] in _SUMS for other in behind):
                found |= {index, *behind}
    kept: set[int] = set()
    for index in sorted(found, reverse=True):
        if graph.families[index] is not Family.MOVE or graph.readers(index) <= kept:
            kept.add(index)
    return kept


def _from_sums(graph: Graph, expr: Any) -> bool:
    """Whether pointwise operators alone lead from sums to an operand."""

    def behind(index: int) -> Iterable[Any]:
        return () if graph.names[index] in _SUMS else _read(graph, index)

    return any(graph.names[index] in _SUMS for index in graph.leading_to([expr], behind))


def _behind(graph: Graph, exprs: Iterable[Any]) -> set[int]:
    """The pointwise operators, sums and moves that lead to some operands."""
    return {index for index in graph.leading_to(exprs, lambda index: _read(graph, index)) if _is_part(graph, index)}


def _read(graph: Graph, index: int) -> Iterable[Any]:
    return operands(graph.values[index]) if _is_part(graph, index) else ()


def _is_part(graph: Graph, index: int) -> bool:
    if graph.families[index] is Family.MOVE:
        return True
    head = graph.cluster_of(index).head if graph.in_cluster(index) else None
    in_product = head is not None and graph.families[head] is Family.PRODUCT
    return graph.names[index] in _BETWEEN and not in_product


def _is_root(graph: Graph, index: int) -> bool:
    if graph.names[index] != "power":
        return graph.names[index] in ("sqrt", "rsqrt")
    exponent = constant_value(graph.values[index].args[1])
    return exponent is not None and bool((abs(exponent) < 1).all())
