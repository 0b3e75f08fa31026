"""AMX: products of matrices of 8-bit integers, in eight registers ("tiles") of 16 rows of 64 bytes.

    tdpbusd:  C[m, n] += Σ_i Σ_j A[m, 4i + j] · B[i, 4n + j],   uint8 · int8,   m, n, i < 16, j < 4

A row of B holds four successive k of each channel, which is how weights are packed for vpdpbusd too. Kernels are those
of other products (`cpu.matrix`), whose marked loops `matrices` turns into instructions. Linux lets a process use AMX
once it has asked for it, see `targets.amx`.
"""

from __future__ import annotations

from dataclasses import replace

from tvm.target import Target

from ...targets.families import X86
from ..cpu import conv2d, dense, gathered
from ..cpu.dot import DotInstruction
from ..cpu.matrix import MatrixDot
from ..strategy import Implementation
from ..workload import Conv2dWorkload, Workload
from .intrin import INSTRUCTIONS

TDPBUSD = MatrixDot(
    name="tdpbusd",
    product=X86.product("tdpbusd"),
    lanes=16,
    depth=4,
    data_dtype="uint8",
    weight_dtype="int8",
    llvm="llvm.x86.tdpbusd",
    accumulates=True,
    backend=X86,
    chain=16,
)

FEWEST_ROWS = 4
"""With fewer rows, loading weights takes longest, with whatever they are then multiplied."""

PORTS = 0.5
"""The costs of tiles for vpdpbusd are those of cores that start one in a cycle, and CPUs with AMX start two."""


def where_faster(item: Implementation) -> Implementation:
    """The kernel for products that it takes less time for than that with vpdpbusd: not for few rows, or few k."""
    other = INSTRUCTIONS[0]

    def cycles(workload: Workload, instruction: DotInstruction) -> float:
        instruction = instruction.suited(workload)
        if isinstance(workload, Conv2dWorkload):
            return conv2d.cycles_per_pixel(workload, gathered.suited(workload, instruction))
        return next(iter(dense.tiles(workload, instruction).values()))

    def refuses(workload: Workload, target: Target) -> str | None:
        refused = item.refuses(workload, target)
        rows, channels = sizes_of(workload)
        if rows < FEWEST_ROWS or channels == 1:
            return refused or f"matrices of {rows} rows for {channels} channels would be nearly empty"
        if refused or cycles(workload, TDPBUSD) < PORTS * cycles(workload, other):
            return refused
        return f"{other.name} is predicted to be faster"

    return replace(item, refuses=refuses)


def sizes_of(workload: Workload) -> tuple[int, int]:
    """Rows and columns of a workload's product, as far as they share a matrix."""
    if isinstance(workload, Conv2dWorkload):
        return workload.out_height * workload.out_width, workload.out_channels // workload.groups
    return workload.m, workload.n
