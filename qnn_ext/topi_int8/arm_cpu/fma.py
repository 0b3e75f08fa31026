"""Products of floats on 64-bit ARM, by element:

    fmla    four multiply-adds of float32, each rounded once: fmla acc.4s, w.4s, x.s[i]
    fmlal   the same of float16, exactly widened: fmlal acc.4s, w.4h, x.h[i]; fmlal2 with the upper half of w.8h
    bfdot   two products of bfloat16 a lane: bfdot acc.4s, w.8h, x.2h[i]
    widening: fmla with weights of 16 bits, which are converted where they are loaded

As in `cpu.fma`, every sum has one accumulator that takes its products in order, so fmla and fmlal give the same bits as
other CPUs. bfdot rounds to odd, twice for two products, and takes subnormal numbers for zero, within the limits that
`cpu.bfloat16` states. Not used: fmla of float16, whose sums would have 11 bits and end at 65504, and bfmmla, whose
operands of two pixels would have to be copied side by side, as smmla's are.

Activations for a chain of steps come from one load and are multiplied from its register.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from tvm.script import tirx as T

from ...numerics.bfloat16 import BITS
from ...targets.backend import Backend
from ..cpu.bfloat16 import BFloat16Dot, WideningFma
from ..cpu.fma import CHAINS, Fma
from ..cpu.llvm_functions import define_instruction
from .intrin import ArmInstruction, half

LANES = 4
"""float32 in a register."""


@dataclass(frozen=True)
class Fmla(Fma):
    """fmla on blocks of two registers, whose weights one instruction loads; four activations at a time, or three in two
    overlapping loads."""

    block: ClassVar[int] = 2

    def operands(self, pixels: int, blocks: int) -> int:
        """The second registers of the sums, a register of activations for every pixel, two of weights for every block,
        and two to order loads."""
        return pixels * blocks + pixels + 2 * blocks + 2

    def instructions(self, pixels: int, blocks: int) -> float:
        """Products by element; a step reads its weights from as many places as there are blocks."""
        loads = 1 if self.span % 2 == 0 else 2
        return 2 * pixels * blocks + loads * pixels / self.span + blocks

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """One statement for each activation."""
        return [self._multiply_add(self._element(A, step), self.weights(B, step), C) for step in range(self.span)]

    def _element(self, A: Any, step: int) -> Any:
        """An activation in every lane, out of a load of all four, or of two of three."""
        count = self.span if self.span % 2 == 0 else 2
        first = 0 if count == self.span else min(step, self.span - count)
        loaded = A.vload([first], f"{self.data_dtype}x{count}")
        return T.Shuffle([loaded] * -(-self.lanes // count), [step - first] * self.lanes)

    def _multiply_add(self, value: Any, weights: Any, C: Any) -> Any:
        dtype = f"float32x{self.lanes}"
        return _call(self.llvm, dtype, value, weights, C.vload([0], dtype=dtype))


@dataclass(frozen=True)
class WideningFmla(Fmla, WideningFma):
    """fmla with weights that have 16 bits in memory."""

    def instructions(self, pixels: int, blocks: int) -> float:
        """As of fmla, and two more to convert the weights of a step."""
        return super().instructions(pixels, blocks) + 2 * blocks


@dataclass(frozen=True)
class Fmlal(Fmla):
    """fmlal and fmlal2 on eight channels, whose weights are one register and whose sums are two."""

    def operands(self, pixels: int, blocks: int) -> int:
        """As of fmla, with one register of weights for every block."""
        return super().operands(pixels, blocks) - blocks

    def value(self, element: Any) -> Any:
        return element.astype(self.sum_dtype)

    def _multiply_add(self, value: Any, weights: Any, C: Any) -> Any:
        sums = C.vload([0], dtype=f"float32x{self.lanes}")
        halves = [
            _call(f"llvm.aarch64.neon.{name}.v4f32.v8f16", "float32x4", half(sums, index), weights, value)
            for index, name in enumerate(("fmlal", "fmlal2"))
        ]
        return T.Shuffle(halves, list(range(self.lanes)))


@dataclass(frozen=True)
class Bfdot(BFloat16Dot, ArmInstruction):
    """bfdot, up to four pairs of activations at a time."""

    def operands(self, pixels: int, blocks: int) -> int:
        """A register of activations for every pixel, one of weights for every block, and two to order loads."""
        return pixels + blocks + 2

    def instructions(self, pixels: int, blocks: int) -> float:
        """Products by element, and loads."""
        return pixels * blocks + pixels / self.chain + blocks

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """One statement a step."""
        sums, words = f"float32x{self.lanes}", f"int32x{self.lanes}"

        def update(step: int) -> Any:
            weights = T.reinterpret(self.weights(B, step), dtype=words)
            pairs, size, lane = self._activations(A, step)
            return T.call_pure_extern(sums, _bfdot(size, lane), C.vload([0], dtype=sums), weights, pairs)

        return [update(step) for step in range(self.chain)]


@cache
def _bfdot(size: int, lane: int) -> str:
    """bfdot by one of `size` pairs. LLVM 22 has no pattern for it that its own optimization leaves: it would copy the
    pair to every lane first (LLVM's issue 170883)."""
    types = "<4 x float>", "<4 x i32>", f"<{size} x i32>"
    return define_instruction(f"bfdot_{size}_{lane}", types[0], f"bfdot $0.4s, $2.8h, $3.2h[{lane}]", "=w,0,w,w", types)


def _call(name: str, dtype: str, *operands: Any) -> Any:
    return T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(name), *operands, dtype=dtype)


def float16_of(backend: Backend, chains: Sequence[int] = CHAINS) -> list[Fmlal]:
    """The products of float16 of a family of CPUs, fastest first."""
    half_dtype, lanes = "float16", Fmlal.block * LANES
    return [
        Fmlal(f"{product.name}_{chain}", product, lanes, 1, half_dtype, half_dtype, "", True, backend, chain)
        for product in backend.float16_products
        for chain in chains
    ]


def bfloat16_of(backend: Backend, chains: Sequence[int] = (4, 2, 1)) -> list[Bfdot]:
    """The products of bfloat16 of a family of CPUs, fastest first."""
    return [
        Bfdot(f"{product.name}_{chain}", product, LANES, 2, BITS, BITS, "", True, backend, chain)
        for product in backend.bfloat16_products
        for chain in chains
    ]
