"""Products that are divided by products of the same rows, as in attention without softmax: (q·KᵀV) / (q·Kᵀ1).

A row of q scales both, and cancels out: the quotient of a small row is as large as that of a large one. Integers have
one step for all rows, so that small rows are quotients of rounding errors, or 0 / 0. Such products stay float; they
are a small part of what the network computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvm import relax

from ...op.arguments import data_of, factors_of
from ...passes.rewrite import operands
from .clusters import Cluster, Graph
from .families import Family, is_constant
from .logarithms import KEEP_RATIOS


def divided_products(graph: Graph) -> set[int]:
    """The bindings of products whose results become a divisor in another kernel, and of those that are divided by them
    and share an operand with them."""
    found: set[int] = set()
    for index, name in enumerate(graph.names):
        if name == "divide":
            dividend, divisor = graph.values[index].args
            for at, dividends in _quotients(graph, index, dividend):
                own = graph.cluster_of(at) if graph.in_cluster(at) else None
                below = set(_products(graph, divisor, own))
                read = {root for product in below for root in _roots(graph, product)}
                above = {product for one in dividends for product in _products(graph, one, None)}
                found |= below | {product for product in above if read & set(_roots(graph, product))}
    return found


def _quotients(graph: Graph, index: int, dividend: Any) -> Iterator[tuple[int, list[Any]]]:
    """Where the divisor of a division divides what: itself, or if its dividend is constant, what its result
    multiplies."""
    if not is_constant(dividend):
        yield index, [dividend]
        return
    for reader in sorted(graph.readers(index)):
        if reader >= len(graph.bindings):
            continue
        if graph.names[reader] == "multiply":
            yield reader, list(graph.values[reader].args)
        elif graph.families[reader] is Family.MOVE:
            yield from _quotients(graph, reader, dividend)


def _products(graph: Graph, expr: Any, own: Cluster | None) -> Iterator[int]:
    """The products outside of the cluster `own` from which moves, and functions of one tensor that keep ratios, lead to
    an operand: not the whole chain of a residual sum."""

    def behind(index: int) -> list[Any]:
        value, family = graph.values[index], graph.families[index]
        if family is Family.MOVE:
            return [data_of(value)]
        if family is Family.PRODUCT or graph.names[index] not in KEEP_RATIOS:
            return []
        read = [operand for operand in operands(value) if isinstance(operand, relax.Var)]
        return read if len(read) == 1 else []

    for index in graph.leading_to([expr], behind):
        if graph.families[index] is Family.PRODUCT and graph.cluster_of(index) is not own:
            yield index


def _roots(graph: Graph, product: int) -> Iterator[Any]:
    """The tensors that a product multiplies."""
    for operand in factors_of(graph.values[product]):
        root = graph.root(operand)
        if root is not None:
            yield root
