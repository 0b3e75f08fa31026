"""The machine code of products on ARM: the wanted instruction in the loop over k, and nothing that spills there."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import DenseWorkload, candidates
from tests.cases.convolutions import conv, describe
from tests.topi_int8.machine_code import assembly, innermost_loops, reloaded, stored

from .kernels import ARM_CPUS

SAME = (1, 1, 1, 1)
SIGNED = {"data_dtype": "int8"}

# fmt: off
WORKLOADS = [
    conv((1, 14, 14, 256), 256, (1, 1), **SIGNED),
    conv((1, 14, 14, 256), 256, (3, 3), padding=SAME, **SIGNED),
    conv((1, 7, 7, 512), 128, (3, 3), padding=SAME, **SIGNED),
    conv((1, 28, 28, 256), 128, (1, 1), strides=(2, 2), **SIGNED),
    conv((1, 56, 56, 64), 64, (3, 3), padding=SAME, **SIGNED),
    conv((1, 28, 28, 144), 24, (1, 1), **SIGNED),
    conv((1, 28, 28, 96), 576, (1, 1), **SIGNED),
    conv((1, 7, 7, 160), 960, (1, 1), **SIGNED),
    conv((1, 9, 11, 72), 50, (3, 3), padding=SAME, **SIGNED),
    conv((1, 12, 20, 64), 96, (5, 5), strides=(2, 2), **SIGNED),
    DenseWorkload(1, 1024, 1000, "int8", "int8"),
    DenseWorkload(32, 256, 256, "int8", "int8"),
    DenseWorkload(197, 768, 100, "int8", "int8"),
]
# fmt: on

# target, weights, what the loop multiplies with, and what it adds with
EXPECTED = {
    "dotprod": ("dotprod", True, r"sdot\s+v\d+\.4s, v\d+\.16b, v\d+\.4b\[", None),
    "rpi5": ("rpi5", True, r"sdot\s+v\d+\.4s, v\d+\.16b, v\d+\.4b\[", None),
    "asimd": ("asimd", True, r"smlal2\s+v\d+\.8h, v\d+\.16b", r"sadalp\s+v\d+\.4s, v\d+\.8h"),
    "rpi3": ("rpi3", True, r"smlal2\s+v\d+\.8h, v\d+\.16b", r"sadalp\s+v\d+\.4s, v\d+\.8h"),
    "rpi4": ("rpi4", True, r"smlal2\s+v\d+\.8h, v\d+\.16b", r"sadalp\s+v\d+\.4s, v\d+\.8h"),
    "asimd-singles": ("asimd", False, r"smull2?\s+v\d+\.8h, v\d+\.", r"sadalp\s+v\d+\.4s, v\d+\.8h"),
    "armv7": ("armv7", True, r"vmlal\.s8\s+q\d+, d\d+, d\d+", r"vpadal\.s16\s+q"),
    "armv7-singles": ("armv7", False, r"vmull\.s8\s+q\d+, d\d+, d\d+", r"vpadal\.s16\s+q"),
}


@pytest.mark.sampled("expected")
@pytest.mark.parametrize("expected", EXPECTED)
@pytest.mark.parametrize(
    "workload", WORKLOADS, ids=lambda item: describe(item) if hasattr(item, "kernel") else str(item)
)
def test_loop_over_k(workload, expected):
    name, pairable, product, total = EXPECTED[expected]
    workload = replace(workload, pairable_weights=pairable)
    target = make_target(ARM_CPUS.get(name, name), 1)
    implementation = candidates(workload, target)[0]
    loops = innermost_loops(assembly(workload, target, implementation))
    loops = [loop for loop in loops if any(re.search(product, line) for line in loop)]
    assert loops, f"{implementation.name}: no loop with {product}"
    for loop in loops:
        assert not total or any(re.search(total, line) for line in loop)
        assert not any(map(stored, loop))
        assert sum(map(reloaded, loop)) <= 2  # indices of table lookups: what no store changes is constant
