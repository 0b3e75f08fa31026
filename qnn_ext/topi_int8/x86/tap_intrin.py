"""Dot products over taps as TensorIntrins: in each int32 lane, four taps of one channel.

    C[lane] += Σ_t A[t, lane] · B[lane, t],   t < 4

A holds one vector of channels of four neighbouring rows, B the packed weights. VNNI wants the four bytes of a lane side
by side, so A is transposed on its way to the instruction; several dot products of the same A share that by themselves.
"""

# No `from __future__ import annotations` here: TVMScript evaluates the buffer annotations below.

from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from .intrin import DotInstruction

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


def _implement(lanes: int, llvm: str):
    # Transposed in two steps, groups of four channels and then bytes within 128 bits, because a CPU without VBMI has no
    # single instruction for it; where it has one, LLVM merges the steps.
    quads = [row * lanes // 4 + quad for quad in range(lanes // 4) for row in range(TAPS)]
    taps = [quad * 16 + row * 4 + lane for quad in range(lanes // 4) for lane in range(4) for row in range(TAPS)]
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


@cache
def tap_intrin(instruction: DotInstruction) -> str:
    """The TensorIntrin of an instruction of depth four that adds to its accumulator; registered at the first use."""
    name = f"qnn_ext.x86.taps.{instruction.name}"
    TensorIntrin.register(
        name, _describe(instruction.lanes), _implement(instruction.lanes, instruction.llvm), override=True
    )
    return name
