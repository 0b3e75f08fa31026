"""Products of bfloat16 with sums of float32, as vdpbf16ps computes them; and weights of 16 bits that are widened.

An instruction adds two products to each lane. It takes subnormal operands and sums for zero, and rounds at most twice
for each product: a sum of k products is within k · 2⁻²³ · Σ |a · b| of the exact one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ...numerics import bfloat16
from ...numerics.tir import dtype_of
from ...targets.backend import Backend
from .dot import DotInstruction
from .fma import Fma, instructions_of
from .llvm_functions import define

HALVES = (bfloat16.BITS, "float16")
"""Weights of 16 bits."""


@dataclass(frozen=True)
class BFloat16Dot(DotInstruction):
    """Two products of bfloat16 a lane, on their bits. `llvm` is one of `llvm_functions`."""

    @property
    def sum_dtype(self) -> str:
        return "float32"

    def value(self, element: Any) -> Any:
        return bfloat16.from_bits_expression(element)

    def part(self, word: Any, position: Any) -> Any:
        above = tirx.shift_left(word, tirx.const(16, "int32") - position * tirx.const(16, "int32"))
        return tirx.reinterpret("float32", tirx.bitwise_and(above, tirx.const(-(1 << 16), "int32")))

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """One statement a step."""
        sums, words = f"float32x{self.lanes}", f"int32x{self.lanes}"

        def update(step: int) -> Any:
            pair = T.reinterpret(A.vload([step * self.depth], f"{self.data_dtype}x{self.depth}"), dtype="int32")
            weights = T.reinterpret(self.weights(B, step), dtype=words)
            return T.call_pure_extern(sums, self.llvm, C.vload([0], dtype=sums), T.broadcast(pair, self.lanes), weights)

        return [update(step) for step in range(self.chain)]


@dataclass(frozen=True)
class WideningFma(Fma):
    """A multiply-add whose weights have 16 bits in memory.

    With a depth of 2, each lane's weights for two steps are one word: a shift gives the first bfloat16 as float32, a
    mask the second.
    """

    def value(self, element: Any) -> Any:
        return bfloat16.from_bits_expression(element) if dtype_of(element) == bfloat16.BITS else super().value(element)

    def weights(self, B: Any, first: int = 0, steps: int = 1) -> Any:
        """The weights of one activation as float32; `first` counts activations."""
        floats, words = f"float32x{self.lanes}", f"uint32x{self.lanes}"
        stored = super().weights(B, first // self.depth)
        if self.weight_dtype != bfloat16.BITS:
            return T.Cast(floats, stored)
        word = T.Cast(words, stored) if self.depth == 1 else T.reinterpret(stored, dtype=words)
        if first % self.depth:
            return T.reinterpret(T.bitwise_and(word, T.broadcast(T.uint32(0xFFFF0000), self.lanes)), dtype=floats)
        return T.reinterpret(T.shift_left(word, T.broadcast(T.uint32(16), self.lanes)), dtype=floats)


def dots_of(backend: Backend, function: str) -> list[BFloat16Dot]:
    """The instructions of a family of CPUs, fastest first. function: of LLVM, with {lanes} and {pairs} to fill in."""
    found = []
    vectors = {file for _, file in backend.registers}
    for product in (one for one in backend.bfloat16_products if one.registers in vectors):
        lanes, dtype = product.registers.lanes(32), bfloat16.BITS
        llvm = define(
            product.name,
            f"<{lanes} x float>",
            [f"<{lanes} x float>", f"<{2 * lanes} x bfloat>", f"<{2 * lanes} x bfloat>"],
            function.format(bits=32 * lanes, lanes=lanes, pairs=2 * lanes),
            [f"<{lanes} x float>", f"<{lanes} x i32>", f"<{lanes} x i32>"],
        )
        found.append(BFloat16Dot(product.name, product, lanes, 2, dtype, dtype, llvm, True, backend))
    return found


def widening_of(backend: Backend, weight_dtype: str, kind: type[WideningFma] = WideningFma) -> list[WideningFma]:
    """The multiply-adds of a family of CPUs with weights of one of HALVES, fastest first."""
    suffix = "bfloat16" if weight_dtype == bfloat16.BITS else weight_dtype
    found: list[WideningFma] = []
    for fma in instructions_of(backend):
        depth = 2 if weight_dtype == bfloat16.BITS and fma.chain % 2 == 0 else 1
        values = {field.name: getattr(fma, field.name) for field in fields(fma)}
        values.update(name=f"{fma.name}_{suffix}", weight_dtype=weight_dtype, depth=depth, chain=fma.chain // depth)
        found.append(kind(**values))
    return found
