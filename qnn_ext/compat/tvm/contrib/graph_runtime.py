"""tvm.contrib.graph_runtime: the name of graph_executor before TVM 0.8."""

from ...library import GraphModule, create

__all__ = ["GraphModule", "create"]
