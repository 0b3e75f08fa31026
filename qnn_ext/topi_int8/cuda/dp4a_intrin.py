"""DP4A as a TensorIntrin: c += Σ_{i<4} a[i] · b[i] of int8, all three in registers (sm_61 on).

TVM's own takes a and b from shared memory and adds to c after the instruction. With operands in registers, filled by
vector loads, a thread reads each value once for a whole row or column of its tile.
"""

from __future__ import annotations

from functools import cache

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

NAME = "qnn_ext_dp4a_s8s8s32"
DEPTH = 4


@cache
def dp4a() -> str:
    """The name of the intrinsic, registered with TVM at first use: parsing takes a moment."""

    @T.prim_func(s_tir=True)
    def meaning(
        A: T.Buffer((4,), "int8", offset_factor=4, align=4, scope="local"),
        B: T.Buffer((4,), "int8", offset_factor=4, align=4, scope="local"),
        C: T.Buffer((1,), "int32", offset_factor=1, align=4, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0], A[0:4], B[0:4])
            T.writes(C[0])
            for i in range(0, 4):
                with T.sblock("update"):
                    vi = T.axis.remap("R", [i])
                    C[0] = C[0] + T.cast(A[vi], "int32") * T.cast(B[vi], "int32")

    @T.prim_func(s_tir=True)
    def code(
        A: T.Buffer((4,), "int8", offset_factor=4, align=4, scope="local"),
        B: T.Buffer((4,), "int8", offset_factor=4, align=4, scope="local"),
        C: T.Buffer((1,), "int32", offset_factor=1, align=4, scope="local"),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0], A[0:4], B[0:4])
            T.writes(C[0])
            C[0] = T.call_pure_extern("__dp4a", A.vload([0], "int8x4"), B.vload([0], "int8x4"), C[0], dtype="int32")

    TensorIntrin.register(NAME, meaning, code)
    return NAME
