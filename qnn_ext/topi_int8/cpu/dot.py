"""Dot-product instructions as TensorIntrins: every one adds, in each int32 lane, a short dot product.

    C[lane] += Σ_k A[k] · B[lane, k],   k < depth

A is `depth` neighbouring activations, broadcast to all lanes; B is one packed weight vector. Instructions differ only
in the fields of `DotInstruction`, so kernels never name one.
"""

# No `from __future__ import annotations` here: TVMScript evaluates the buffer annotations below.

from dataclasses import dataclass
from functools import cache
from math import prod

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.target import Target

from ..features import has_feature


@dataclass(frozen=True)
class DotInstruction:
    """A dot-product instruction.

    features:     sets of LLVM features of which the CPU must have one whole
    lanes:        int32 accumulators in one vector register, the width of a block of output channels
    depth:        products summed per lane
    data_dtype:   dtype of the broadcast activations in memory
    weight_dtype: dtype of the packed weights in memory
    llvm:         the LLVM intrinsic
    accumulates:  whether the instruction adds to its accumulator itself (vpdpbusd) or not (vpmaddwd)
    registers:    vector registers the CPU has
    """

    name: str
    features: tuple[tuple[str, ...], ...]
    lanes: int
    depth: int
    data_dtype: str
    weight_dtype: str
    llvm: str
    accumulates: bool
    registers: int

    @property
    def tensor_intrin(self) -> str:
        """Name under which the instruction is registered as a TensorIntrin."""
        return _register(self)

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector register."""
        return 4 * self.lanes

    @property
    def accumulator_axes(self) -> int:
        """How many of the accumulator's last axes one instruction covers: the lanes, or more if it spans pixels."""
        return 1

    def available(self, target: Target) -> bool:
        """Whether the target's CPU has the instruction."""
        return any(all(has_feature(target, feature) for feature in together) for together in self.features)

    def takes(self, data_dtype: str, weight_dtype: str) -> bool:
        """Whether operands of these dtypes reach the instruction unchanged or by exact widening."""
        if self.data_dtype == "int16":
            return data_dtype in ("uint8", "int8", "int16") and weight_dtype in ("uint8", "int8")
        return (data_dtype, weight_dtype) == (self.data_dtype, self.weight_dtype)


def _describe(instruction: DotInstruction):
    lanes, depth = instruction.lanes, instruction.depth
    data_dtype, weight_dtype = instruction.data_dtype, instruction.weight_dtype

    @T.prim_func(s_tir=True)
    def meaning(
        A: T.Buffer((depth,), data_dtype, offset_factor=1),
        B: T.Buffer((lanes, depth), weight_dtype, offset_factor=1),
        C: T.Buffer((lanes,), "int32", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:depth], B[0:lanes, 0:depth])
            T.writes(C[0:lanes])
            for i in T.serial(0, lanes):
                for k in T.serial(0, depth):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        C[vi] = C[vi] + T.cast(A[vk], "int32") * T.cast(B[vi, vk], "int32")

    return meaning


def implement(instruction: DotInstruction, weight_shape: tuple[int, ...], weight_dtype: str):
    """The instruction as a TensorIntrin's code, for weights that lie in memory as an array of this shape and dtype."""
    lanes, depth = instruction.lanes, instruction.depth
    data_dtype, llvm = instruction.data_dtype, instruction.llvm
    weights = tuple(slice(0, size) for size in weight_shape)
    start = [0] * len(weight_shape)
    in_memory = f"{weight_dtype}x{prod(weight_shape)}"
    operand = f"{instruction.weight_dtype}x{lanes * depth}"
    accumulator = f"int32x{lanes}"

    # One expression: a vector bound by `let` would be spilled to a workspace.
    def updated(A, B, C):
        word = T.reinterpret(A.vload([0], f"{data_dtype}x{depth}"), dtype="int32")
        operands = [
            T.reinterpret(T.broadcast(word, lanes), dtype=operand),
            T.reinterpret(B.vload(start, dtype=in_memory), dtype=operand),
        ]
        before = C.vload([0], dtype=accumulator)
        if instruction.accumulates:
            operands.insert(0, before)
        dot = T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(llvm), *operands, dtype=accumulator)
        return dot if instruction.accumulates else before + dot

    @T.prim_func(s_tir=True)
    def implementation(
        A: T.Buffer((depth,), data_dtype, offset_factor=1),
        B: T.Buffer(weight_shape, weight_dtype, offset_factor=1),
        C: T.Buffer((lanes,), "int32", offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:depth], B[weights])
            T.writes(C[0:lanes])
            C[T.ramp(T.int32(0), 1, lanes)] = updated(A, B, C)

    return implementation


@cache
def _register(instruction: DotInstruction) -> str:
    """Done at the first use: TVM reads TVMScript slowly, seconds for all instructions where PyTorch is loaded."""
    name = f"qnn_ext.cpu.{instruction.name}"
    code = implement(instruction, (instruction.lanes, instruction.depth), instruction.weight_dtype)
    TensorIntrin.register(name, _describe(instruction), code, override=True)
    return name
