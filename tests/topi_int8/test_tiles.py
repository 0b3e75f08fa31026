"""Register tiles: every legal one computes the same, in every mode of addressing."""

from __future__ import annotations

import pytest

from qnn_ext.topi_int8 import BatchMatmulWorkload, DenseWorkload, candidates
from qnn_ext.topi_int8.cpu.microkernel import strip_size

from .kernels import CPUS, check, cpu_target
from .test_conv2d import conv, describe

# fmt: off
WORKLOADS = [
    conv((1, 6, 6, 32), 40, (1, 1)),                                      # lines of pixels, or rows and columns
    conv((2, 1, 9, 16), 33, (1, 1)),
    conv((1, 7, 9, 16), 48, (3, 3), padding=(1, 1, 1, 1)),
    conv((1, 15, 13, 3), 24, (3, 3), strides=(2, 2), padding=(0, 0, 1, 1)),
    conv((1, 6, 10, 32), 96, (3, 3), padding=(1, 1, 1, 1), groups=2),
    DenseWorkload(19, 50, 70, "uint8", "int8"),
    DenseWorkload(1, 64, 200, "uint8", "int8"),
    BatchMatmulWorkload(3, 13, 20, 40, "uint8", "int8"),
]
# fmt: on


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_forced_tiles(workload):
    target = cpu_target("native")
    implementation = candidates(workload, target)[0]
    tiles = list(implementation.tiles(workload))
    assert len(tiles) > 3
    for tile in tiles[:: max(1, len(tiles) // 6)]:
        check(workload, target, implementation.with_tile(tile))


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize(
    "workload",
    [
        conv((1, 64, 30, 20), 32, (3, 3), padding=(1, 1, 1, 1)),  # several strips, each pads its own rows
        conv((2, 48, 40, 3), 16, (7, 7), strides=(2, 2), padding=(2, 2, 3, 3)),
        conv((1, 40, 64, 32), 16, (1, 1)),
        conv((1, 64, 32, 32), 96, (1, 1), strides=(2, 2)),
    ],
    ids=describe,
)
def test_strips(workload, cpu):
    check(workload, cpu_target(cpu))


def test_strip_size():
    assert strip_size(56, 1000, 4096) == 28  # 16 of 1000 bytes fit half of L1; the next divisor
    assert strip_size(7, 1000, 8000) == 7  # weights larger than the activations pass once
    assert strip_size(112, 100_000, 4096, least=5) == 7
