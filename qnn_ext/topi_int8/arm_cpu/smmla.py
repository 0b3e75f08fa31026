"""smmla (i8mm) as a TensorIntrin: a dot product that spans two pixels.

One instruction multiplies 2 × 8 activations by 2 × 8 weights and adds to 2 × 2 int32. A block of eight channels takes
four instructions, which share their activations:

    C[quad, pixel, lane] += Σ_k A[pixel, k] · B[quad, lane, k],   quad < 4, pixel, lane < 2, k < 8

so that every register is contiguous in the accumulators' buffer. A's two pixels are neighbours in memory: one load.
"""

# No `from __future__ import annotations` here: TVMScript evaluates the buffer annotations below.

from dataclasses import dataclass
from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from ...targets.families import AARCH64
from ..cpu.dot import DotInstruction

PIXELS = 2
"""Pixels that one instruction spans."""

DEPTH = 8
"""Products it sums."""

LANES = 2
"""Output channels of one instruction."""

QUADS = 4
"""Instructions of a block of channels: their weights, 64 bytes, are two paired loads."""

CHANNELS = QUADS * LANES
"""Output channels of a block."""


@dataclass(frozen=True)
class PairInstruction(DotInstruction):
    """smmla on a block of channels."""

    @property
    def tensor_intrin(self) -> str:
        """Name under which the instruction is registered as a TensorIntrin."""
        return _register(self)

    @property
    def accumulator_axes(self) -> int:
        """Quads, pixels and lanes."""
        return 3


SMMLA = PairInstruction(
    name="smmla",
    product=AARCH64.product("smmla"),
    lanes=CHANNELS,
    depth=DEPTH,
    data_dtype="int8",
    weight_dtype="int8",
    llvm="llvm.aarch64.neon.smmla.v4i32.v16i8",
    accumulates=True,
    backend=AARCH64,
)


def wasted(rows: int, columns: int, row: str = "row", column: str = "column") -> str | None:
    """Why smmla would waste more than it saves: on a single row, or half a block of columns."""
    if rows < 2:
        return f"a single {row}"
    return f"{columns} {column}s in a block of {CHANNELS}" if 2 * columns <= CHANNELS else None


def _describe():
    @T.prim_func(s_tir=True)
    def meaning(
        A: T.Buffer((PIXELS, DEPTH), "int8", offset_factor=1),
        B: T.Buffer((QUADS, LANES, DEPTH), "int8", offset_factor=1),
        C: T.Buffer((QUADS, PIXELS, LANES), "int32", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:QUADS, 0:PIXELS, 0:LANES], A[0:PIXELS, 0:DEPTH], B[0:QUADS, 0:LANES, 0:DEPTH])
            T.writes(C[0:QUADS, 0:PIXELS, 0:LANES])
            for q, p, i, k in T.grid(QUADS, PIXELS, LANES, DEPTH):
                with T.sblock("update"):
                    vq, vp, vi, vk = T.axis.remap("SSSR", [q, p, i, k])
                    C[vq, vp, vi] = C[vq, vp, vi] + T.cast(A[vp, vk], "int32") * T.cast(B[vq, vi, vk], "int32")

    return meaning


def _implement(instruction: PairInstruction):
    llvm = instruction.llvm
    operand, accumulator = f"int8x{PIXELS * DEPTH}", f"int32x{PIXELS * LANES}"

    # One expression each: a vector bound by `let` would be spilled to a workspace.
    def multiply(A, B, C):
        for quad in range(QUADS):
            before, weights = C.vload([quad, 0, 0], dtype=accumulator), B.vload([quad, 0, 0], dtype=operand)
            intrinsic, pixels = T.llvm_lookup_intrinsic_id(llvm), A.vload([0, 0], dtype=operand)
            after = T.call_llvm_pure_intrin(intrinsic, before, pixels, weights, dtype=accumulator)
            T.buffer_store(C, after, [quad, 0, T.ramp(0, 1, PIXELS * LANES)])

    @T.prim_func(s_tir=True)
    def implementation(
        A: T.Buffer((PIXELS, DEPTH), "int8", offset_factor=1),
        B: T.Buffer((QUADS, LANES, DEPTH), "int8", offset_factor=1),
        C: T.Buffer((QUADS, PIXELS, LANES), "int32", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:QUADS, 0:PIXELS, 0:LANES], A[0:PIXELS, 0:DEPTH], B[0:QUADS, 0:LANES, 0:DEPTH])
            T.writes(C[0:QUADS, 0:PIXELS, 0:LANES])
            multiply(A, B, C)

    return implementation


@cache
def _register(instruction: PairInstruction) -> str:
    """Register at first use: TVM parses TVMScript slowly."""
    name = f"qnn_ext.arm_cpu.{instruction.name}"
    TensorIntrin.register(name, _describe(), _implement(instruction), override=True)
    return name
