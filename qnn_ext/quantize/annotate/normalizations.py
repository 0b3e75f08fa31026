"""Normalizations written out in single operators: x − mean(x), x / √Σx², exp(x) / Σ exp(x), layer norm before ONNX 17.

Their sums scale the very values that they are computed from, so an error in a sum is an error in every value. Like the
corresponding single operators (nn.layer_norm, nn.softmax), they stay float.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...op.arguments import data_of
from .clusters import Cluster, Graph
from .families import Family

_SUMS = ("mean", "sum")


def normalizations(graph: Graph) -> set[Cluster]:
    """The clusters of pointwise operators and sums that are parts of a normalization.

    A sum belongs to one if pointwise operators alone lead from it to an operator that also reads the summed tensor or a
    pointwise function of it.
    """
    found: set[Cluster] = set()
    for cluster in graph.clusters:
        if cluster.head is not None and graph.names[cluster.head] in _SUMS:
            summed = data_of(graph.values[cluster.head])
            source = _headless(graph, summed)
            roots = {root for root in (graph.root(summed), *_roots(graph, source)) if root is not None}
            path = _paths(graph, cluster, roots)
            if path:
                found |= {cluster, *path}
                found.update([source] if source is not None else [])
    return found


def _headless(graph: Graph, expr: Any) -> Cluster | None:
    """The cluster of pointwise operators alone that computes an operand."""
    root = graph.root(expr)
    index = graph.index.get(root)
    if index is None or not graph.in_cluster(index) or graph.cluster_of(index).head is not None:
        return None
    return graph.cluster_of(index)


def _roots(graph: Graph, cluster: Cluster | None) -> Iterator[Any]:
    """The tensors that a cluster of pointwise operators reads."""
    for _, operand in [] if cluster is None else graph.external(cluster):
        yield graph.root(operand)


def _paths(graph: Graph, start: Cluster, roots: set[Any]) -> set[Cluster]:
    """The clusters of pointwise operators after `start` that read one of the roots, and those on the way to them."""
    behind: dict[Cluster, list[Cluster]] = {}
    pending = [start]
    while pending:
        cluster = pending.pop()
        if cluster not in behind:
            behind[cluster] = list(_behind(graph, cluster.end))
            pending += behind[cluster]
    found = {cluster for cluster in behind if cluster is not start and roots & set(_roots(graph, cluster))}
    for cluster in sorted(behind, key=lambda cluster: -cluster.end):
        if cluster is not start and any(other in found for other in behind[cluster]):
            found.add(cluster)
    return found


def _behind(graph: Graph, index: int) -> Iterator[Cluster]:
    """The clusters of pointwise operators that read a binding, moved or unchanged."""
    for reader in sorted(graph.readers(index)):
        if reader >= len(graph.bindings):
            continue
        if graph.in_cluster(reader):
            if graph.cluster_of(reader).head is None:
                yield graph.cluster_of(reader)
        elif graph.families[reader] is Family.MOVE:
            yield from _behind(graph, reader)
