"""Dot-product instructions as TensorIntrins: each adds a short dot product to every int32 lane.

    C[lane] += Σ_s Σ_k A[s · depth + k] · B[s, lane, k],   s < chain, k < depth

A is a run of neighbouring activations, `depth` of which at a time are broadcast to all lanes; B holds the matching
packed weight vectors. Kernels never name an instruction: the instruction itself says what it needs and what code it
becomes.
"""

# No `from __future__ import annotations` here: TVMScript evaluates the buffer annotations below.

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, get_args

import numpy as np
from tvm import te
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T
from tvm.target import Target

from ...targets.backend import Backend, Product
from ...targets.families import backends_with
from ...targets.features import offers
from ..refusal import lacking, other_dtypes
from ..strategy import Implementation
from ..workload import AnyWorkload, Workload


class Reduction(NamedTuple):
    """The axes of a reduction, as an instruction takes them, and what they index.

    axes: the te.reduce_axis, outermost first; k: the activation's index; `step` and `inner`: the weight's position in
    packed weights (…, K/depth, lanes, depth)
    """

    axes: list[Any]
    k: Any
    step: Any
    inner: Any


@dataclass(frozen=True)
class DotInstruction:
    """A dot-product instruction.

    product:      the backend's entry for this kind of product, which says what a CPU must have, and its registers
    lanes:        int32 accumulators in one vector register, the width of a block of output channels
    depth:        products summed per lane in one step
    data_dtype:   dtype of the broadcast activations in memory
    weight_dtype: dtype of the packed weights in memory
    llvm:         the LLVM intrinsic
    accumulates:  whether the instruction adds to its accumulator itself (vpdpbusd) or not (vpmaddwd)
    backend:      the family of CPUs that have it
    chain:        steps that share one load of activations
    words:        whether the weights are packed at run time, into integers of `depth` neighbours in k, see `words`
    """

    name: str
    product: Product
    lanes: int
    depth: int
    data_dtype: str
    weight_dtype: str
    llvm: str
    accumulates: bool
    backend: Backend
    chain: int = 1
    words: bool = False

    @property
    def sum_dtype(self) -> str:
        """dtype of the accumulators."""
        return "int32"

    @property
    def tensor_intrin(self) -> str:
        """Name under which the instruction is registered as a TensorIntrin."""
        return _register(self)

    @property
    def registers(self) -> int:
        """Vector registers the CPU has."""
        return self.product.registers.count

    @property
    def span(self) -> int:
        """Activations covered by one load; reductions are padded to a multiple of it."""
        return self.depth * self.chain

    @property
    def activations(self) -> int:
        """Activations that one instruction reads, `span` for each set of lanes that read the same."""
        return self.span

    def source(self, lane: Any, k: Any) -> Any:
        """Where among these a lane finds its activation `k`."""
        return k

    def suited(self, workload: AnyWorkload) -> "DotInstruction":
        """The instruction as it suits a workload."""
        return self

    @property
    def starts(self) -> bool:
        """Whether its accumulators may start at other values than zero."""
        return True

    @property
    def prefetches(self) -> bool:
        """Whether code prefetches the next panel of weights."""
        return self.backend.prefetches

    @property
    def granule(self) -> int:
        """The span of the shortest chain of the same instruction."""
        return self.span

    @property
    def vector_bytes(self) -> int:
        """Bytes of one step's weights: a vector register on x86."""
        return self.lanes * self.depth * np.dtype(self.weight_dtype).itemsize

    @property
    def accumulator_axes(self) -> int:
        """How many of the accumulator's last axes one instruction covers: the lanes, or more if it spans pixels."""
        return 1

    @property
    def reduction_axes(self) -> int:
        """How many of the reduction's last axes one instruction covers."""
        return 2 if self.chain > 1 and self.depth > 1 else 1

    @property
    def word_dtype(self) -> str:
        """dtype of an integer that holds `depth` weights of a lane."""
        return f"int{8 * self.vector_bytes // self.lanes}"

    def operands(self, pixels: int, blocks: int) -> int:
        """Registers that a tile needs besides its accumulators: one weight per block, activation temporaries."""
        return blocks + (1 if self.accumulates else 2)

    def instructions(self, pixels: int, blocks: int) -> float:
        """Instructions for one step of a tile: products, and loads of their operands."""
        return pixels * blocks * (1 if self.accumulates else 2) + pixels / self.chain + blocks

    def value(self, element: Any) -> Any:
        """An element of an operand in memory, in the dtype of sums."""
        return element.astype(self.sum_dtype)

    def part(self, word: Any, position: Any) -> Any:
        """The weight at `position` in a word, in the dtype of sums."""
        bits = 8 * np.dtype(self.weight_dtype).itemsize
        top = T.int32(32 - bits)
        return T.shift_right(T.shift_left(word.astype("int32"), top - position * T.int32(bits)), top)

    def available(self, target: Target) -> bool:
        """Whether the target's CPU has the instruction."""
        return offers(target, self.product)

    def refuses(self, workload: Workload, target: Target) -> str | None:
        """Why the instruction cannot compute a workload: operands that are not its own, unchanged or after exact
        widening, or a CPU without it."""
        return other_dtypes(workload, *self.operand_dtypes, self.sum_dtype) or lacking(target, self.product)

    @property
    def operand_dtypes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The dtypes of activations and of weights that it computes."""
        if self.data_dtype == "int16":
            return ("uint8", "int8", "int16"), ("uint8", "int8", "int16")
        return (self.data_dtype,), (self.weight_dtype,)

    def pads(self, run: int) -> str | None:
        """Why this length of chain does not suit a reduction over `run` neighbouring values: it would be padded.

        If it is padded in any case, slightly more padding than a shorter chain needs costs less than that chain's
        loads.
        """
        padded, least = -(-run // self.span) * self.span, -(-run // self.granule) * self.granule
        if padded == least or (run != least and 16 * (padded - least) <= least):
            return None
        return f"sums of {run} products would be padded to {padded}"

    def reduction(self, run: int) -> Reduction:
        """The axes of a reduction over `run` values, a multiple of the span."""
        ko = te.reduce_axis((0, run // self.span), "ko")
        if self.chain == 1:
            ki = te.reduce_axis((0, self.depth), "ki")
            return Reduction([ko, ki], ko * self.depth + ki, ko, ki.var)
        ks = te.reduce_axis((0, self.chain), "ks")
        step = ko * self.chain + ks
        if self.depth == 1:
            return Reduction([ko, ks], step, step, 0)
        ki = te.reduce_axis((0, self.depth), "ki")
        return Reduction([ko, ks, ki], ko * self.span + ks * self.depth + ki, step, ki.var)

    @property
    def weight_form(self) -> tuple[str, tuple[int, ...]]:
        """dtype and shape of the weights that one instruction reads."""
        steps = () if self.chain == 1 else (self.chain,)
        if self.words:
            return self.word_dtype, (*steps, self.lanes)
        return self.weight_dtype, (*steps, self.lanes, self.depth)

    def term(self, A: Any, B: Any, *place: Any) -> Any:
        """The product that is added to a lane, at a place (lane, k) or (step, lane, k)."""
        *step, lane, k = place
        if self.depth == 1:
            return self.value(A[k]) * weight_value(self, B, (k, lane), 0)
        index = step[0] * self.depth + k if step else k
        return self.value(A[self.source(lane, index)]) * weight_value(self, B, (*step, lane), k)

    def weights(self, B: Any, first: int = 0, steps: int = 1) -> Any:
        """The weights of some steps as one vector of `weight_dtype`, in the order (step, lane, k)."""
        dtype, shape = self.weight_form
        place = [0] * len(shape) if self.chain == 1 else [first] + [0] * (len(shape) - 1)
        size = steps * self.lanes * self.depth
        lanes = size if not self.words else steps * self.lanes
        vector = B.vload(place, dtype=f"{dtype}x{lanes}")
        return T.reinterpret(vector, dtype=f"{self.weight_dtype}x{size}") if self.words else vector

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """The successive new values of the accumulators, as expressions that read the buffers.

        Each is a single expression: a vector bound by `let` would be spilled to a workspace.
        """
        word = T.reinterpret(A.vload([0], f"{self.data_dtype}x{self.depth}"), dtype="int32")
        operand, accumulator = f"{self.weight_dtype}x{self.lanes * self.depth}", f"int32x{self.lanes}"
        operands = [T.reinterpret(T.broadcast(word, self.lanes), dtype=operand), self.weights(B)]
        before = C.vload([0], dtype=accumulator)
        if self.accumulates:
            operands.insert(0, before)
        dot = T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(self.llvm), *operands, dtype=accumulator)
        return [dot if self.accumulates else before + dot]


def suiting(
    function: Callable[..., Any],
    suited: Callable[[Any, DotInstruction], DotInstruction] = lambda workload, one: one.suited(workload),
) -> Callable[..., Any]:
    """A function of a workload and an instruction that gets the instruction as it suits the workload.

    suited: a rule for kernels of one kind; default: the instruction's own
    """

    def call(*arguments: Any, instruction: DotInstruction, **named: Any) -> Any:
        workload = next(value for value in arguments if isinstance(value, get_args(AnyWorkload)))
        return function(*arguments, instruction=suited(workload, instruction), **named)

    return call


def implementation_with(
    instruction: DotInstruction,
    kernel: str,
    architecture: str,
    priority: int,
    depthwise: bool | None = None,
    accumulator: str = "",
    **functions: Callable[..., Any],
) -> Implementation:
    """A kernel with one instruction, as the strategy registry takes it, from functions that also take `instruction`."""
    if not instruction.starts:
        functions.pop("initial", None)
    return Implementation(
        name=f"{kernel}_{instruction.name}.{architecture}",
        priority=priority,
        backends=backends_with(instruction.product),
        depthwise=depthwise,
        floats=instruction.sum_dtype == "float32",
        accumulator=accumulator,
        **{role: partial(suiting(function), instruction=instruction) for role, function in functions.items()},
    )


def weight_value(instruction: DotInstruction, B: Any, place: tuple[Any, ...], position: Any) -> Any:
    """A weight in the dtype of sums: B[place, position], or the sign-extended part at `position` of a word B[place].

    Kernels and the instruction's description both use this form, so that `tensorize` recognizes it.
    """
    if not instruction.words:
        return instruction.value(B[(*place, position)])
    if instruction.depth == 1:
        return instruction.value(B[place])
    return instruction.part(B[place], position)


def _describe(instruction: DotInstruction):
    lanes, depth, chain, span = instruction.lanes, instruction.depth, instruction.chain, instruction.span
    data_dtype, sum_dtype, activations = instruction.data_dtype, instruction.sum_dtype, instruction.activations
    weight_dtype, weight_shape = instruction.weight_form
    weights = tuple(slice(0, size) for size in weight_shape)

    if instruction.reduction_axes == 1:

        @T.prim_func(s_tir=True)
        def meaning(
            A: T.Buffer((activations,), data_dtype, offset_factor=1),
            B: T.Buffer(weight_shape, weight_dtype, offset_factor=1),
            C: T.Buffer((lanes,), sum_dtype, offset_factor=1),
        ) -> None:
            with T.sblock("root"):
                T.reads(C[0:lanes], A[0:activations], B[weights])
                T.writes(C[0:lanes])
                for i in T.serial(0, lanes):
                    for k in T.serial(0, span):
                        with T.sblock("update"):
                            vi, vk = T.axis.remap("SR", [i, k])
                            C[vi] = C[vi] + instruction.term(A, B, vi, vk)

        return meaning

    @T.prim_func(s_tir=True)
    def chained(
        A: T.Buffer((activations,), data_dtype, offset_factor=1),
        B: T.Buffer(weight_shape, weight_dtype, offset_factor=1),
        C: T.Buffer((lanes,), sum_dtype, offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:activations], B[weights])
            T.writes(C[0:lanes])
            for i in T.serial(0, lanes):
                for s in T.serial(0, chain):
                    for k in T.serial(0, depth):
                        with T.sblock("update"):
                            vi, vs, vk = T.axis.remap("SRR", [i, s, k])
                            C[vi] = C[vi] + instruction.term(A, B, vs, vi, vk)

    return chained


def _implement(instruction: DotInstruction):
    """The instruction as the implementation of a TensorIntrin."""
    lanes, activations, data_dtype, sum_dtype = (
        instruction.lanes,
        instruction.activations,
        instruction.data_dtype,
        instruction.sum_dtype,
    )
    weight_dtype, weight_shape = instruction.weight_form
    weights = tuple(slice(0, size) for size in weight_shape)

    def update(A, B, C):
        for value in instruction.updates(A, B, C):
            T.buffer_store(C, value, [T.ramp(T.int32(0), 1, lanes)])

    @T.prim_func(s_tir=True)
    def implementation(
        A: T.Buffer((activations,), data_dtype, offset_factor=1),
        B: T.Buffer(weight_shape, weight_dtype, offset_factor=1),
        C: T.Buffer((lanes,), sum_dtype, offset_factor=1),
    ) -> None:
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:activations], B[weights])
            T.writes(C[0:lanes])
            update(A, B, C)

    return implementation


@cache
def _register(instruction: DotInstruction) -> str:
    """Register at first use: TVM parses TVMScript slowly, seconds for all instructions when PyTorch is loaded."""
    name = f"qnn_ext.cpu.{instruction.name}" + (".words" if instruction.words else "")
    TensorIntrin.register(name, _describe(instruction), _implement(instruction), override=True)
    return name
