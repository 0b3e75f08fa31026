"""The machine code of kernels for ARM: its innermost loops, and what in them moves registers to memory."""

from __future__ import annotations

import re

import numpy as np
from tvm import te
from tvm.s_tir import Schedule

from qnn_ext.compiling.codegen import generate_code
from qnn_ext.topi_int8 import Implementation
from qnn_ext.topi_int8.workload import Workload
from tests.topi_int8.kernels import EPILOGUES, operand_shapes, placeholder


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
