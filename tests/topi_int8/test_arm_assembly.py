"""The machine code of products on ARM: the wanted instruction in the loop over k, and nothing that spills there."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tvm import te
from tvm.s_tir import Schedule

from qnn_ext.codegen import generate_code
from qnn_ext.target import make_target
from qnn_ext.topi_int8 import DenseWorkload, Implementation, candidates
from qnn_ext.topi_int8.workload import Workload

from .kernels import ARM_CPUS, EPILOGUES, operand_shapes, placeholder
from .test_conv2d import conv, describe

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


def assembly(workload: Workload, target: object, implementation: Implementation) -> list[str]:
    """The lines of the kernel with a requantizing epilogue."""
    rng = np.random.default_rng(0)
    x, w = (np.zeros(shape, "int8") for shape in operand_shapes(workload))
    acc = implementation.compute(workload, *(tensors := [placeholder("x", x), _packed(workload, implementation, w)]), 0)
    behind = EPILOGUES["requantize"](tuple(int(size) for size in acc.shape), rng)
    tensors += [placeholder(f"p{i}", array) for i, array in enumerate(behind.inputs)]
    sch = Schedule(te.create_prim_func([*tensors, behind.stages(acc, *tensors[2:])]))
    implementation.schedule(sch, workload, target)
    return generate_code(sch.mod, target).mod.inspect_source("asm").splitlines()


def _packed(workload: Workload, implementation: Implementation, w: np.ndarray) -> te.Tensor:
    return placeholder("w", implementation.pack_weight(workload, w) if implementation.pack_weight else w)


def innermost_loops(lines: list[str]) -> list[list[str]]:
    """Instructions from a label to the first branch back to it with no other label between: the innermost loops."""
    loops, start, label = [], 0, ""
    for number, line in enumerate(lines):
        if found := re.match(r"(\.L\w+):", line):
            start, label = number, found[1]
        elif label and re.match(rf"\s+(b\S*|cbn?z|tbn?z)\s.*{re.escape(label)}$", line.split("//")[0].rstrip()):
            loops.append(lines[start + 1 : number + 1])
    return loops


def stored(line: str) -> bool:
    """Whether a line moves vector registers to memory, which no loop over k has a reason to."""
    return bool(re.match(r"\s+(st\w*\s+[qd]\d|vst)", line))


def reloaded(line: str) -> bool:
    """Whether a line reads a vector register from the stack."""
    return bool(re.match(r"\s+ld\w*\s+[qd]\d.*\[sp", line))


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
