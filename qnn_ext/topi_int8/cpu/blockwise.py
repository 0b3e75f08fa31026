"""Products with block-wise quantized weights, which stay packed in memory and are unpacked in registers.

    for tile of rows × blocks of N: for group g:
        dots = 0; for step in g: dots[row, block] += A[row, step] · unpacked(B[block, g, step])     the register tile
        sums[row, block] += (f32(dots) − zero[block, g] · Σ A[row, g]) · scale[block, g]

With one row, decoding, every weight is read once and memory is the limit; with many, a tile's rows share what was
unpacked. Packed weights are (N/(side · lanes), groups, steps, side, lanes, bytes of a lane), scales and zero points
(N/(side · lanes), groups, side, lanes): what a tile of `side` blocks reads is one stream, which CPUs fetch ahead of it.
Activations are signed, and weights unsigned; signed for float products and where an instruction takes no others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.script import tirx as T
from tvm.target import Target

from ...numerics import tir
from ...numerics.annotations import OPERAND
from ...numerics.packed import WIDTHS, floats_of, unpack, zero_points
from ...targets.backend import Backend
from ..blocking import blocked_caches
from ..refusal import lacking
from ..schedule_util import inline_epilogue, schedule_root_blocks
from ..strategy import Implementation
from ..workload import BlockwiseWorkload
from .dot import DotInstruction, implementation_with
from .fma import MOST_PIXELS
from .microkernel import (
    Domain,
    Tile,
    is_ragged,
    lane_of,
    legal_tiles,
    round_up,
    schedule_microkernel,
    strip_size,
    tensorize_tile,
    tile_cost,
)

Expr = Any


@dataclass(frozen=True)
class Unpacking(DotInstruction):
    """A dot product with weights of `bits` bits, packed `chain` to an element in memory.

    Value number s · depth + k of a lane, s < chain, k < depth, is in element k at bit s · bits.
    """

    bits: int = 4
    of_floats: ClassVar[bool] = False

    @property
    def weight_form(self) -> tuple[str, tuple[int, ...]]:
        return self.weight_dtype, (self.lanes, self.depth) if self.depth > 1 else (self.lanes,)

    def term(self, A: Any, B: Any, *place: Any) -> Any:
        *step, lane, k = place
        s, position = (step[0], k) if step else (0, k) if self.chain == 1 else (k, 0)
        return self.value(A[self.position(s, position)]) * self.unpacked(B, (lane,), s, position)

    def position(self, s: Expr, k: Expr) -> Expr:
        """The place of a value in a step."""
        return k if self.chain == 1 else s * self.depth + k if self.depth > 1 else s

    def unpacked(self, B: Any, place: tuple[Expr, ...], s: Expr, k: Expr) -> Expr:
        """A weight in the dtype of sums."""
        element = (B[(*place, k)] if self.depth > 1 else B[place]).astype("int32")
        if self.of_floats:
            top = tirx.const(32 - self.bits, "int32")
            above = tirx.shift_left(element, top - s * tirx.const(self.bits, "int32"))
            return tirx.shift_right(above, top).astype("float32")
        if self.chain == 1:
            return element
        part = tirx.shift_right(element, s * tirx.const(self.bits, "int32"))
        return tirx.bitwise_and(part, tirx.const((1 << self.bits) - 1, "int32"))

    def lacks(self, workload: BlockwiseWorkload, target: Target) -> str | None:
        """Why it does not compute a workload."""
        if workload.data_dtype != ("float32" if self.of_floats else "int8"):
            return f"{workload.data_dtype} activations"
        if WIDTHS[workload.weight_dtype] != self.bits:
            return f"{workload.weight_dtype} weights"
        if workload.groups > 1 and workload.group % self.span:
            return f"groups of {workload.group} are no multiple of {self.span}"
        return lacking(target, self.product)

    @property
    def offset(self) -> int:
        """What an unsigned value exceeds a signed one by."""
        return 1 << (self.bits - 1)

    def stored(self, values: np.ndarray, weight_dtype: str) -> tuple[np.ndarray, int]:
        """Integers of `weight_dtype` as they are packed, modulo 2^bits, and what that adds to them."""
        unsigned = weight_dtype.startswith("u")
        if self.of_floats:
            return values, -self.offset if unsigned else 0
        return values, 0 if unsigned else self.offset

    def packed(self, values: np.ndarray) -> np.ndarray:
        """(…, lanes, span) values, modulo 2^bits, as elements (…, lanes, depth), or (…, lanes) with a depth of 1."""
        dtype = np.dtype(self.weight_dtype)
        parts = values.reshape(*values.shape[:-1], self.chain, self.depth).astype(np.int64) & ((1 << self.bits) - 1)
        shifts = (self.bits * np.arange(self.chain, dtype=np.int64))[:, None]
        elements = np.bitwise_or.reduce(parts << shifts, axis=-2)
        elements = elements.astype(f"u{dtype.name.removeprefix('u')}").view(dtype)
        return elements if self.depth > 1 else elements[..., 0]


@dataclass(frozen=True)
class UnpackingBytes(Unpacking):
    """A step's weights as vectors of bytes, one for each s."""

    def parts(self, B: Any) -> list[Any]:
        """The bytes of all lanes for each s, as `weight_dtype`."""
        size = self.lanes * self.depth
        stored = B.vload([0, 0], dtype=f"{self.weight_dtype}x{size}")
        if self.chain == 1:
            return [stored]
        words = f"uint32x{size // 4}"
        mask = T.broadcast(T.uint32(((1 << self.bits) - 1) * 0x01010101), size // 4)

        def part(s: int) -> Any:
            word = T.reinterpret(stored, dtype=words)
            shifted = T.shift_right(word, T.broadcast(T.uint32(s * self.bits), size // 4)) if s else word
            return T.reinterpret(T.bitwise_and(shifted, mask), dtype=f"uint8x{size}")

        return [part(s) for s in range(self.chain)]

    def activations_of(self, A: Any, s: int) -> Any:
        """`depth` activations, the same for every lane."""
        word = T.reinterpret(A.vload([s * self.depth], f"{self.data_dtype}x{self.depth}"), dtype="int32")
        return T.reinterpret(T.broadcast(word, self.lanes), dtype=f"{self.data_dtype}x{self.lanes * self.depth}")

    def operands(self, pixels: int, blocks: int) -> int:
        """A register for each s of a block's weights, and an activation; one more for sums apart."""
        return self.chain * blocks + (1 if self.accumulates else 2)

    def call(self, name: str, dtype: str, *operands: Any) -> Any:
        return T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(name), *operands, dtype=dtype)


@dataclass(frozen=True)
class UnpackingFma(Unpacking):
    """A multiply-add of a broadcast float32 and weights that are unpacked from words of 32 bits and made floats."""

    of_floats: ClassVar[bool] = True

    @property
    def sum_dtype(self) -> str:
        return "float32"

    def operands(self, pixels: int, blocks: int) -> int:
        """The words of each block, one step of them as floats, and an activation."""
        return 2 * blocks + 1 if pixels <= MOST_PIXELS else self.registers

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        """One statement for each activation."""
        floats, words, top = f"float32x{self.lanes}", f"int32x{self.lanes}", 32 - self.bits

        def update(s: int) -> Any:
            word = B.vload([0], dtype=words)
            above = top - s * self.bits
            shifted = T.shift_left(word, T.broadcast(T.int32(above), self.lanes)) if above else word
            part = T.shift_right(shifted, T.broadcast(T.int32(top), self.lanes))
            value = T.broadcast(A.vload([s], "float32"), self.lanes)
            operands = value, T.Cast(floats, part), C.vload([0], dtype=floats)
            return T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(self.llvm), *operands, dtype=floats)

        return [update(s) for s in range(self.chain)]


def unpacking_fmas(backend: Backend) -> list[UnpackingFma]:
    """The multiply-adds of a family of CPUs for weights of each number of bits, fastest first."""
    found = []
    for product in backend.float_products:
        lanes = product.registers.lanes(32)
        for bits in sorted(set(WIDTHS.values())):
            name, llvm = f"{product.name}_int{bits}", f"llvm.fma.v{lanes}f32"
            found.append(
                UnpackingFma(name, product, lanes, 1, "float32", "int32", llvm, True, backend, 32 // bits, bits=bits)
            )
    return found


@dataclass(frozen=True)
class Plan:
    """Register tile, rows and blocks of N padded to it, length of a group padded to whole steps; whether the
    activations are copied, because they are padded or of another dtype; how many blocks lie side by side."""

    tile: Tile
    rows: int
    blocks: int
    group: int
    staged: bool
    side: int

    def place(self, block: Expr) -> tuple[Expr, Expr]:
        """The first index of a packed array for a block, and the one along `side`."""
        return block // self.side, block % self.side


MANY_BLOCKS, STRIDE = 64, 4
"""From so many blocks on, weights are padded to a multiple of the stride, whatever the number of rows: products of one
row and of many then read the same packed weights. The padding is at most 5 % of them. So many blocks lie side by side.

A tile of eight that reads two streams instead of eight gets 18 to 30 GB/s from Zen 4's memory instead of 15 to 22."""


@lru_cache(maxsize=4096)
def plan(workload: BlockwiseWorkload, instruction: Unpacking) -> Plan:
    """Padded sizes for the cheapest register tile."""
    group = round_up(workload.group, instruction.span)
    blocks = round_up(workload.n, instruction.lanes) // instruction.lanes
    many = blocks >= MANY_BLOCKS
    blocks = round_up(blocks, STRIDE) if many else blocks
    steps = group * workload.groups // instruction.depth
    domain = Domain(1, workload.m, blocks, steps, True, is_ragged(workload.n, instruction))
    side = 1 if instruction.backend.counts else math.gcd(blocks, STRIDE)
    tiles = [
        tile
        for tile in legal_tiles(domain, instruction)
        if not (many and blocks % tile.blocks) and 0 in (side % tile.blocks, tile.blocks % side)
    ]
    tile = min(tiles, key=lambda one: tile_cost(one, domain, instruction))
    staged = group * workload.groups != workload.k or workload.data_dtype != instruction.data_dtype
    return Plan(tile, round_up(workload.m, tile.columns), round_up(blocks, tile.blocks), group, staged, side)


def pack_weight(
    workload: BlockwiseWorkload, weight: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, instruction: Unpacking
) -> list[np.ndarray]:
    """Weights, scales, and zero points if groups have their own, as at the top of this module; zero in padding."""
    layout, lanes, groups = plan(workload, instruction), instruction.lanes, workload.groups
    dtype = workload.weight_dtype
    values, offset = instruction.stored(unpack(weight, dtype, workload.k), dtype)
    padded = np.zeros((layout.blocks * lanes, groups, layout.group), np.int16)
    whole = np.zeros((workload.n, groups * workload.group), np.int16)
    whole[:, : workload.k] = values.astype(np.int16) + offset
    padded[: workload.n, :, : workload.group] = whole.reshape(workload.n, groups, workload.group)
    steps = padded.reshape(layout.blocks, lanes, groups, -1, instruction.span).transpose(0, 2, 3, 1, 4)

    def side_by_side(array: np.ndarray, axis: int) -> np.ndarray:
        """(blocks, …) with `side` of them along an axis."""
        parts = array.reshape(-1, layout.side, *array.shape[1:])
        return np.ascontiguousarray(np.moveaxis(parts, 1, axis))

    def by_group(values: np.ndarray) -> np.ndarray:
        full = np.zeros((layout.blocks * lanes, groups), values.dtype)
        full[: workload.n] = values
        return side_by_side(full.reshape(layout.blocks, lanes, groups).transpose(0, 2, 1), 2)

    arrays = [side_by_side(instruction.packed(steps), 3), by_group(floats_of(scale))]
    if workload.zero_point is None:
        zeros = zero_points(zero_point, groups, dtype)
        arrays.append(by_group((zeros + zeros.dtype.type(offset)).astype(_zero_dtype(workload))))
    return arrays


def _zero_dtype(workload: BlockwiseWorkload) -> str:
    return "float32" if workload.float_zeros else "int16"


def compute(
    workload: BlockwiseWorkload, x: te.Tensor, operands: Sequence[te.Tensor], pad_value: int, instruction: Unpacking
) -> te.Tensor:
    """The product, (M, N). operands: the scales of int8 activations, and what `pack_weight` returns."""
    layout = plan(workload, instruction)
    scales = list(operands[:1]) if workload.integers else []
    weight, scale, *zeros = operands[len(scales) :]
    groups, lanes = workload.groups, instruction.lanes
    data = _stage(workload, layout, x, instruction)
    steps, axes, inner = _reduction(layout.group, instruction)

    def row(m: Expr) -> Expr:
        return tirx.min(m, workload.m - 1) if layout.rows > workload.m else m

    def at(block: Expr, *place: Expr) -> tuple[Expr, ...]:
        first, beside = layout.place(block)
        return first, *place[:-1], beside, place[-1]

    dots = te.compute(
        (groups, layout.rows, layout.blocks, lanes),
        lambda g, m, block, lane: te.sum(
            instruction.value(data(row(m), g * layout.group + steps * instruction.span + instruction.position(*inner)))
            * instruction.unpacked(weight, at(block, g, steps, lane), *inner),
            axis=axes,
        ),
        name="dots",
    )
    centered = _centered(workload, instruction, dots, data, layout, zeros, row, at)
    g = te.reduce_axis((0, groups), "g")

    def scaled(m: Expr, block: Expr, lane: Expr) -> Expr:
        unit = scale(*at(block, g, lane))
        if workload.integers and not workload.row_scales:
            unit = scales[0](row(m), g) * unit
        return tir.fence(centered(g, m, block, lane) * unit)

    acc = te.compute(
        (layout.rows, layout.blocks, lanes),
        lambda m, block, lane: te.sum(scaled(m, block, lane), axis=g),
        name="blockwise",
    )

    def logical(m: Expr, n: Expr) -> Expr:
        value = acc[m, n // lanes, lane_of(n, workload.n, lanes)]
        return tir.fence(value * scales[0](m, 0)) if workload.row_scales else value

    return te.compute((workload.m, workload.n), logical, name="logical")


def _centered(
    workload: BlockwiseWorkload,
    instruction: Unpacking,
    dots: te.Tensor,
    data: te.Tensor,
    layout: Plan,
    zeros: Sequence[te.Tensor],
    row: Any,
    at: Any,
) -> Any:
    """A group's dot product minus its zero point times its sum of activations, as float32."""
    shared = workload.zero_point
    _, offset = instruction.stored(np.zeros(0), workload.weight_dtype)
    if shared is not None and shared + offset == 0:
        return lambda g, m, block, lane: dots(g, m, block, lane).astype("float32")
    sums = instruction.sum_dtype
    j = te.reduce_axis((0, layout.group), "j")
    totals = te.compute(
        (workload.m, workload.groups),
        lambda m, g: te.sum(data(m, g * layout.group + j).astype(sums), axis=j),
        name="group_sums",
    )

    def centered(g: Expr, m: Expr, block: Expr, lane: Expr) -> Expr:
        zero = tirx.const(shared + offset, sums) if shared is not None else zeros[0](*at(block, g, lane)).astype(sums)
        return (dots(g, m, block, lane) - zero * totals(row(m), g)).astype("float32")

    return centered


def _stage(workload: BlockwiseWorkload, layout: Plan, x: te.Tensor, instruction: Unpacking) -> te.Tensor:
    """x (M, K) with every group padded to the plan's and in the instruction's dtype, or x itself."""
    if not layout.staged:
        return x
    run = layout.group * workload.groups

    def padded(m: Expr, k: Expr) -> Expr:
        value = x(m, k).astype(instruction.data_dtype)
        return (
            tirx.if_then_else(k < workload.k, value, tirx.const(0, instruction.data_dtype))
            if run > workload.k
            else value
        )

    return te.compute((workload.m, run), padded, name="pad", attrs={OPERAND: True})


def _reduction(group: int, instruction: Unpacking) -> tuple[Any, list[Any], tuple[Any, Any]]:
    """The steps of a group, all axes of its reduction, and the place (s, k) of a value in a step."""
    steps = te.reduce_axis((0, group // instruction.span), "steps")
    axes, inner = [steps], []
    for size, name in ((instruction.chain, "s"), (instruction.depth, "k")):
        axis = te.reduce_axis((0, size), name) if size > 1 else None
        axes += [axis] if axis is not None else []
        inner.append(axis.var if axis is not None else 0)
    return steps, axes, (inner[0], inner[1])


def schedule(sch: Schedule, workload: BlockwiseWorkload, target: Target, instruction: Unpacking) -> None:
    """Tile rows × blocks of N, in each tile group by group, its dot products tensorized; tiles in parallel."""
    accumulator, dots = sch.get_sblock("blockwise"), sch.get_sblock("dots")
    output = inline_epilogue(sch, accumulator)
    schedule_root_blocks(sch, [accumulator, output, dots], target, vector=64)
    layout = plan(workload, instruction)
    count, row_bytes = layout.rows // layout.tile.columns, workload.k * np.dtype(workload.data_dtype).itemsize
    weight_bytes = workload.n * workload.k * instruction.bits // 8
    schedule_microkernel(
        sch,
        accumulator,
        output,
        instruction,
        layout.tile,
        pixel_axes=1,
        macs=workload.macs,
        strip=strip_size(count, layout.tile.columns * row_bytes, weight_bytes, blocked_caches(target)),
        compute_tile=lambda: _by_groups(sch, accumulator, dots, instruction),
    )


def _by_groups(sch: Schedule, accumulator: SBlockRV, dots: SBlockRV, instruction: Unpacking) -> list[LoopRV]:
    """Compute a tile group by group; returns the loop over the steps of a group."""
    row, block, lane, group = sch.get_loops(accumulator)[-4:]
    sch.reorder(group, row, block, lane)
    sch.compute_at(dots, group, preserve_unit_loops=True)
    _in_registers(sch, row, block, lane)  # before the initial value is apart: TVM vectorizes no update alone
    initial = sch.decompose_reduction(accumulator, group)
    _in_registers(sch, *sch.get_loops(initial)[-3:])
    return tensorize_tile(sch, dots, instruction, 1)


def _in_registers(sch: Schedule, row: LoopRV, block: LoopRV, lane: LoopRV) -> None:
    for loop in (row, block):
        sch.unroll(loop)
    sch.vectorize(lane)


def refuses(workload: BlockwiseWorkload, target: Target, instruction: Unpacking) -> str | None:
    """Why the instruction does not compute the product."""
    return instruction.lacks(workload, target)


def implementation(instruction: Unpacking, architecture: str, priority: int) -> Implementation:
    """The kernel with one instruction, as the strategy registry takes it."""
    functions: dict[str, Any] = {
        "refuses": refuses,
        "compute": compute,
        "schedule": schedule,
        "pack_weight": pack_weight,
    }
    return replace(implementation_with(instruction, "blockwise", architecture, priority, **functions), floats=None)
