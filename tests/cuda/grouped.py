"""Products with block-wise quantized weights by a kernel of the test's choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from unittest import mock

import tvm

from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BlockwiseWorkload, strategy

from .meaning import lowered


@contextmanager
def computed_by(name: str) -> Iterator[None]:
    """Within the context, the implementation `name` computes all products with such weights, gaining by it or not."""

    def only(workload, target):
        if not isinstance(workload, BlockwiseWorkload):
            return strategy.candidates(workload, target)
        return [item for item in strategy._made_for(workload, target) if item.name == name]

    with mock.patch.object(import_module("qnn_ext.passes.lower"), "candidates", only):
        yield


def source_of(mod: tvm.IRModule, architecture: str) -> str:
    """The CUDA source of a lowered module."""
    return lowered(mod, make_target(architecture))[0]
