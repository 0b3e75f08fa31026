"""relay.testing.inception_v3."""

from typing import Any

from ....networks import inception_v3 as get_net
from ....workloads import Workload, create_workload

__all__ = ["get_net", "get_workload"]


def get_workload(*args: Any, **options: Any) -> Workload:
    """The network, with the arguments of `get_net`, and random parameters."""
    return create_workload(get_net(*args, **options))
