"""The first position of the largest or smallest value: argmax and argmin.

In a row of 8-bit values, value and position form one 16-bit key, with the position in the low byte, so that the
smallest key of a row decides both; x86 finds the smallest of eight in one instruction. Other cases compare one value
after another.
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
from ...targets.features import current_backend
from .nest import nest
from .rows import unravel

LANES = (16, 8)
MOST_POSITIONS = 256

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
