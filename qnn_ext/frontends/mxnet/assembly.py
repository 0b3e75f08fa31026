"""What the converters of an MXNet symbol share: its graph, its parameters, and which nodes are fused into others."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tvm import relax

from ..assembly import Assembly
from .symbol import Edge, Graph, Operator


class MxnetAssembly(Assembly):
    """The assembly of a graph.

    params:    arrays by name
    intended:  whether sums are computed as intended, or as MXNet 1.9.1 computes them; see `from_mxnet`
    run_graph: converts the nodes of a graph that is fused into an operator, given the values of its variables
    fused:     BatchNorm nodes folded into the preceding convolution
    """

    def __init__(
        self,
        graph: Graph,
        params: Mapping[str, np.ndarray],
        intended: bool,
        run_graph: Callable[[Graph, dict[Edge, relax.Expr]], list[relax.Expr]],
    ) -> None:
        super().__init__()
        self.graph = graph
        self.params = params
        self.intended = intended
        self.run_graph = run_graph
        self.fused: list[Operator] = []

    def sole_consumer(self, operator: Operator) -> Operator | None:
        """The only node that reads output 0 of `operator`; None when there are several or it is a model output."""
        edge = (operator.index, 0)
        within = operator.index < len(self.graph.nodes) and self.graph.nodes[operator.index] is operator
        if not within or edge in self.graph.heads:  # a subgraph node has its readers elsewhere
            return None
        readers = [node for node in self.graph.nodes[operator.index + 1 :] if edge in node.inputs]
        return readers[0] if len(readers) == 1 else None
