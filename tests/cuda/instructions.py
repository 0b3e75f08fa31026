"""The machine code that kernels become, counted by instruction. Nothing here needs a GPU."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import numpy as np
import pytest
from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target

from qnn_ext import TargetError
from qnn_ext.targets import cuda_compiler
from qnn_ext.topi_int8 import Implementation
from qnn_ext.topi_int8.workload import Workload
from tests.topi_int8.kernels import EPILOGUES, operand_shapes, placeholder

from .meaning import lowered

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z0-9.]+)", re.MULTILINE)


def kernel_source(workload: Workload, target: Target, implementation: Implementation) -> str:
    """The CUDA source of a kernel with a requantization epilogue."""
    x_shape, w_shape = operand_shapes(workload)
    weight = np.zeros(w_shape, workload.weight_dtype)
    packed = implementation.pack_weight(workload, weight) if implementation.pack_weight else weight
    shapes = [int(size) for size in _accumulator(workload, implementation, x_shape, packed).shape]
    behind = EPILOGUES["requantize"](tuple(shapes), np.random.default_rng(0))
    arrays = [np.zeros(x_shape, workload.data_dtype), packed, *behind.inputs]
    inputs = [placeholder(f"p{i}", array) for i, array in enumerate(arrays)]
    out = behind.stages(implementation.compute(workload, *inputs[:2], 0), *inputs[2:])
    sch = Schedule(te.create_prim_func([*inputs, out]))
    implementation.schedule(sch, workload, target)
    return lowered(sch.mod, target)[0]


def _accumulator(workload, implementation, x_shape, packed) -> te.Tensor:
    x = te.placeholder(x_shape, workload.data_dtype)
    return implementation.compute(workload, x, te.placeholder(packed.shape, str(packed.dtype)), 0)


def ptx(source: str, architecture: str) -> str:
    """The source as PTX; skips the test when no compiler supports that architecture."""
    try:
        return cuda_compiler.ptx(source, architecture)
    except TargetError as error:
        pytest.skip(str(error))


@cache
def instructions(source: str, architecture: str) -> Counter[str]:
    """How often each instruction occurs in the machine code; skips the test without compiler and disassembler."""
    try:
        code = cuda_compiler.machine_code(source, architecture)
    except TargetError as error:
        pytest.skip(str(error))
    return Counter(_INSTRUCTION.findall(code))


def count(found: Counter[str], *prefixes: str) -> int:
    """How many instructions begin with one of the prefixes."""
    return sum(number for name, number in found.items() if name.startswith(prefixes))


def spills(found: Counter[str]) -> int:
    """Accesses to local memory: spilled registers, or arrays with run-time indices."""
    return count(found, "LDL", "STL")
