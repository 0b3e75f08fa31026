"""Convolutions of groups of few channels, whose lanes read their own groups: against int64 NumPy on every CPU."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext.topi_int8 import candidates
from qnn_ext.topi_int8.cpu.gathered import GatheredDot, suited
from qnn_ext.topi_int8.x86.intrin import INSTRUCTIONS
from tests.cases.convolutions import conv, describe

from .kernels import CPUS, check, cpu_target

SAME = (1, 1, 1, 1)
VNNI = INSTRUCTIONS[0]

# fmt: off
WORKLOADS = [
    conv((1, 9, 10, 64), 64, (3, 3), padding=SAME, groups=16),                       # 4 channels a group
    conv((1, 9, 10, 64), 64, (3, 3), padding=SAME, groups=8),                        # 8
    conv((2, 13, 11, 104), 104, (3, 3), strides=(2, 2), padding=SAME, groups=13),    # a last block that is half full
    conv((1, 7, 7, 44), 44, (3, 3), padding=SAME, groups=11),                        # 11 of 16 groups
    conv((1, 7, 19, 12), 12, (3, 3), padding=SAME, groups=3),                        # less than one register
    conv((2, 9, 12, 32), 64, (3, 3), padding=(0, 1, 2, 3), dilation=(2, 2), groups=8),   # 4 channels to 8
    conv((1, 8, 8, 64), 32, (3, 3), groups=8),                                       # 8 to 4, no padding
    conv((1, 8, 9, 16), 8, (2, 3), strides=(1, 2), padding=(1, 0, 0, 2), groups=4),  # 4 to 2
    conv((1, 11, 9, 20), 5, (3, 3), padding=SAME, groups=5),                         # 4 to 1
    conv((1, 6, 7, 48), 16, (3, 1), padding=(1, 0, 1, 0), groups=4),                 # 12 to 4
    conv((1, 21, 23, 32), 32, (5, 5), strides=(3, 1), padding=(2, 2, 2, 2), dilation=(1, 2), groups=8),
    conv((1, 12, 15, 16), 16, (7, 7), padding=(3, 3, 3, 3), groups=4),
    conv((1, 1, 1, 16), 16, (3, 3), padding=SAME, groups=4),                         # one pixel
    conv((1, 60, 56, 64), 64, (3, 3), padding=SAME, groups=16),                      # several strips
]
# fmt: on


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("workload", WORKLOADS, ids=describe)
def test_shapes(workload, cpu):
    target = cpu_target(cpu)
    check(workload, target)


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("fill", [("max", "min"), ("max", "max"), ("min", "min")], ids="-".join)
@pytest.mark.parametrize("data_dtype", ["uint8", "int8"])
def test_extremes_do_not_saturate(cpu, fill, data_dtype):
    target = cpu_target(cpu)
    for groups in (8, 16):
        workload = conv((1, 6, 9, 64), 64, (3, 3), padding=SAME, groups=groups, data_dtype=data_dtype)
        check(workload, target, epilogue="none", fill=fill, pad_value=0)


@pytest.mark.parametrize("cpu", ["native", "avx2"])
@pytest.mark.parametrize("epilogue", ["none", "residual", "fixed_point"])
def test_epilogues(cpu, epilogue):
    target = cpu_target(cpu)
    for channels in (32, 40):
        workload = conv((1, 9, 11, channels), channels, (3, 3), padding=SAME, groups=channels // 4)
        check(workload, target, epilogue=epilogue)


@pytest.mark.parametrize("workload", [WORKLOADS[0], WORKLOADS[2], WORKLOADS[5]], ids=describe)
def test_forced_tiles(workload):
    target = cpu_target("native")
    implementation = candidates(workload, target)[0]
    tiles = list(implementation.tiles(workload))
    assert len(tiles) > 3
    for tile in tiles[:: max(1, len(tiles) // 6)]:
        check(workload, target, implementation.with_tile(tile))


@pytest.mark.parametrize("cpu", ["vnni_256", "avx512", "avx2"])
def test_no_weight_is_a_zero_between_groups(cpu):
    chosen = candidates(WORKLOADS[0], cpu_target(cpu))[0]
    assert (chosen.pack_weight(WORKLOADS[0], np.ones((64, 3, 3, 4), np.int8)) == 1).all()


@pytest.mark.parametrize("workload", WORKLOADS, ids=describe)
def test_suited(workload):
    found = suited(workload, VNNI)
    assert isinstance(found, GatheredDot)
    assert found.span == workload.in_channels // workload.groups
    assert found.outputs == workload.out_channels // workload.groups


@pytest.mark.parametrize(
    "workload",
    [
        conv((1, 8, 8, 64), 64, (1, 1), groups=16),  # nothing is read twice
        conv((1, 8, 8, 48), 48, (3, 3), groups=8),  # 6 channels
        conv((1, 8, 8, 64), 64, (3, 3), groups=4),  # 16 channels fill a register by themselves
        conv((1, 8, 8, 64), 64, (3, 3)),
        conv((1, 8, 8, 256), 32, (3, 3), groups=16),  # 16 to 2: more than a register of activations
    ],
    ids=describe,
)
def test_not_suited(workload):
    assert suited(workload, VNNI) is VNNI
