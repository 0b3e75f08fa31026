"""Dot products of ARM CPUs, 64-bit and 32-bit: sdot, and what NEON without it multiplies 8 and 16 bits with.

    sdot     s8 · s8, four products a lane: sdot acc.4s, w.16b, x.4b[i]
    pairs    s8 · s8 where no weight is −128: a product is within ±127·128, so two of them sum in 16 bits:
             smull t.8h, w.8b, x; smlal2 t.8h, w.16b, x'; sadalp acc.4s, t.8h — 16 products in three instructions
    singles  s8 · s8: every product is widened by itself, in four
    wide     activations and weights of 16 bits, with exact widening from any 8 bits: smlal acc.4s, w.4h, x.h[i]

Activations come with one load for a chain of steps, and are broadcast from there. There is nothing of unsigned bytes:
legalization makes activations and weights signed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.script import tirx as T
from tvm.target import Target

from ..cpu.core import ARM, Core
from ..cpu.dot import DotInstruction
from ..features import is_aarch64, is_arm32

LANES = 4
"""int32 in a register."""


@dataclass(frozen=True)
class ArmInstruction(DotInstruction):
    """An instruction, or a few in a row, on registers of 16 bytes; 64-bit CPUs have 32 of these, 32-bit ones 16."""

    @property
    def core(self) -> Core:
        """ARM's."""
        return ARM

    @property
    def granule(self) -> int:
        """Four activations."""
        return 4

    def available(self, target: Target) -> bool:
        """Whether the target's CPU has the instruction."""
        architecture = is_aarch64(target) if self.registers == 32 else is_arm32(target)
        return architecture and super().available(target)

    def _call(self, name: str, dtype: str, *operands: Any) -> Any:
        return T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(name), *operands, dtype=dtype)

    def _broadcast(self, A: Any, step: int, lanes: int) -> Any:
        """The activations of one step, in every lane."""
        dtype = f"int{8 * self.vector_bytes // self.lanes}"
        if self.chain == 1:
            return T.broadcast(T.reinterpret(A.vload([0], f"{self.data_dtype}x{self.depth}"), dtype=dtype), lanes)
        vector = T.reinterpret(A.vload([0], f"{self.data_dtype}x{self.span}"), dtype=f"{dtype}x{self.chain}")
        return T.Shuffle(
            [vector] * -(-lanes // self.chain), [step] * lanes
        )  # a shuffle takes no more lanes than it has


@dataclass(frozen=True)
class Sdot(ArmInstruction):
    """sdot, four activations at a time."""

    def operands(self, pixels: int, blocks: int) -> int:
        """A register of activations for every pixel, one of weights for every block."""
        return (pixels if self.chain > 1 else 1) + blocks

    def instructions(self, pixels: int, blocks: int) -> float:
        """By element; weights come two registers at a time."""
        return pixels * blocks + pixels / self.chain + blocks / 2

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """One statement a step."""

        def update(step: int) -> Any:
            lanes = T.reinterpret(self._broadcast(A, step, LANES), dtype="int8x16")
            return self._call(self.llvm, "int32x4", C.vload([0], dtype="int32x4"), self.weights(B, step), lanes)

        return [update(step) for step in range(self.chain)]


@dataclass(frozen=True)
class Pairs(ArmInstruction):
    """Two products a lane at a time in 16 bits, and two such sums where no weight is −128.

    sums: the LLVM intrinsic that adds neighbours
    """

    sums: str = ""
    safe: bool = True

    def takes(self, data_dtype: str, weight_dtype: str, weights_above_minimum: bool = False) -> bool:
        """Whether two products do not leave 16 bits."""
        return super().takes(data_dtype, weight_dtype) and (self.safe or weights_above_minimum)

    def operands(self, pixels: int, blocks: int) -> int:
        """Activations of every pixel, of one of them broadcast, weights of all blocks and two sums."""
        return pixels + blocks + 3

    def instructions(self, pixels: int, blocks: int) -> float:
        """Per step: two of them share the weights' register, and the last instruction unless they are single."""
        return pixels * blocks * (2 if self.safe else 1.5) + pixels * (1 + 1 / self.chain) + blocks / 4

    def _two_broadcast(self, A: Any, step: int) -> Any:
        """The activations of a step in every lane of the lower half of a register, those of the next in the upper half.

        On 64-bit CPUs a table lookup: LLVM finds no smlal2 where halves are broadcast by themselves.
        """
        if self.registers == 16:
            halves = [self._broadcast(A, step + half, LANES) for half in range(2)]
            return T.reinterpret(T.Shuffle(halves, list(range(2 * LANES))), dtype="int8x16")
        run = T.reinterpret(A.vload([0], f"int8x{self.span}"), dtype=f"int{8 * self.span}") if self.span < 16 else None
        table = (
            A.vload([0], "int8x16")
            if run is None
            else T.reinterpret(T.broadcast(run, 16 // self.span), dtype="int8x16")
        )
        places = [T.broadcast(T.int16((2 * at + 1) << 8 | 2 * at), LANES) for at in (step, step + 1)]
        index = T.reinterpret(T.Shuffle(places, list(range(2 * LANES))), dtype="int8x16")
        return self._call("llvm.aarch64.neon.tbl1.v16i8", "int8x16", table, index)

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """One statement for two steps, or for each."""

        def product(step: int) -> Any:
            operands = self.weights(B, step & -2, 2), self._two_broadcast(A, step & -2)
            return self._call(self.llvm, "int16x8", *(_half(operand, step & 1) for operand in operands))

        def update(products: Any) -> Any:
            return C.vload([0], dtype="int32x4") + self._call(self.sums, "int32x4", products)

        if self.safe:
            return [update(product(step)) for step in range(self.chain)]
        return [update(product(step) + product(step + 1)) for step in range(0, self.chain, 2)]


@dataclass(frozen=True)
class Wide(ArmInstruction):
    """smlal by element."""

    def operands(self, pixels: int, blocks: int) -> int:
        """Activations of every pixel, weights of all blocks."""
        return pixels + blocks

    def instructions(self, pixels: int, blocks: int) -> float:
        """Weights of two steps share a register."""
        return pixels * blocks + pixels / self.chain + blocks / 4

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """One statement a step."""

        def update(step: int) -> Any:
            weights = _half(self.weights(B, step & -2, 2), step & 1)
            return C.vload([0], dtype="int32x4") + self._call(
                self.llvm, "int32x4", weights, self._broadcast(A, step, LANES)
            )

        return [update(step) for step in range(self.chain)]


def _half(vector: Any, half: int) -> Any:
    """Lower (0) or upper half of a vector."""
    lanes = int(str(vector.ty.dtype).split("x")[1]) // 2
    return T.Shuffle([vector], list(range(half * lanes, (half + 1) * lanes)))


def _of_architecture(prefix: str, registers: int, multiply: str, sums: str) -> tuple[ArmInstruction, ...]:
    """The instructions of 64-bit or 32-bit ARM, fastest first, each with the longest chain first."""
    bytewise = {"lanes": LANES, "data_dtype": "int8", "weight_dtype": "int8", "registers": registers}
    neon, accumulating = (("neon",),), {"accumulates": True}
    product, total = f"llvm.{prefix}.neon.{multiply}.v8i16", f"llvm.{prefix}.neon.{sums}.v4i32.v8i16"
    return (
        *(
            Sdot(
                f"sdot_{4 * chain}.{prefix}",
                (("dotprod",),),
                depth=4,
                llvm=f"llvm.{prefix}.neon.sdot.v4i32.v16i8",
                chain=chain,
                **bytewise,
                **accumulating,
            )
            for chain in (4, 2, 1)
        ),
        *(
            Pairs(
                f"{name}_{2 * chain}.{prefix}",
                neon,
                depth=2,
                llvm=product,
                chain=chain,
                sums=total,
                safe=safe,
                **bytewise,
                **accumulating,
            )
            for name, safe in (("pairs", False), ("singles", True))
            for chain in (8, 4, 2)
        ),
        *(
            Wide(
                f"wide_{chain}.{prefix}",
                neon,
                LANES,
                1,
                "int16",
                "int16",
                f"llvm.{prefix}.neon.{multiply}.v4i32",
                True,
                registers,
                chain,
            )
            for chain in (8, 4)
        ),
    )


# Fastest first.
AARCH64 = _of_architecture("aarch64", 32, "smull", "saddlp")
ARM32 = _of_architecture("arm", 16, "vmulls", "vpaddls")
