"""Local response normalization, the twin of numerics/response_norm.py: a vector of places at a time, channel after
channel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...numerics import eigen, elementary, tir
from ...targets.features import current_backend
from .nest import memory, nest
from .operands import Constants, Expr, Operand
from .rows import unravel
from .stages import stages

_LANES = 16
_VECTORS = 8  # side by side: lines of each channel that follow one another in memory
_SHARED = 64  # the most values that the power of a vector has in memory

_const = elementary.TIR.const


def _power(x: Expr, lane: Expr, exponent: float, held: Any) -> Expr:
    """x^−exponent, with shared values in memory, which LLVM makes registers: TVM expands nested variables."""
    rows = iter(range(_SHARED))

    def shared(x: Expr, body: Callable[[Expr], Expr]) -> Expr:
        row = next(rows)
        held[row, lane] = x
        return body(held[row, lane])

    return eigen.inverse_power(x, exponent, replace(elementary.TIR, shared=shared))


@stages("qnn.response_norm")
def _response_norm(
    constants: Constants, shape: tuple[int, ...], data: Operand, *, size: int, alpha: float, beta: float, bias: float
) -> te.Tensor:
    x = data.tensor if data.tensor is not None else constants.add(data.value)
    factor = float(np.float32(alpha) / np.float32(size))
    body = partial(_nest, shape=shape, size=size, factor=factor, exponent=float(np.float32(beta)), bias=bias)
    return nest([tirx.const(extent, "int64") for extent in shape], [x], body, dtype="float32", name="response_norm")


def _nest(
    ins: list[Any], outs: list[Any], shape: tuple[int, ...], size: int, factor: float, exponent: float, bias: float
) -> Any:
    data, result = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
    samples, channels, inner = shape[0], shape[1], shape[2:]
    places, before = prod(inner), (size - 1) // 2
    after = size - 1 - before
    lanes = min(_LANES, places)
    count = -(-places // lanes)
    together = min(_VECTORS, count)
    loop = T.parallel if prod(shape) >= current_backend().sharing.softmax_elements else T.serial

    def at(sample: Expr, channel: Expr, place: Expr) -> tuple[Expr, ...]:
        return (sample, channel, *unravel(place, inner))

    with IRBuilder() as builder, loop(0, samples * -(-count // together)) as task:
        sums, held = memory((together, lanes), "float32"), memory((_SHARED, lanes), "float32")
        sample, group = task // -(-count // together), task % -(-count // together)

        def each(body: Callable[[Expr, Expr, Expr], None]) -> None:
            """body(vector, lane, place) for all; the last vectors of a row may overlap those before them."""
            with T.serial(0, together) as vector:
                start = tirx.min((group * together + vector) * lanes, places - lanes)
                with T.vectorized(lanes) as lane:
                    body(vector, lane, start + lane)

        def add(channel: Expr, factor: float) -> None:
            def term(vector: Expr, lane: Expr, place: Expr) -> None:
                x = T.bind(data[at(sample, channel, place)])
                sums[vector, lane] = sums[vector, lane] + tir.fence(tir.fence(x * x) * _const(factor))

            each(term)

        def begin(vector: Expr, lane: Expr, place: Expr) -> None:
            sums[vector, lane] = _const(bias)

        each(begin)
        with T.serial(0, min(after, channels)) as channel:
            add(channel, factor)
        with T.serial(0, channels) as channel:
            with T.If(channel + after < channels), T.Then():
                add(channel + after, factor)
            with T.If(channel > before), T.Then():
                add(channel - before - 1, -factor)

            def normalize(vector: Expr, lane: Expr, place: Expr) -> None:
                power = _power(sums[vector, lane], lane, exponent, held)
                result[at(sample, channel, place)] = data[at(sample, channel, place)] * power

            each(normalize)
    return builder.get()
