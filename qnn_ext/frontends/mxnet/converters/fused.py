"""Float _sg_mkldnn_* operators: their subgraph is a graph of ordinary operators and is converted as such."""

from __future__ import annotations

from tvm import relax

from ..node import Node
from ..symbol import Edge, Graph

SUMS = ("elemwise_add", "_plus", "_Plus", "broadcast_add")


def convert_fused_float(node: Node) -> relax.Expr | list[relax.Expr]:
    """The operators of the subgraph in order, in float32."""
    graph = node.subgraph
    variables = [operator.index for operator in graph.nodes if operator.is_variable]
    if len(variables) != len(node.inputs):
        raise node.malformed(f"it has {len(node.inputs)} inputs, but its subgraph has {len(variables)} variables")
    residual = _residual(graph) if node.flag("with_sum") else None
    if residual is not None:  # MXNet moves it after the parameters
        variables.remove(residual)
        variables.append(residual)
    values: dict[Edge, relax.Expr] = {(index, 0): value for index, value in zip(variables, node.inputs, strict=True)}
    return node.assembly.run_graph(graph, values)


def _residual(graph: Graph) -> int | None:
    """The variable that the sum adds to the convolution."""
    total = graph.operator(*SUMS)
    if total is None:
        return None
    return next((index for index, _ in total.inputs if graph.nodes[index].is_variable), None)
