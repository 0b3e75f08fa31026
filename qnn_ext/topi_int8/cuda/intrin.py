"""Tensor-core instructions of sm_80 and later as TensorIntrins: m16n8k32 of int8, its operands loaded by ldmatrix.

A fragment is a matrix distributed over the registers of a warp's 32 lanes. Schedules see it as a buffer
(..., lane, register) of scope "warp", and the functions below say where an element is ("Matrix Fragments for
mma.m16n8k32" in the PTX ISA, two instructions side by side). `fragments.py` turns such a buffer into registers private
to each lane, so implementations name registers without a lane.

TVM has intrinsics for the same instructions. They are not used: TVM's pass for scope "warp" (LowerWarpMemory) leaves
int8 operands in an array of all lanes, that is, in local memory, reads accumulators with shuffles if it fails to see
that the lane is the thread's own, and their description of B differs from what they load.
"""

# No `from __future__ import annotations` here: TVMScript evaluates the buffer annotations below.

from functools import cache
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

LANES = 32
M, N, K = 16, 16, 32
"""The extents that one intrinsic multiplies."""

M16N8K32, M8N8K16 = "m16n8k32", "m8n8k16"
"""The instructions: of sm_80, and of sm_75."""

PAD = 16
"""Padding bytes after each row of shared memory. Rows of 32, 64 or 128 bytes then begin in banks that are 12, 20 or 4
apart modulo 32, so the eight rows of 16 bytes that ldmatrix reads at a time are in different banks."""


def operand_a(i: Any, k: Any) -> tuple[Any, Any]:
    """Lane and register of element (i, k) of A, 16 × 32 bytes in four registers of 4."""
    return 4 * (i % 8) + k % 16 // 4, 8 * (k // 16) + i // 8 * 4 + k % 4


def operand_b(j: Any, k: Any) -> tuple[Any, Any]:
    """Lane and register of element (j, k) of B, 16 × 32 bytes: first one group of eight columns, then the other."""
    return 4 * (j % 8) + k % 16 // 4, 8 * (j // 8) + k // 16 * 4 + k % 4


def accumulator(i: Any, j: Any) -> tuple[Any, Any]:
    """Lane and register of element (i, j) of C, 16 × 16 int32 in twice four registers."""
    return 4 * (i % 8) + j % 8 // 2, 4 * (j // 8) + i // 8 * 2 + j % 2


