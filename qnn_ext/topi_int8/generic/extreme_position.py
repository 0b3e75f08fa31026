"""The first position of the largest or smallest value: argmax and argmin.

In a row of 8-bit values, value and position form one 16-bit key, with the position in the low byte, so that the
smallest key of a row decides both; x86 finds the smallest of eight in one instruction. Other cases use TVM's reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

from tvm import te, tirx, topi
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

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
    """int64 positions along any axis or, for None, in the whole tensor. TVM finds no position, −1, if all values equal
    its search's initial value, the least or greatest of their dtype; the first position is used then."""
    found = (topi.argmax if largest else topi.argmin)(x, axis, keepdims)
    return te.compute(found.shape, lambda *i: tirx.max(found(*i), tirx.const(0, found.dtype)), name="position")


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
