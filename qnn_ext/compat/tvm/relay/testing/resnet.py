"""relay.testing.resnet."""

from typing import Any

from ....workloads import Workload, create_workload
from ....workloads import resnet as get_net

__all__ = ["get_net", "get_workload"]


def get_workload(*args: Any, **options: Any) -> Workload:
    """The network, with the arguments of `get_net`, and random parameters."""
    return create_workload(get_net(*args, **options))