def _a_address(lane: Any, stride: Any) -> Any:
    """The row of 16 bytes whose address a lane provides: matrices are rows 0–7 and 8–15 of k < 16, then of k ≥ 16."""
    return stride * (lane % 16) + 16 * (lane // 16)


def _b_address(lane: Any, stride: Any) -> Any:
    """The same for B: k < 16 and k ≥ 16 of rows 0–7, then of rows 8–15."""
    return stride * (8 * (lane // 16) + lane % 8) + 16 * (lane % 16 // 8)


@cache
def load(operand: str) -> str:
    """C = fragment of a 16 × 32 tile in shared memory, for operand "a" or "b"."""
    place, address = (operand_a, _a_address) if operand == "a" else (operand_b, _b_address)

    @T.prim_func(s_tir=True)
    def description(fragment: T.handle, tile: T.handle) -> None:
        S = T.match_buffer(tile, (M, K), "int8", align=16, offset_factor=16, scope="shared.dyn")
        F = T.match_buffer(fragment, (LANES, 16), "int8", align=16, offset_factor=16, scope="warp")
        with T.sblock("root"):
            T.reads(S[0:M, 0:K])
            T.writes(F[0:LANES, 0:16])
            for i, k in T.grid(M, K):
                with T.sblock("load"):
                    vi, vk = T.axis.remap("SS", [i, k])
                    lane, register = T.meta_var(place(vi, vk))
                    F[lane, register] = S[vi, vk]

    @T.prim_func(s_tir=True)
    def implementation(fragment: T.handle, tile: T.handle) -> None:
        row, column = T.int32(), T.int32()
        S = T.match_buffer(tile, (M, K), "int8", align=16, offset_factor=16, scope="shared.dyn", strides=[row, column])
        F = T.match_buffer(fragment, (LANES, 16), "int8", align=16, offset_factor=16, scope="warp")
        with T.sblock("root"):
            T.reads(S[0:M, 0:K])
            T.writes(F[0:LANES, 0:16])
            for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                T.evaluate(
                    T.ptx_legacy.ldmatrix(
                        False, 4, ".b16", F.data, F.elem_offset, S.access_ptr("r"), address(lane, row), dtype="int8"
                    )
                )

    name = f"qnn.ldmatrix_{operand}"
    TensorIntrin.register(name, description, implementation, override=True)
    return name


@cache
def clear() -> str:
    """C = 0."""

    @T.prim_func(s_tir=True)
    def description(fragment: T.handle) -> None:
        C = T.match_buffer(fragment, (LANES, 8), "int32", align=16, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:LANES, 0:8])
            for i, j in T.grid(M, N):
                with T.sblock("clear"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    lane, register = T.meta_var(accumulator(vi, vj))
                    C[lane, register] = 0

    @T.prim_func(s_tir=True)
    def implementation(fragment: T.handle) -> None:
        C = T.match_buffer(fragment, (LANES, 8), "int32", align=16, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads()
            T.writes(C[0:LANES, 0:8])
            for lane in T.thread_binding(0, LANES, "threadIdx.x"):
                for register in T.unroll(8):
                    C[lane, register] = 0

    TensorIntrin.register("qnn.mma_clear", description, implementation, override=True)
    return "qnn.mma_clear"


@cache
def multiply(instruction: str) -> str:
    """C[i, j] += Σ_k A[i, k] · B[j, k] for i, j < 16 and k < 32, by m16n8k32 or, on sm_75, by m8n8k16.

    The small instruction's operands are quarters of the large one's: A's register is one of four, B's one of two.
    """
    parts = 1 if instruction == M16N8K32 else 2  # along i and k; there are always two columns of instructions

    @T.prim_func(s_tir=True)
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (LANES, 16), "int8", align=16, offset_factor=16, scope="warp")
        B = T.match_buffer(b, (LANES, 16), "int8", align=16, offset_factor=16, scope="warp")
        C = T.match_buffer(c, (LANES, 8), "int32", align=16, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:8], A[0:LANES, 0:16], B[0:LANES, 0:16])
            T.writes(C[0:LANES, 0:8])
            for i, j, k in T.grid(M, N, K):
                with T.sblock("multiply"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    lane_a, at_a = T.meta_var(operand_a(vi, vk))
                    lane_b, at_b = T.meta_var(operand_b(vj, vk))
                    lane, at = T.meta_var(accumulator(vi, vj))
                    C[lane, at] = C[lane, at] + T.cast(A[lane_a, at_a], "int32") * T.cast(B[lane_b, at_b], "int32")

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (LANES, 16), "int8", align=16, offset_factor=16, scope="warp")
        B = T.match_buffer(b, (LANES, 16), "int8", align=16, offset_factor=16, scope="warp")
        C = T.match_buffer(c, (LANES, 8), "int32", align=16, offset_factor=8, scope="warp")
        with T.sblock("root"):
            T.reads(C[0:LANES, 0:8], A[0:LANES, 0:16], B[0:LANES, 0:16])
            T.writes(C[0:LANES, 0:8])
            for _lane in T.thread_binding(0, LANES, "threadIdx.x"):
                for depth in T.unroll(parts):
                    for column in T.unroll(2):
                        for row in T.unroll(parts):
                            T.evaluate(
                                T.ptx_legacy.mma(
                                    instruction,
                                    "row",
                                    "col",
                                    "int8",
                                    "int8",
                                    "int32",
                                    A.data,
                                    A.elem_offset + (8 * depth + 4 * row),
                                    B.data,
                                    B.elem_offset + (8 * column + 4 * depth),
                                    C.data,
                                    C.elem_offset + (4 * column + 2 * row),
                                    False,
                                    dtype="int32",
                                )
                            )

    name = f"qnn.mma_{instruction}"
    TensorIntrin.register(name, description, implementation, override=True)
    return name
