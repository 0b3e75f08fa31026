"""Register tiles: every legal one computes the same, in every mode of addressing."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te
from tvm.s_tir import Schedule

from qnn_ext.targets.families import X86
from qnn_ext.targets.features import operand_dtypes
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BatchMatmulWorkload, DenseWorkload, candidates
from qnn_ext.topi_int8.arm_cpu import smmla_dense
from qnn_ext.topi_int8.cpu import batch_matmul, dense
from qnn_ext.topi_int8.cpu.microkernel import Tile, strip_size
from tests.cases.convolutions import conv, describe

from .kernels import CPUS, check, cpu_target, operand_shapes

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


@pytest.mark.one_in(2)
@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_forced_tiles(workload):
    target = cpu_target("native")
    implementation = candidates(workload, target)[0]
    tiles = list(implementation.tiles(workload))
    assert len(tiles) > 3
    for tile in tiles[:: max(1, len(tiles) // 6)]:
        check(workload, target, implementation.with_tile(tile))


@pytest.mark.sampled("cpu", whole="native")
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
    assert strip_size(56, 1000, 4096, X86.caches) == 28  # 16 of 1000 bytes fit half of L1; the next divisor
    assert strip_size(7, 1000, 8000, X86.caches) == 7  # weights larger than the activations pass once
    assert strip_size(112, 100_000, 4096, X86.caches, least=5) == 7


@pytest.mark.parametrize("cpu", ["avx512_vnni", "avx2", "rpi3", "rpi5", "graviton3", "armv7"])
@pytest.mark.parametrize("batch", [0, 2])
def test_strips_by_the_caches_of_the_target(cpu, batch, monkeypatch):
    """384 KiB of weights are less than half of an x86's second cache level, and pass by what stays in the first; they
    are more than half of an ARM CPU's, and pass by what stays in the second."""
    target = make_target(cpu, 1)
    dtypes = operand_dtypes(target) or ("uint8", "int8")
    sizes = 1200, 512, 768, *dtypes
    workload = BatchMatmulWorkload(batch, *sizes) if batch else DenseWorkload(*sizes)
    implementation = candidates(workload, target)[0]
    strips = []

    def record(sch, accumulator, output, *instruction_and_tile, strip, **_):
        (tile,) = [one for one in instruction_and_tile if isinstance(one, Tile)]
        strips.append(strip * tile.columns * workload.k)

    for module, name in ((dense, "microkernel"), (batch_matmul, "microkernel"), (smmla_dense, "tile")):
        monkeypatch.setattr(module, f"schedule_{name}", record)
    x, w = operand_shapes(workload)
    if implementation.pack_weight:
        w = implementation.pack_weight(workload, np.zeros(w, dtypes[1])).shape
    operands = [te.placeholder(shape, dtype) for shape, dtype in zip((x, w), dtypes, strict=True)]
    sch = Schedule(te.create_prim_func([*operands, implementation.compute(workload, *operands, 0)]))
    implementation.schedule(sch, workload, target)
    (size,) = strips
    assert size <= 64 << 10 if cpu.startswith("avx") else size > 64 << 10
