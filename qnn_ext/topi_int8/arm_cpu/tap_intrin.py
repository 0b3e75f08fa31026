"""Transposing rows into taps, and dot products over them, as TensorIntrins.

    D[lane, t] = A[t · step, lane]              a vector of channels of four rows; st4 stores it interleaved
    C[lane] += Σ_t A[lane, t] · B[lane, t]      sdot: four taps of one channel in each int32 lane

t < 4. The rows are transposed once for all output rows and columns that read them.
"""

# No `from __future__ import annotations` here: TVMScript evaluates the buffer annotations below.

from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

TAPS = 4
LANES = 4
"""int32 in a register."""

SDOT = "llvm.aarch64.neon.sdot.v4i32.v16i8"


@cache
def turn_intrin(lanes: int, rows: int, step: int) -> str:
    """The TensorIntrin that transposes `rows` rows of a vector of channels, at most four and `step` rows of A apart;
    the last one replaces missing rows. Registered at first use."""
    name = f"qnn_ext.arm_cpu.turn.{lanes}.{rows}.{step}"
    TensorIntrin.register(name, _describe_turn(lanes, rows, step), _implement_turn(lanes, rows, step), override=True)
    return name


def _describe_turn(lanes: int, rows: int, step: int):
    span = (rows - 1) * step + 1

    def source(t):
        return (t if rows == TAPS else T.min(t, rows - 1)) * step

    @T.prim_func(s_tir=True)
    def meaning(a: T.handle, d: T.handle) -> None:
        across, down = T.int32(), T.int32()
        A = T.match_buffer(a, (span, 1, lanes), "int8", offset_factor=1, strides=[down, across, 1])
        D = T.match_buffer(d, (lanes, TAPS), "int8", offset_factor=1)
        with T.sblock("root"):
            T.reads(A[0:span, 0, 0:lanes])
            T.writes(D[0:lanes, 0:TAPS])
            for i, t in T.grid(lanes, TAPS):
                with T.sblock("turn"):
                    vi, vt = T.axis.remap("SS", [i, t])
                    D[vi, vt] = A[source(vt), 0, vi]

    return meaning


def _implement_turn(lanes: int, rows: int, step: int):
    span, size = (rows - 1) * step + 1, lanes * TAPS
    order = [t * lanes + lane for lane in range(lanes) for t in range(TAPS)]
    places = [min(t, rows - 1) * step for t in range(TAPS)]

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, d: T.handle) -> None:
        across, down = T.int32(), T.int32()
        A = T.match_buffer(a, (span, 1, lanes), "int8", offset_factor=1, strides=[down, across, 1])
        D = T.match_buffer(d, (lanes, TAPS), "int8", offset_factor=1)
        with T.sblock("root"):
            T.reads(A[0:span, 0, 0:lanes])
            T.writes(D[0:lanes, 0:TAPS])
            D.vstore(
                [0, T.ramp(T.int32(0), 1, size)],
                T.Shuffle([A.vload([place, 0, 0], dtype=f"int8x{lanes}") for place in places], order),
            )

    return implementation


@cache
def tap_intrin() -> str:
    """The TensorIntrin of sdot over taps; registered at first use."""

    @T.prim_func(s_tir=True)
    def meaning(
        A: T.Buffer((LANES, TAPS), "int8", offset_factor=1),
        B: T.Buffer((LANES, TAPS), "int8", offset_factor=1),
        C: T.Buffer((LANES,), "int32", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:LANES], A[0:LANES, 0:TAPS], B[0:LANES, 0:TAPS])
            T.writes(C[0:LANES])
            for i, t in T.grid(LANES, TAPS):
                with T.sblock("update"):
                    vi, vt = T.axis.remap("SR", [i, t])
                    C[vi] = C[vi] + T.cast(A[vi, vt], "int32") * T.cast(B[vi, vt], "int32")

    @T.prim_func(s_tir=True)
    def implementation(
        A: T.Buffer((LANES, TAPS), "int8", offset_factor=1),
        B: T.Buffer((LANES, TAPS), "int8", offset_factor=1),
        C: T.Buffer((LANES,), "int32", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:LANES], A[0:LANES, 0:TAPS], B[0:LANES, 0:TAPS])
            T.writes(C[0:LANES])
            C[T.ramp(T.int32(0), 1, LANES)] = T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id(SDOT),
                C.vload([0], dtype="int32x4"),
                A.vload([0, 0], dtype="int8x16"),
                B.vload([0, 0], dtype="int8x16"),
                dtype="int32x4",
            )

    name = "qnn_ext.arm_cpu.taps"
    TensorIntrin.register(name, meaning, implementation, override=True)
    return name
