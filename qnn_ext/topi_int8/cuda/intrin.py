"""Tensor-core instructions of sm_80 and later as TensorIntrins: m16n8k32 of int8, m16n8k16 of float16 and bfloat16,
their operands loaded by ldmatrix.

A fragment is a matrix distributed over the registers of a warp's 32 lanes. Schedules see it as a buffer
(..., lane, register) of scope "warp", and the functions below say where an element is ("Matrix Fragments for
mma.m16n8k32" in the PTX ISA, two instructions side by side). `fragments.py` turns such a buffer into registers private
to each lane, so implementations name registers without a lane.

TVM has intrinsics for the same instructions. They are not used: TVM's pass for scope "warp" (LowerWarpMemory) leaves
int8 operands in an array of all lanes, that is, in local memory, reads accumulators with shuffles if it fails to see
that the lane is the thread's own, and their description of B differs from what they load.
"""

# No `from __future__ import annotations` here: TVMScript evaluates the buffer annotations below.

from dataclasses import dataclass
from functools import cache
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from ...numerics import bfloat16

LANES = 32
M, N = 16, 16
"""The extents that one intrinsic multiplies, of 32 bytes of k."""

M16N8K32, M8N8K16, M16N8K16 = "m16n8k32", "m8n8k16", "m16n8k16"
"""The instructions: of sm_80 and of sm_75 for int8, and of sm_80 for floats of 16 bits."""

PAD = 16
"""Padding bytes after each row of shared memory. Rows of 32, 64 or 128 bytes then begin in banks that are 12, 20 or 4
apart modulo 32, so the eight rows of 16 bytes that ldmatrix reads at a time are in different banks."""


@dataclass(frozen=True)
class Operands:
    """The values that an instruction multiplies, both operands of one dtype.

    item: bytes of each; multiplied, summed: their dtype and that of sums, as TVM names them in `mma`
    """

    dtype: str
    item: int
    sums: str
    multiplied: str
    summed: str

    @property
    def k(self) -> int:
        """How many of them are multiplied and added at a time."""
        return 32 // self.item

    @property
    def run(self) -> int:
        """How many a row of 16 bytes holds, and the registers of a lane."""
        return 16 // self.item

    @property
    def word(self) -> int:
        """How many a register holds."""
        return 4 // self.item

    def value(self, element: Any) -> Any:
        """An element in the dtype of sums."""
        if self.dtype == bfloat16.BITS:
            return bfloat16.from_bits_expression(element)
        return T.cast(element, self.sums)

    def operand_a(self, i: Any, k: Any) -> tuple[Any, Any]:
        """Lane and register of element (i, k) of A, 16 × 32 bytes in four registers of 4."""
        run, word = self.run, self.word
        return 4 * (i % 8) + k % run // word, 2 * word * (k // run) + i // 8 * word + k % word

    def operand_b(self, j: Any, k: Any) -> tuple[Any, Any]:
        """Lane and register of element (j, k) of B, 16 × 32 bytes: first one group of eight columns, then the other."""
        run, word = self.run, self.word
        return 4 * (j % 8) + k % run // word, 2 * word * (j // 8) + k // run * word + k % word

    def a_address(self, lane: Any, stride: Any) -> Any:
        """The row of 16 bytes whose address a lane provides: matrices are rows 0–7 and 8–15 of the first 16 bytes of k,
        then of the others."""
        return stride * (lane % 16) + self.run * (lane // 16)

    def b_address(self, lane: Any, stride: Any) -> Any:
        """The same for B: the first and the other 16 bytes of k of rows 0–7, then of rows 8–15."""
        return stride * (8 * (lane // 16) + lane % 8) + self.run * (lane % 16 // 8)


INT8 = Operands("int8", 1, "int32", "int8", "int32")
FLOAT16 = Operands("float16", 2, "float32", "fp16", "fp32")
BFLOAT16 = Operands(bfloat16.BITS, 2, "float32", "bf16", "fp32")


def accumulator(i: Any, j: Any) -> tuple[Any, Any]:
    """Lane and register of element (i, j) of C, 16 × 16 sums in twice four registers."""
    return 4 * (i % 8) + j % 8 // 2, 4 * (j // 8) + i // 8 * 2 + j % 2


@cache
def load(operand: str, kind: Operands = INT8) -> str:
    """C = fragment of a tile of 16 × 32 bytes in shared memory, for operand "a" or "b"."""
    first = operand == "a"
    place = kind.operand_a if first else kind.operand_b
    address = kind.a_address if first else kind.b_address
    dtype, depth, run = kind.dtype, kind.k, kind.run

    @T.prim_func(s_tir=True)
    def description(fragment: T.handle, tile: T.handle) -> None:
        S = T.match_buffer(tile, (M, depth), dtype, align=16, offset_factor=run, scope="shared.dyn")
        F = T.match_buffer(fragment, (LANES, run), dtype, align=16, offset_factor=run, scope="warp")
        with T.sblock("root"):
            T.reads(S[0:M, 0:depth])
            T.writes(F[0:LANES, 0:run])
            for i, k in T.grid(M, depth):
                with T.sblock("load"):
                    vi, vk = T.axis.remap("SS", [i, k])
                    lane, register = T.meta_var(place(vi, vk))
                    F[lane, register] = S[vi, vk]

    @T.prim_func(s_tir=True)
    def implementation(fragment: T.handle, tile: T.handle) -> None:
        row, column = T.int32(), T.int32()
        S = T.match_buffer(
            tile, (M, depth), dtype, align=16, offset_factor=run, scope="shared.dyn", strides=[row, column]
        )
        F = T.match_buffer(fragment, (LANES, run), dtype, align=16, offset_factor=run, scope="warp")
        with T.sblock("root"):
            T.reads(S[0:M, 0:depth])
            T.writes(F[0:LANES, 0:run])
            for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        False, 4, ".b16", F.data, F.elem_offset, S.access_ptr("r"), address(lane, row), dtype=dtype
                    )
                )

    name = f"qnn.ldmatrix_{operand}_{kind.multiplied}"
    TensorIntrin.register(name, description, implementation, override=True)
    return name


@cache
def clear(kind: Operands = INT8) -> str:
    """C = 0."""
    sums = kind.sums

    @T.prim_func(s_tir=True)
    def description(fragment: T.handle) -> None:
        C = T.match_buffer(fragment, (LANES, 8), sums, align=16, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:LANES, 0:8])
            for i, j in T.grid(M, N):
                with T.sblock("clear"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, register = T.meta_var(accumulator(vi, vj))
                    C[lane, register] = T.cast(0, sums)

    @T.prim_func(s_tir=True)
    def implementation(fragment: T.handle) -> None:
        C = T.match_buffer(fragment, (LANES, 8), sums, align=16, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:LANES, 0:8])
            for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                for register in T.unroll(8):
                    C[lane, register] = T.cast(0, sums)

    name = f"qnn.mma_clear_{sums}"
    TensorIntrin.register(name, description, implementation, override=True)
    return name


