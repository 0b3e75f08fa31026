"""Dot products over taps as TensorIntrins: in each int32 lane, four taps of one channel.

    C[lane] += Σ_t A[t, lane] · B[lane, t],   t < 4

A holds one vector of channels of four neighbouring rows, B the packed weights. VNNI needs the four bytes of a lane side
by side, so A is transposed on its way to the instruction; LLVM shares that among dot products with the same A.
"""

# No `from __future__ import annotations` here: TVMScript evaluates the buffer annotations below.

from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from ..cpu.dot import DotInstruction

TAPS = 4


def _describe(lanes: int):
    @T.prim_func(s_tir=True)
    def meaning(
        A: T.Buffer((TAPS, lanes), "uint8", offset_factor=1),
        B: T.Buffer((lanes, TAPS), "int8", offset_factor=1),
        C: T.Buffer((lanes,), "int32", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:TAPS, 0:lanes], B[0:lanes, 0:TAPS])
            T.writes(C[0:lanes])
            for i in T.serial(0, lanes):
                for t in T.serial(0, TAPS):
                    with T.sblock("update"):
                        vi, vt = T.axis.remap("SR", [i, t])
                        C[vi] = C[vi] + T.cast(A[vt, vi], "int32") * T.cast(B[vi, vt], "int32")

    return meaning


def _transposition(lanes: int) -> tuple[list[int], list[int]]:
    """Shuffles, first of groups of four channels, then of bytes within 128 bits, from four rows of lanes to lanes of
    taps.

    In two steps, because a CPU without VBMI has no single instruction for it; if the CPU has one, LLVM merges them.
    """
    quads = [row * lanes // 4 + quad for quad in range(lanes // 4) for row in range(TAPS)]
    taps = [quad * 16 + row * 4 + lane for quad in range(lanes // 4) for lane in range(4) for row in range(TAPS)]
    return quads, taps


def _implement(lanes: int, llvm: str):
    quads, taps = _transposition(lanes)
    size = lanes * TAPS
    accumulator = f"int32x{lanes}"

    @T.prim_func(s_tir=True)
    def implementation(
        A: T.Buffer((TAPS, lanes), "uint8", offset_factor=1),
        B: T.Buffer((lanes, TAPS), "int8", offset_factor=1),
        C: T.Buffer((lanes,), "int32", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:TAPS, 0:lanes], B[0:lanes, 0:TAPS])
            T.writes(C[0:lanes])
            C[T.ramp(T.int32(0), 1, lanes)] = T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id(llvm),
                C.vload([0], dtype=accumulator),
                T.Shuffle(
                    [
                        T.reinterpret(
                            T.Shuffle(
                                [T.reinterpret(A.vload([0, 0], dtype=f"uint8x{size}"), dtype=f"int32x{lanes}")], quads
                            ),
                            dtype=f"int8x{size}",
                        )
                    ],
                    taps,
                ),
                B.vload([0, 0], dtype=f"int8x{size}"),
                dtype=accumulator,
            )

    return implementation


def _describe_two_passes(lanes: int, columns: int, step: int):
    span = (columns - 1) * step + 1

    @T.prim_func(s_tir=True)
    def meaning(a: T.handle, b: T.handle, c: T.handle) -> None:
        stride = T.int32()
        A = T.match_buffer(a, (span, TAPS, lanes), "uint8", offset_factor=1, strides=[stride, lanes, 1])
        B = T.match_buffer(b, (2, lanes, TAPS), "int8", offset_factor=1)
        C = T.match_buffer(c, (columns, lanes), "int32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:columns, 0:lanes], A[0:span, 0:TAPS, 0:lanes], B[0:2, 0:lanes, 0:TAPS])
            T.writes(C[0:columns, 0:lanes])
            for p, x, i, t in T.grid(2, columns, lanes, TAPS):
                with T.sblock("update"):
                    vx, vi, vp, vt = T.axis.remap("SSRR", [x, i, p, t])
                    C[vx, vi] = C[vx, vi] + T.cast(A[vx * step, vt, vi], "int32") * T.cast(B[vp, vi, vt], "int32")

    return meaning


def _implement_two_passes(lanes: int, llvm: str, columns: int, step: int):
    quads, taps = _transposition(lanes)
    span = (columns - 1) * step + 1
    accumulator, data, operand = f"int32x{lanes}", f"uint8x{lanes * TAPS}", f"int8x{lanes * TAPS}"

    @T.prim_func(s_tir=True)
    def implementation(a: T.handle, b: T.handle, c: T.handle) -> None:
        stride = T.int32()
        A = T.match_buffer(a, (span, TAPS, lanes), "uint8", offset_factor=1, strides=[stride, lanes, 1])
        B = T.match_buffer(b, (2, lanes, TAPS), "int8", offset_factor=1)
        C = T.match_buffer(c, (columns, lanes), "int32", offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0:columns, 0:lanes], A[0:span, 0:TAPS, 0:lanes], B[0:2, 0:lanes, 0:TAPS])
            T.writes(C[0:columns, 0:lanes])
            for p in T.unroll(2):
                if T.Or(
                    p == 0,
                    T.call_llvm_pure_intrin(
                        T.llvm_lookup_intrinsic_id("llvm.vector.reduce.or"),
                        T.reinterpret(B.vload([p, 0, 0], dtype=operand), dtype=accumulator),
                        dtype="int32",
                    )
                    != 0,
                ):
                    for x in T.unroll(columns):
                        C[x, T.ramp(T.int32(0), 1, lanes)] = T.call_llvm_pure_intrin(
                            T.llvm_lookup_intrinsic_id(llvm),
                            C.vload([x, 0], dtype=accumulator),
                            T.Shuffle(
                                [
                                    T.reinterpret(
                                        T.Shuffle(
                                            [T.reinterpret(A.vload([x * step, 0, 0], dtype=data), dtype=accumulator)],
                                            quads,
                                        ),
                                        dtype=operand,
                                    )
                                ],
                                taps,
                            ),
                            B.vload([p, 0, 0], dtype=operand),
                            dtype=accumulator,
                        )

    return implementation


@cache
def two_pass_intrin(instruction: DotInstruction, columns: int, step: int) -> str:
    """The same for two weights and a row of pixels, each `step` columns of A after the previous one.

    The second weight, the part of the weight that does not fit int8, is skipped if it is zero in all channels and taps.
    """
    name = f"qnn_ext.x86.two_pass.{instruction.name}.{columns}.{step}"
    meaning = _describe_two_passes(instruction.lanes, columns, step)
    TensorIntrin.register(
        name, meaning, _implement_two_passes(instruction.lanes, instruction.llvm, columns, step), override=True
    )
    return name


@cache
def tap_intrin(instruction: DotInstruction) -> str:
    """The TensorIntrin of an instruction of depth four that adds to its accumulator; registered at first use."""
    name = f"qnn_ext.x86.taps.{instruction.name}"
    TensorIntrin.register(
        name, _describe(instruction.lanes), _implement(instruction.lanes, instruction.llvm), override=True
    )
    return name
