"""AMX: products of matrices of 8-bit integers or bfloat16, in eight registers ("tiles") of 16 rows of 64 bytes.

    tdpbusd:    C[m, n] += Σ_i Σ_j A[m, 4i + j] · B[i, 4n + j],   uint8 · int8,   m, n, i < 16, j < 4
    tdpbf16ps:  the same with bfloat16, j < 2, and sums of float32

A row of B holds four successive k of each channel, or two, which is how weights are packed for vpdpbusd too. Kernels
are those of other products (`cpu.matrix`), whose marked loops `matrices` turns into instructions. Linux lets a process
use AMX once it has asked for it, see `targets.amx`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm.target import Target

from ...numerics.bfloat16 import BITS
from ...targets.families import X86
from ..cpu import conv2d, dense, gathered
from ..cpu.bfloat16 import BFloat16Dot
from ..cpu.dot import DotInstruction
from ..cpu.matrix import MatrixDot
from ..strategy import Implementation
from ..workload import Conv2dWorkload, Workload

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


@dataclass(frozen=True)
class MatrixBFloat16(MatrixDot, BFloat16Dot):
    """A product of matrices of bfloat16, on their bits. Rounding and subnormal numbers are as of `BFloat16Dot`."""


TDPBF16PS = MatrixBFloat16(
    name="tdpbf16ps",
    product=X86.product("tdpbf16ps"),
    lanes=16,
    depth=2,
    data_dtype=BITS,
    weight_dtype=BITS,
    llvm="llvm.x86.tdpbf16ps",
    accumulates=True,
    backend=X86,
    chain=16,
)

FEWEST_ROWS = 4
"""With fewer rows, loading weights takes longest, with whatever they are then multiplied."""

PORTS = 0.5
"""The costs of other tiles count one product of vectors in a cycle, and CPUs with AMX start two."""


def where_faster(item: Implementation, instruction: MatrixDot, other: DotInstruction) -> Implementation:
    """The kernel with `instruction` for products that take less time with it than with `other`: not for few rows, or
    few k."""

    def cycles(workload: Workload, one: DotInstruction) -> float:
        one = one.suited(workload)
        if isinstance(workload, Conv2dWorkload):
            return conv2d.cycles_per_pixel(workload, gathered.suited(workload, one))
        return next(iter(dense.tiles(workload, one).values()))

    def refuses(workload: Workload, target: Target) -> str | None:
        refused = item.refuses(workload, target)
        rows, channels = sizes_of(workload)
        if rows < FEWEST_ROWS or channels == 1:
            return refused or f"matrices of {rows} rows for {channels} channels would be nearly empty"
        if refused or cycles(workload, instruction) < PORTS * cycles(workload, other):
            return refused
        return f"{other.name} is predicted to be faster"

    return replace(item, refuses=refuses)


def sizes_of(workload: Workload) -> tuple[int, int]:
    """Rows and columns of a workload's product, as far as they share a matrix."""
    if isinstance(workload, Conv2dWorkload):
        return workload.out_height * workload.out_width, workload.out_channels // workload.groups
    return workload.m, workload.n