@cache
def multiply(instruction: str, kind: Operands = INT8) -> str:
    """C[i, j] += Σ_k A[i, k] · B[j, k] for i, j < 16 and 32 bytes of k, by one of the instructions.

    The small instruction's operands are quarters of the large one's: A's register is one of four, B's one of two.
    """
    parts = 2 if instruction == M8N8K16 else 1  # along i and k; there are always two columns of instructions
    dtype, sums, run, depth = kind.dtype, kind.sums, kind.run, kind.k
    multiplied, summed, half, quarter = kind.multiplied, kind.summed, kind.run // 2, kind.run // 4

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (LANES, run), dtype, align=16, offset_factor=run, scope="warp")
        B = T.match_buffer(b, (LANES, run), dtype, align=16, offset_factor=run, scope="warp")
        C = T.match_buffer(c, (LANES, 8), sums, align=16, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:8], A[0:LANES, 0:run], B[0:LANES, 0:run])
            T.writes(C[0:LANES, 0:8])
            for i, j, k in T.grid(M, N, depth):
                with T.sblock("multiply"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    lane_a, at_a = T.meta_var(kind.operand_a(vi, vk))
                    lane_b, at_b = T.meta_var(kind.operand_b(vj, vk))
                    lane, at = T.meta_var(accumulator(vi, vj))
                    C[lane, at] = C[lane, at] + kind.value(A[lane_a, at_a]) * kind.value(B[lane_b, at_b])

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (LANES, run), dtype, align=16, offset_factor=run, scope="warp")
        B = T.match_buffer(b, (LANES, run), dtype, align=16, offset_factor=run, scope="warp")
        C = T.match_buffer(c, (LANES, 8), sums, align=16, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:8], A[0:LANES, 0:run], B[0:LANES, 0:run])
            T.writes(C[0:LANES, 0:8])
            for _lane in T.thread_binding(0, LANES, "threadIdx.x"):
                for part in T.unroll(parts):
                    for column in T.unroll(2):
                        for row in T.unroll(parts):
                            T.evaluate(
                                T.ptx_legacy.mma(
                                    instruction,
                                    "row",
                                    "col",
                                    multiplied,
                                    multiplied,
                                    summed,
                                    A.data,
                                    A.elem_offset + (half * part + quarter * row),
                                    B.data,
                                    B.elem_offset + (half * column + quarter * part),
                                    C.data,
                                    C.elem_offset + (4 * column + 2 * row),
                                    False,
                                    dtype=sums,
                                )
                            )

    name = f"qnn.mma_{instruction}_{multiplied}"
    TensorIntrin.register(name, description, implementation, override=True)
    return name
