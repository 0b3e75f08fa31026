"""The first position of the largest or smallest value: argmax and argmin.

In a row of 8-bit values, value and position form one 16-bit key, with the position in the low byte, so that the
smallest key of a row decides both; x86 finds the smallest of eight in one instruction. Other values of up to 32 bits
are compared in vectors, as integers in the same order. What is left compares one value after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf, prod
from typing import Any

from tvm import te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...numerics.tir import is_number
from ...targets.features import current_backend, current_registers
from .nest import memory, nest
from .rows import unravel

LANES = (16, 8)
MOST_POSITIONS = 256

_LEAST_LANES = 4
_SIDE_BY_SIDE = 4  # vectors: with the positions, eight registers

ORDERED = ("float32", "float16", "int32", "int16", "uint16", "int8", "uint8")
"""The dtypes whose values have keys of 32 bits in the same order."""

Expr = Any


def has_keys(dtype: str, shape: Sequence[int]) -> bool:
    """Whether rows of such a tensor have 16-bit keys and fill vectors of them, which GPUs do not have."""
    fit = len(shape) > 1 and LANES[-1] <= shape[-1] <= MOST_POSITIONS
    return fit and dtype in ("int8", "uint8") and not current_backend().grid


def extreme_position(x: te.Tensor, largest: bool, keepdims: bool) -> te.Tensor:
    """int64 positions along the last axis."""
    shape = [int(size) for size in x.shape]
    out = [tirx.const(size, "int64") for size in ([*shape[:-1], 1] if keepdims else shape[:-1])]
    body = partial(_nest, shape=shape, keepdims=keepdims, largest=largest)
    return nest(out, [x], body, dtype="int64", name="extreme_position")


def has_order(dtype: str, lines: tuple[int, ...]) -> bool:
    """Whether `compared_position` takes such lines, which GPUs search in threads of their own."""
    _, length, *inner = lines
    neighbours = inner[0] if inner else length
    vectors = not current_backend().grid and _lanes() >= _LEAST_LANES
    return vectors and dtype in ORDERED and length > 1 and neighbours >= _LEAST_LANES


def _lanes() -> int:
    """Values of 32 bits in a register of the current target."""
    return current_registers().lanes(32)


def _width(size: int, lanes: int) -> int:
    """How many of so many neighbours are compared at once, at most `lanes`."""
    while lanes > size:
        lanes //= 2
    return lanes


def lines_along(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """A shape as (outer, length, inner), where `length` is that of an axis, or (outer, length) if nothing is inside."""
    axis %= len(shape)
    outer, inner = prod(shape[:axis]), prod(shape[axis + 1 :])
    return (outer, shape[axis]) if inner == 1 else (outer, shape[axis], inner)


def compared_position(x: te.Tensor, largest: bool) -> te.Tensor:
    """int64 positions along the last axis of (rows, length), or that in the middle of (outer, length, inner); the first
    NaN is beyond all numbers."""
    sizes = [int(size) for size in x.shape]
    search = _along_rows if len(sizes) == 2 else _along_columns

    def body(ins: list[Any], outs: list[Any]) -> Any:
        values, positions = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
        shared = prod(sizes) >= current_backend().sharing.position_elements
        with IRBuilder() as builder:
            search(_Keys(values, largest), positions, T.parallel if shared else T.serial, *sizes)
        return builder.get()

    return nest([sizes[0], *sizes[2:]], [x], body, dtype="int64", name="compared_position")


class _Keys:
    """Values as uint32 in the same order, or for the least one in the opposite order; NaN is the greatest.

    They are unsigned because TVM, where it widens what it takes for indices, casts vectors of int32 to single int64.
    """

    def __init__(self, values: Any, largest: bool) -> None:
        self._values, self._largest = values, largest

    def __call__(self, *indices: Expr) -> Expr:
        value = self._values[indices]
        lanes = value.ty.dtype.lanes
        if "float" not in str(value.ty.dtype):
            return self._directed(value.astype(f"uint32x{lanes}") ^ _all(_SIGN, lanes))
        bits = tirx.reinterpret(f"uint32x{lanes}", value.astype(f"float32x{lanes}"))
        bits = tirx.Select(bits.equal(_all(_SIGN, lanes)), _all(0, lanes), bits)  # both zeros are one
        key = tirx.Select(bits >= _all(_SIGN, lanes), tirx.bitwise_not(bits), bits ^ _all(_SIGN, lanes))
        is_nan = (bits & _all(_SIGN - 1, lanes)) > _all(_INFINITY, lanes)
        return tirx.Select(is_nan, _all(_GREATEST, lanes), self._directed(key))

    def _directed(self, key: Expr) -> Expr:
        return key if self._largest else tirx.bitwise_not(key)


_SIGN, _INFINITY, _GREATEST = 0x80000000, 0x7F800000, 0xFFFFFFFF


def _all(value: int, lanes: int) -> Expr:
    return tirx.const(value, f"uint32x{lanes}")


class _Best:
    """The greatest keys so far, side by side, and their positions."""

    def __init__(self, keys: Expr, positions: Expr) -> None:
        lanes = keys.ty.dtype.lanes
        self._all = tirx.Ramp(tirx.const(0, "int32"), 1, lanes)
        self._keys, self._positions = (memory([lanes], "uint32") for _ in range(2))
        self._keys[self._all], self._positions[self._all] = keys, positions

    def take(self, keys: Expr, positions: Expr) -> None:
        """Keys that are greater, with their positions."""
        self._positions[self._all] = tirx.Select(keys > self.keys, positions, self.positions)
        self._keys[self._all] = tirx.max(keys, self.keys)

    @property
    def keys(self) -> Expr:
        return self._keys[self._all]

    @property
    def positions(self) -> Expr:
        return self._positions[self._all]


def _along_columns(keys: _Keys, positions: Any, loop: Any, outer: int, length: int, inner: int) -> None:
    """Neighbours side by side; the last of them overlap the previous ones."""
    lanes = _lanes()
    width = _SIDE_BY_SIDE * lanes if inner >= _SIDE_BY_SIDE * lanes else _width(inner, lanes)
    blocks = -(-inner // width)
    with loop(0, outer * blocks) as block:
        row, start = block // blocks, tirx.min(block % blocks * width, inner - width)
        columns = tirx.Ramp(start, 1, width)
        best = _Best(keys(row, 0, columns), _all(0, width))
        with T.serial(1, length) as place:
            best.take(keys(row, place, columns), tirx.Broadcast(place.astype("uint32"), width))
        positions[row, columns] = best.positions.astype(f"int64x{width}")


def _along_rows(keys: _Keys, positions: Any, loop: Any, rows: int, length: int) -> None:
    """Pieces of a row side by side, each lane with the first of its own; the last piece overlaps the previous one."""
    width = _width(length, _lanes())
    with loop(0, rows) as row:
        lanes = tirx.call_llvm_pure_intrin(f"uint32x{width}", "llvm.stepvector")

        def piece(start: Expr) -> tuple[Expr, Expr]:
            places = tirx.Broadcast(start.astype("uint32"), width) + lanes
            return keys(row, tirx.Ramp(start, 1, width)), places

        best = _Best(*piece(tirx.const(0, "int32")))
        if (whole := length // width) > 1:
            with T.serial(1, whole) as number:
                best.take(*piece(number * width))
        if length % width:
            best.take(*piece(tirx.const(length - width, "int32")))
        greatest = tirx.call_llvm_pure_intrin("uint32", "llvm.vector.reduce.umax", best.keys)
        equal = best.keys.equal(tirx.Broadcast(greatest, width))
        candidates = tirx.Select(equal, best.positions, _all(_GREATEST, width))
        first = tirx.call_llvm_pure_intrin("uint32", "llvm.vector.reduce.umin", candidates)
        positions[row] = first.astype("int64")


def searched_position(x: te.Tensor, axis: int | None, largest: bool, keepdims: bool) -> te.Tensor:
    """int64 positions along any axis or, for None, in the whole tensor; the first NaN is beyond all numbers."""
    shape = [int(size) for size in x.shape]
    if axis is None:
        x, axis, kept = topi.reshape(x, [prod(shape)]), 0, [1] * len(shape)
    else:
        axis %= len(shape)
        kept = [1 if place == axis else size for place, size in enumerate(shape)]
    position = te.reduce_axis((0, int(x.shape[axis])), name="position")
    others = [*x.shape[:axis], *x.shape[axis + 1 :]]

    def found(*indices: Expr) -> Expr:
        place = [*indices[:axis], position.var, *indices[axis:]]
        return _first_beyond(largest)((position.var.astype("int64"), x(*place)), axis=position)

    if int(x.shape[axis]) == 1:
        # TVM would take the write in the loop for one without effect, and then the one before the loop for overwritten
        positions = te.compute(others, lambda *_: tirx.const(0, "int64"), name="extreme")
    else:
        positions = te.compute(others, found, name="extreme")[0]
    return topi.reshape(positions, kept) if keepdims else positions


def _first_beyond(largest: bool) -> Any:
    """A reducer to position and value of the first extreme, given in their order."""

    def combine(best: tuple[Expr, Expr], new: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
        (place, value), (other_place, other) = best, new
        beyond = other > value if largest else other < value
        if "float" in str(value.ty.dtype):
            # a conjunction would negate the comparison that tells NaN, which turns it around
            beyond = tirx.Select(is_number(other), beyond, is_number(value))
        return tirx.Select(beyond, other_place, place), tirx.Select(beyond, other, value)

    def identity(place_dtype: str, dtype: str) -> tuple[Expr, Expr]:
        first = tirx.const(0, place_dtype)
        if "float" in dtype:
            return first, tirx.const(-inf if largest else inf, dtype)
        return first, (tirx.min_value if largest else tirx.max_value)(dtype)

    return te.comm_reducer(combine, identity, name="first_beyond")


def _nest(ins: list[Any], outs: list[Any], shape: list[int], keepdims: bool, largest: bool) -> Any:
    data, positions = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
    *leading, inner = shape[:-1]
    loop = T.parallel if prod(shape) >= current_backend().sharing.position_elements else T.serial
    with IRBuilder() as builder, loop(0, prod(leading)) as outer, T.serial(0, inner) as last:
        indices = [*unravel(outer, leading), last]
        positions[(*indices, 0) if keepdims else tuple(indices)] = _position(data, indices, shape[-1], largest)
    return builder.get()


def _position(data: Any, indices: list[Expr], length: int, largest: bool) -> Expr:
    """The position in the smallest key; the last vector overlaps the previous one."""
    dtype = str(data.dtype)
    lanes = next(lanes for lanes in LANES if lanes <= length)
    turned = (0x80 if dtype == "int8" else 0) ^ (0xFF if largest else 0)
    smallest = None
    for start in sorted({min(start, length - lanes) for start in range(0, length, lanes)}):
        values = tirx.reinterpret(f"uint8x{lanes}", data[(*indices, tirx.Ramp(start, 1, lanes))])
        ordered = (values ^ tirx.const(turned, f"uint8x{lanes}")).astype(f"uint16x{lanes}")
        place = tirx.Ramp(tirx.const(start, "int32"), 1, lanes).astype(f"uint16x{lanes}")
        key = (ordered << tirx.const(8, f"uint16x{lanes}")) | place
        smallest = key if smallest is None else tirx.min(smallest, key)
    found = tirx.call_llvm_pure_intrin("uint16", "llvm.vector.reduce.umin", smallest)
    return (found & tirx.const(0xFF, "uint16")).astype("int64")
