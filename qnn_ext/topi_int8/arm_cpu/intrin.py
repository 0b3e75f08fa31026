"""Dot products of ARM CPUs, 64-bit and 32-bit: sdot, and NEON's 8- and 16-bit multiplications for CPUs without it.

    sdot     s8 · s8, four products a lane: sdot acc.4s, w.16b, x.4b[i]
    pairs    s8 · s8 where no weight is −128: a product is within ±127·128, so two of them sum in 16 bits:
             smull t.8h, w.8b, x; smlal2 t.8h, w.16b, x'; sadalp acc.4s, t.8h — 16 products in three instructions
    singles  s8 · s8: every product is widened by itself, in four
    wide     activations and weights of 16 bits, with exact widening from any 8 bits: smlal acc.4s, w.4h, x.h[i]

Activations for a chain of steps come from one load, and are broadcast from its register. Nothing here takes unsigned
bytes: legalization makes activations and weights signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.script import tirx as T
from tvm.target import Target

from ...targets.backend import Backend
from ...targets.families import AARCH64 as BACKEND_64
from ...targets.families import ARM32 as BACKEND_32
from ..cpu.dot import DotInstruction
from ..workload import Workload

LANES = 4
"""int32 in a register."""

PAIR_TILES = frozenset(
    [(2, 5), (2, 4), (3, 3), (5, 2), (4, 2), (2, 2), *((1, n) for n in range(1, 6)), (2, 1), (4, 1), (6, 1)]
)
SINGLE_TILES = frozenset([(2, 3), (3, 2), (2, 2), *((1, n) for n in range(1, 5)), (2, 1), (3, 1), (4, 1)])
"""(pixels, blocks) of `Pairs` on 64-bit CPUs."""


@dataclass(frozen=True)
class ArmInstruction(DotInstruction):
    """An instruction, or a sequence of a few, on 16-byte registers; 64-bit CPUs have 32 of these, 32-bit ones 16."""

    @property
    def granule(self) -> int:
        """Four activations."""
        return 4

    def _call(self, name: str, dtype: str, *operands: Any) -> Any:
        return T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(name), *operands, dtype=dtype)

    def _activations(self, A: Any, step: int) -> tuple[Any, int, int]:
        """A load of at least eight bytes of activations, with one step per lane; the number of lanes, and which of them
        is `step`'s. It covers all steps, or if these do not fill a register, two steps, of which `step` is one."""
        dtype, item = self.word_dtype, np.dtype(self.data_dtype).itemsize
        size = self.span * item
        if size % 8:
            pair = 8 // (self.depth * item)
            first = min(step - step % pair, self.chain - pair) if size > 8 else 0
            chain = min(self.chain, pair)
        else:
            first, chain = 0, self.chain
        loaded = A.vload([first * self.depth], f"{self.data_dtype}x{chain * self.depth}")
        if size >= 8:
            return T.reinterpret(loaded, dtype=f"{dtype}x{chain}"), chain, step - first
        twice = T.broadcast(T.reinterpret(loaded, dtype=f"int{8 * size}"), 8 // size)
        lanes = self.chain * (8 // size)
        return T.reinterpret(twice, dtype=f"{dtype}x{lanes}"), lanes, step

    def _broadcast(self, A: Any, step: int, lanes: int) -> Any:
        """The activations of one step, in every lane."""
        vector, size, lane = self._activations(A, step)
        return T.Shuffle(
            [vector] * -(-lanes // size), [lane] * lanes
        )  # a shuffle cannot have more lanes than its inputs


@dataclass(frozen=True)
class Sdot(ArmInstruction):
    """sdot, four activations at a time."""

    def operands(self, pixels: int, blocks: int) -> int:
        """A register of activations for every pixel, one of weights for every block, and two to order loads; 32-bit
        code, which can address elements in only half of the registers, uses twice as many."""
        least = (pixels if self.chain > 1 else 1) + blocks
        return least + 2 if self.registers == 32 else 2 * least

    def instructions(self, pixels: int, blocks: int) -> float:
        """Products by element; weights are loaded two registers at a time."""
        return pixels * blocks + pixels / self.chain + blocks / 2

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """One statement a step."""

        def update(step: int) -> Any:
            lanes = T.reinterpret(self._broadcast(A, step, LANES), dtype="int8x16")
            return self._call(self.llvm, "int32x4", C.vload([0], dtype="int32x4"), self.weights(B, step), lanes)

        return [update(step) for step in range(self.chain)]


@dataclass(frozen=True)
class Pairs(ArmInstruction):
    """Two products per lane at a time in 16 bits, with sums of two of them if no weight is −128.

    sums: the LLVM intrinsic that adds neighbours
    """

    sums: str = ""
    safe: bool = True

    def refuses(self, workload: Workload, target: Target) -> str | None:
        """Also a sum of two products that may not fit 16 bits."""
        unsafe = None if self.safe or workload.pairable_weights else "sums of two products may exceed 16 bits"
        return super().refuses(workload, target) or unsafe

    def operands(self, pixels: int, blocks: int) -> int:
        """LLVM puts all products of two steps before their sums, to avoid waiting, and loads weights ahead. On 64-bit
        CPUs, this admits tiles for which no register was seen to be spilled, whichever CPU's scheduling order is
        used."""
        if self.registers == 16:
            return pixels * blocks + blocks * self.chain // 2 + 3
        fits = (pixels, blocks) in (SINGLE_TILES if self.safe else PAIR_TILES)
        return 0 if fits else self.registers

    def instructions(self, pixels: int, blocks: int) -> float:
        """Per step: two steps share the register of weights, and the last instruction unless products are single."""
        return pixels * blocks * (2 if self.safe else 1.5) + pixels * (1 + 1 / self.chain) + blocks / 4

    def _add_neighbours(self, before: Any, terms: Any) -> Any:
        """before + sums of neighbours: sadalp, vpadal."""
        if self.registers == 16:
            return self._call(self.sums, "int32x4", before, terms)
        return before + self._call(self.sums, "int32x4", terms)

    def _two_broadcast(self, A: Any, step: int) -> Any:
        """The activations of a step in every lane of a register's lower half, those of the next in its upper half.

        On 64-bit CPUs a table lookup: LLVM does not find smlal2 if the halves are broadcast separately.
        """
        if self.registers == 16:
            halves = [self._broadcast(A, step + half, LANES) for half in range(2)]
            return T.reinterpret(T.Shuffle(halves, list(range(2 * LANES))), dtype="int8x16")
        vector, lanes, _ = self._activations(A, step)
        table = T.reinterpret(T.Shuffle([vector] * (8 // lanes), list(range(lanes)) * (8 // lanes)), dtype="int8x16")
        places = [T.broadcast(T.int16((2 * at + 1) << 8 | 2 * at), LANES) for at in (step, step + 1)]
        index = T.reinterpret(T.Shuffle(places, list(range(2 * LANES))), dtype="int8x16")
        return self._call("llvm.aarch64.neon.tbl1.v16i8", "int8x16", table, index)

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """One statement for two steps."""

        def product(step: int) -> Any:
            operands = self.weights(B, step & -2, 2), self._two_broadcast(A, step & -2)
            return self._call(self.llvm, "int16x8", *(half(operand, step & 1) for operand in operands))

        def update(step: int) -> Any:
            before, products = C.vload([0], dtype="int32x4"), [product(step), product(step + 1)]
            for terms in products if self.safe else [products[0] + products[1]]:
                before = self._add_neighbours(before, terms)
            return before

        return [update(step) for step in range(0, self.chain, 2)]


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
            weights = half(self.weights(B, step & -2, 2), step & 1)
            return C.vload([0], dtype="int32x4") + self._call(
                self.llvm, "int32x4", weights, self._broadcast(A, step, LANES)
            )

        return [update(step) for step in range(self.chain)]


def half(vector: Any, half: int) -> Any:
    """Lower (0) or upper half of a vector."""
    lanes = int(str(vector.ty.dtype).split("x")[1]) // 2
    return T.Shuffle([vector], list(range(half * lanes, (half + 1) * lanes)))


def _of_architecture(
    prefix: str, backend: Backend, chains: tuple[Sequence[int], Sequence[int], Sequence[int]], multiply: str, sums: str
) -> list[DotInstruction]:
    """The instructions of 64-bit or 32-bit ARM, fastest first. chains: those of sdot, of pairs and singles, and of
    wide, each longest first."""
    smlal, llvm, byte, short = backend.product("smlal"), f"llvm.{prefix}.neon", "int8", "int16"
    dot, product, total = f"{llvm}.sdot.v4i32.v16i8", f"{llvm}.{multiply}.v8i16", f"{llvm}.{sums}.v4i32.v8i16"

    def name(kind: str, span: int) -> str:
        return f"{kind}_{span}.{prefix}"

    found: list[DotInstruction] = []
    for n in chains[0]:
        found.append(Sdot(name("sdot", 4 * n), backend.product("sdot"), LANES, 4, byte, byte, dot, True, backend, n))
    for safe in (False, True):
        for n in chains[1]:
            kind = name("singles" if safe else "pairs", 2 * n)
            pairs = Pairs(kind, smlal, LANES, 2, byte, byte, product, True, backend, n, sums=total, safe=safe)
            found.append(pairs)
    for n in chains[2]:
        wide = f"{llvm}.{multiply}.v4i32"
        found.append(Wide(name("wide", n), smlal, LANES, 1, short, short, wide, True, backend, n))
    return found


# CPUs do not have enough registers for longer chains. Three steps, as in the rows of nine values of first layers, take
# two overlapping loads of eight bytes: more than a chain of two.
AARCH64 = _of_architecture("aarch64", BACKEND_64, ((4, 2, 3, 1), (4, 2), (8, 4)), "smull", "saddlp")
ARM32 = _of_architecture("arm", BACKEND_32, ((2, 1), (2,), (4,)), "vmulls", "vpadals")
