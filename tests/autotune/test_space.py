"""Design spaces: the default first, every decision of every kernel legal and right, JSON and back."""

from __future__ import annotations

import random
from dataclasses import asdict

import pytest

from qnn_ext.autotune import space_of
from qnn_ext.autotune.space import space_for
from qnn_ext.topi_int8 import BatchMatmulWorkload, DenseWorkload, candidates
from tests.cases.convolutions import conv
from tests.cpus import cpu_target
from tests.topi_int8.kernels import check

# fmt: off
WORKLOADS = [
    conv((1, 12, 10, 32), 40, (1, 1)),
    conv((1, 12, 18, 16), 48, (3, 3), padding=(1, 1, 1, 1)),
    conv((1, 15, 13, 3), 24, (3, 3), strides=(2, 2), padding=(0, 0, 1, 1)),
    conv((1, 14, 14, 96), 96, (3, 3), padding=(1, 1, 1, 1), groups=96),
    conv((1, 20, 20, 8), 8, (3, 3), padding=(1, 1, 1, 1), groups=8),
    conv((1, 18, 18, 32), 32, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2), groups=32),
    DenseWorkload(24, 50, 70, "uint8", "int8"),
    BatchMatmulWorkload(3, 12, 20, 40, "uint8", "int8"),
]
# fmt: on


@pytest.mark.one_in(2)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_every_decision_computes_the_same(workload, threads):
    target = cpu_target("native", threads)
    implementation = candidates(workload, target)[0]
    if implementation.tiles is None:
        pytest.skip(f"{implementation.name} has nothing to tune")
    space = space_for(implementation, workload)
    assert space.default == next(iter(implementation.tiles(workload))) and len(space) > len(
        implementation.tiles(workload)
    )
    drawn = random.Random(0).sample(space.configurations[len(implementation.tiles(workload)) :], 3)
    for configuration in drawn:
        check(workload, target, implementation.with_tile(configuration))


def test_fields_and_back(task):
    space = space_of(task)
    assert [space.parse(asdict(item)) for item in space.configurations] == space.configurations
    assert space.parse({"rows": 1}) is None
    assert space.features.shape[0] == len(space) == len({tuple(row) for row in space.features.tolist()})
