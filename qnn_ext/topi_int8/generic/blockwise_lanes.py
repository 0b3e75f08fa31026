"""Products of int8 activations and packed weights in sixteen partial sums, as `numerics/mlas_blocks.py` says.

    for each sixteen rows of the weight, for each row of data:
        for step: for lane: sums[lane] = fma(f32(Σ data · weight over the lane's columns), scales, sums[lane])
        the sum of the partial sums

The sixteen rows lie side by side in vectors. Data and weights are stored in the order in which lanes read them: two
words of four columns for each lane of a step, one behind the steps. Products of floats are only multiplied further, so
that nothing is contracted that `tir.fence` would keep apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.target import Target

from ...errors import UnsupportedOperatorError
from ...numerics import tir
from ...numerics.annotations import KEEP
from ...numerics.mlas_blocks import LANES, TILE, WORD, Lanes, folded, lanes_of, total
from ...numerics.packed import WIDTHS, floats_of, unpack, zero_points
from ...targets.features import current_backend, multiplies_by
from .nest import nest
from .operands import Constants, Expr, Operand
from .stages import stages

SIDE = 16  # rows of the weight in a vector
_VNNI, _INSTRUCTION = "vpdpbusd_512", "llvm.x86.avx512.vpdpbusd.512"


@dataclass(frozen=True)
class _Product:
    """What is multiplied: M, K and N, and the integers of the weight."""

    rows: int
    depth: int
    columns: int
    block: int
    bits: int

    @property
    def parts(self) -> tuple[Lanes, Lanes]:
        return lanes_of(self.depth, self.block)

    @property
    def sides(self) -> int:
        return -(-self.columns // SIDE)

    def words(self, part: Lanes) -> int:
        """Words of a lane in a step."""
        return -(-part.places.shape[2] // WORD)

    def chain(self, part: Lanes) -> int:
        """Words that share bytes."""
        return min(8 // self.bits, self.words(part))


@stages("qnn.blockwise_dense_lanes")
def _blockwise_dense_lanes(
    constants: Constants,
    shape: tuple[int, ...],
    data: Operand,
    data_scale: Operand,
    weight: Operand,
    scale: Operand,
    zero_point: Operand,
    bias: Operand,
    *,
    weight_dtype: str,
    group_size: int,
) -> te.Tensor:
    known = [one.value for one in (weight, scale, zero_point, bias)]
    if any(value is None for value in known):
        raise UnsupportedOperatorError("blockwise_dense_lanes takes only constant weights")
    x, units = (one.tensor if one.tensor is not None else constants.add(one.value) for one in (data, data_scale))
    product = _Product(shape[0], data.shape[1], shape[1], group_size, WIDTHS[weight_dtype])
    values, scales, zeros, offsets = known
    groups = scales.shape[1]
    zeros = np.broadcast_to(zero_points(zeros, groups, weight_dtype), scales.shape).astype(np.uint8)
    stored = [_packed(product, unpack(values, weight_dtype, product.depth), part) for part in product.parts]
    by_side = [_side_by_side(product, array) for array in (floats_of(scales).astype(np.float32), zeros)]
    padded = np.zeros(product.sides * SIDE, np.float32)
    padded[: product.columns] = offsets
    ordered = [_ordered(constants, x, product, part) for part in product.parts]
    sums = _group_sums(x, units, product, groups)
    tensors = [*ordered, units, sums, *map(constants.add, (*stored, *by_side, padded))]
    size = (product.rows, product.sides * SIDE)
    result = nest(size, tensors, lambda ins, outs: _nest(ins, outs, product, groups), "float32", "blockwise_lanes")
    return te.compute(shape, lambda m, n: result(m, n), name="blockwise")


# ---- operands ----------------------------------------------------------------------------------------------------


def _packed(product: _Product, values: np.ndarray, part: Lanes) -> np.ndarray:
    """Weights as (sides, steps, lanes, words / chain, SIDE, WORD) bytes."""
    steps, lanes, count = part.places.shape
    words, chain = product.words(part), product.chain(part)
    whole = np.zeros((product.sides * SIDE, int(part.places.max(initial=0)) + 1 + product.depth), np.uint8)
    whole[: product.columns, : product.depth] = values
    taken = np.zeros((product.sides * SIDE, steps, lanes, words * WORD), np.uint8)
    taken[..., :count] = whole[:, part.places]
    split = taken.reshape(product.sides, SIDE, steps, lanes, words // chain, chain, WORD).transpose(0, 2, 3, 4, 5, 1, 6)
    shifts = (product.bits * np.arange(chain, dtype=np.uint8))[:, None, None]
    return np.bitwise_or.reduce(split << shifts, axis=4).reshape(product.sides, -1)


def _side_by_side(product: _Product, array: np.ndarray) -> np.ndarray:
    """(N, G) as (sides, G · SIDE)."""
    padded = np.zeros((product.sides * SIDE, array.shape[1]), array.dtype)
    padded[: product.columns] = array
    return padded.reshape(product.sides, SIDE, -1).transpose(0, 2, 1).reshape(product.sides, -1)


def _ordered(constants: Constants, x: te.Tensor, product: _Product, part: Lanes) -> te.Tensor:
    """The data in the order of lanes, zero where they have no column."""
    steps, lanes, count = part.places.shape
    places = np.full((steps, lanes, product.words(part) * WORD), product.depth, np.int32)
    places[..., :count] = part.places
    flat = places.reshape(-1) if steps else np.zeros(WORD, np.int32)
    if np.array_equal(flat, np.arange(product.depth)):
        return x
    table = constants.add(np.minimum(flat, product.depth))

    def value(m: Expr, place: Expr) -> Expr:
        column = table(place)
        taken = x(m, tirx.min(column, product.depth - 1))
        return tirx.if_then_else(column < product.depth, taken, tirx.const(0, "int8"))

    return te.compute((product.rows, len(flat)), value, name="ordered", attrs={KEEP: True})


def _group_sums(x: te.Tensor, units: te.Tensor, product: _Product, groups: int) -> te.Tensor:
    """f32(Σ data) · data_scale of each group, (M, G)."""
    k = te.reduce_axis((0, product.block), "k")

    def one(m: Expr, group: Expr) -> Expr:
        column = group * product.block + k
        value = x(m, tirx.min(column, product.depth - 1)).astype("int32")
        return te.sum(tirx.Select(column < product.depth, value, tirx.const(0, "int32")), axis=k)

    total_of = te.compute((product.rows, groups), one, name="group_totals", attrs={KEEP: True})
    return te.compute(
        (product.rows, groups),
        lambda m, group: total_of(m, group).astype("float32") * units(m, group),
        name="group_sums",
        attrs={KEEP: True},
    )


# ---- the loop nest -----------------------------------------------------------------------------------------------


def _nest(ins: list[Any], outs: list[Any], product: _Product, groups: int) -> Any:
    buffers = [T.buffer_proxy(one) for one in ins]
    result = T.buffer_proxy(outs[0])
    macs = product.rows * product.depth * product.columns
    loop = T.parallel if macs >= current_backend().sharing.plain_macs else T.serial
    with IRBuilder() as builder, loop(0, product.sides) as side:
        sums = T.buffer_proxy(T.decl_buffer([LANES * SIDE], "float32", scope="local"))
        term = T.buffer_proxy(T.decl_buffer([SIDE], "float32", scope="local"))
        pairs = product.rows // 2 * 2
        for start, stop in ((0, pairs), (pairs, product.rows)):
            if start < stop:
                with T.serial(0, stop - start) as row:
                    _row(buffers, result, side, row + start, _Registers(sums, term), product, groups, start < pairs)
    return builder.get()


@dataclass(frozen=True)
class _Registers:
    """The partial sums of a row, and the sum over its zero points."""

    sums: Any
    term: Any


def _row(
    buffers: list[Any],
    result: Any,
    side: Expr,
    row: Expr,
    registers: _Registers,
    product: _Product,
    groups: int,
    is_pair: bool,
) -> None:
    """One row of data by sixteen of the weight."""
    *ordered, units, group_sums, weight, tail, scale, zeros, bias = buffers
    sums, term = registers.sums, registers.term
    zero = T.broadcast(T.float32(0), SIDE)
    for lane in range(LANES):
        sums[_at(lane * SIDE)] = zero
    term[_at(0)] = zero
    with T.serial(0, groups) as group:
        place = _at(group * SIDE)
        unit = scale[side, place] * T.broadcast(T.float32(-1), SIDE)
        value = unit * tirx.Cast(f"float32x{SIDE}", zeros[side, place])
        data = T.broadcast(group_sums[row, group], SIDE)
        term[_at(0)] = tir.fused_multiply_add(data, value, term[_at(0)])
    for number, (data, stored, part) in enumerate(zip(ordered, (weight, tail), product.parts, strict=True)):
        if number:
            low = folded([sums[_at(lane * SIDE)] for lane in range(LANES)], product.block, add)
            if len(low) < LANES:
                for lane, value in enumerate(low):
                    sums[_at(lane * SIDE)] = value
        if len(part.places):
            with T.serial(0, len(part.places)) as step:
                _step(data, stored, (units, scale), (side, row, step), sums, product, part)
    lanes = LANES if len(folded(list(range(LANES)), product.block, add)) == LANES else LANES // 2

    def summed(is_tile: bool) -> Expr:
        values = [sums[_at(lane * SIDE)] for lane in range(lanes)]
        return total(values, product.block, product.bits, is_pair, is_tile)

    value = summed(True)
    if product.columns % TILE:
        column = tirx.Ramp(side * SIDE, 1, SIDE)
        last = T.broadcast(tirx.const(product.columns // TILE * TILE, "int32"), SIDE)
        value = tirx.Select(column < last, value, summed(False))
    result[row, _at(side * SIDE)] = term[_at(0)] + (value + bias[_at(side * SIDE)])


def _step(
    data: Any,
    stored: Any,
    scales: tuple[Any, Any],
    place: tuple[Expr, Expr, Expr],
    sums: Any,
    product: _Product,
    part: Lanes,
) -> None:
    """One step of a row: the partial sums of all lanes, those of a block one after the other."""
    (side, row, step), (units, scale) = place, scales
    _, lanes, _ = part.places.shape
    words, chain = product.words(part), product.chain(part)
    size = SIDE * WORD
    for owner in sorted(set(part.owners[0].tolist())):
        group = step // part.steps * part.blocks + owner
        unit = T.bind(scale[side, _at(group * SIDE)] * T.broadcast(units[row, group], SIDE))
        for lane in np.flatnonzero(part.owners[0] == owner).tolist():
            dot = None
            for word in range(words):
                begin = ((step * lanes + lane) * (words // chain) + word // chain) * size
                column = ((step * lanes + lane) * words + word) * WORD
                dot = _dot(dot, stored, side, begin, word % chain * product.bits, data, row, column, product.bits)
            slot = _at(lane * SIDE)
            sums[slot] = tir.fused_multiply_add(tirx.Cast(f"float32x{SIDE}", dot), unit, sums[slot])


def _at(start: Expr) -> Expr:
    return tirx.Ramp(start, 1, SIDE)


def _dot(
    before: Expr | None,
    stored: Any,
    side: Expr,
    begin: Expr,
    shift: int,
    data: Any,
    row: Expr,
    column: Expr,
    bits: int,
) -> Expr:
    """before + the products of a word of data and sixteen of weights, int32."""
    sums, mask = f"int32x{SIDE}", (1 << bits) - 1
    target = Target.current(allow_none=True)
    if target is not None and multiplies_by(target, _VNNI):
        total_of = T.broadcast(T.int32(0), SIDE) if before is None else before
        bytes_ = stored[side, tirx.Ramp(begin, 1, SIDE * WORD)]
        words = T.reinterpret(bytes_, dtype=f"uint32x{SIDE}")
        if shift:
            words = T.shift_right(words, T.broadcast(T.uint32(shift), SIDE))
        if bits < 8:
            words = T.bitwise_and(words, T.broadcast(T.uint32(mask * 0x01010101), SIDE))
        word = T.broadcast(T.reinterpret(data[row, tirx.Ramp(column, 1, WORD)], dtype="int32"), SIDE)
        operands = T.reinterpret(words, dtype=f"uint8x{SIDE * WORD}"), T.reinterpret(word, dtype=f"int8x{SIDE * WORD}")
        return T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(_INSTRUCTION), total_of, *operands, dtype=sums)
    total_of = before
    for place in range(WORD):
        part = tirx.Cast(sums, stored[side, tirx.Ramp(begin + place, WORD, SIDE)])
        if bits < 8:
            part = T.bitwise_and(
                T.shift_right(part, T.broadcast(T.int32(shift), SIDE)), T.broadcast(T.int32(mask), SIDE)
            )
        term = part * T.broadcast(tirx.Cast("int32", data[row, column + place]), SIDE)
        total_of = term if total_of is None else total_of + term
    return total_of
