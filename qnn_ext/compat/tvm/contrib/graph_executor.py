"""tvm.contrib.graph_executor."""

from ...absent import absent
from ...library import GraphModule, create

__all__ = ["GraphModule", "create"]

__getattr__ = absent("tvm.contrib.graph_executor", {"get_device": "the library knows its device"})
