"""Kernels of qnn.winograd_data and qnn.winograd_results: a tile at a time, in vectors of channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...numerics.winograd import RESULTS, SIZE, Numbers, transformed_data, transformed_products
from ...targets.features import current_backend
from .elementwise import Constants, Expr, Operand
from .nest import nest
from .stages import stages

LANES = (16, 8, 4)
"""Channels in a vector: those of the widest registers, or fewer where they do not divide."""

Transform = Callable[[list[Expr]], list[Expr]]


def lanes_of(channels: int) -> int:
    """The channels that are transformed together."""
    return next((lanes for lanes in LANES if channels % lanes == 0), 1)


@stages("qnn.winograd_data")
def _winograd_data(
    constants: Constants, shape: tuple[int, ...], data: Operand, *, padding: tuple[int, ...]
) -> te.Tensor:
    source = data.tensor if data.tensor is not None else constants.add(data.value)
    body = partial(_data_nest, shape=shape, padding=padding)
    return nest(shape, [source], body, dtype="float32", name="winograd_data")


def _data_nest(ins: list[Any], outs: list[Any], shape: tuple[int, ...], padding: tuple[int, ...]) -> Any:
    data, result = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
    _, height, width, channels = map(int, ins[0].shape)
    rows, columns = shape[1:3]
    lanes = lanes_of(channels)
    transform = _transform(transformed_data, lanes)
    zero = _constant(0.0, lanes)
    with IRBuilder() as builder, _loop(shape)(0, shape[0] * rows) as line:
        image, row = line // rows, line % rows
        down = [_position(row, k, padding[0], height, rows) for k in range(SIZE)]
        with T.serial(0, columns) as column, T.serial(0, channels // lanes) as block:
            across = [_position(column, k, padding[1], width, columns) for k in range(SIZE)]

            def element(k: int, j: int) -> Expr:
                (y, y_inside), (x, x_inside) = down[k], across[j]
                value = data[image, y, x, _channels(block * lanes, lanes)]
                inside = [check for check in (y_inside, x_inside) if check is not None]
                return tirx.Select(_each(tirx.all(*inside), lanes), value, zero) if inside else value

            halves = [transform([element(k, j) for k in range(SIZE)]) for j in range(SIZE)]
            for i in range(SIZE):
                for j, value in enumerate(transform([half[i] for half in halves])):
                    start = (i * SIZE + j) * channels + block * lanes
                    result[image, row, column, _channels(start, lanes)] = value
    return builder.get()


def _position(tile: Expr, k: int, before: int, size: int, tiles: int) -> tuple[Expr, Expr | None]:
    """Where element k of a tile lies along an axis, moved inside it, and whether it was there: None if always."""
    position = tile * RESULTS + (k - before)
    last = (tiles - 1) * RESULTS + k - before
    low, high = k < before, last >= size
    checks = [*([position >= 0] if low else []), *([position < size] if high else [])]
    if not checks:
        return position, None
    place = tirx.max(position, 0) if low else position
    return tirx.min(place, size - 1) if high else place, tirx.all(*checks)


@stages("qnn.winograd_results")
def _winograd_results(
    constants: Constants, shape: tuple[int, ...], data: Operand, *, size: tuple[int, ...]
) -> te.Tensor:
    source = data.tensor if data.tensor is not None else constants.add(data.value)
    return nest(shape, [source], partial(_results_nest, shape=shape), dtype="float32", name="winograd_results")


def _results_nest(ins: list[Any], outs: list[Any], shape: tuple[int, ...]) -> Any:
    data, result = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
    _, rows, columns, _ = map(int, ins[0].shape)
    _, height, width, channels = shape
    lanes = lanes_of(channels)
    transform = _transform(transformed_products, lanes)
    with IRBuilder() as builder, _loop(map(int, ins[0].shape))(0, shape[0] * rows) as line:
        image, row = line // rows, line % rows
        with T.serial(0, columns) as column, T.serial(0, channels // lanes) as block:

            def element(k: int, j: int) -> Expr:
                start = (k * SIZE + j) * channels + block * lanes
                return data[image, row, column, _channels(start, lanes)]

            halves = [transform([element(k, j) for k in range(SIZE)]) for j in range(SIZE)]
            for i in range(RESULTS):
                for j, value in enumerate(transform([half[i] for half in halves])):
                    y, x = row * RESULTS + i, column * RESULTS + j
                    checks = [y < height] if (rows - 1) * RESULTS + i >= height else []
                    checks += [x < width] if (columns - 1) * RESULTS + j >= width else []
                    if checks:
                        with T.If(tirx.all(*checks)), T.Then():
                            result[image, y, x, _channels(block * lanes, lanes)] = value
                    else:
                        result[image, y, x, _channels(block * lanes, lanes)] = value
    return builder.get()


def _loop(shape: Any) -> Any:
    """The kind of the outermost loop of a kernel that moves so many elements."""
    return T.parallel if prod(shape) >= current_backend().sharing.moved_elements else T.serial


def _transform(function: Callable[[list[Expr], Numbers], list[Expr]], lanes: int) -> Transform:
    """`function` of vectors, each operand and each result bound to a variable."""

    def fma(a: Expr, b: Expr, c: Expr) -> Expr:
        return tirx.call_llvm_pure_intrin(f"float32x{lanes}" if lanes > 1 else "float32", "llvm.fma", a, b, c)

    numbers = Numbers(partial(_constant, lanes=lanes), fma)

    def apply(values: list[Expr]) -> list[Expr]:
        return [T.bind(value) for value in function([T.bind(value) for value in values], numbers)]

    return apply


def _constant(value: float, lanes: int) -> Expr:
    return _each(tirx.const(value, "float32"), lanes)


def _each(value: Expr, lanes: int) -> Expr:
    """A vector of equal values; of one, the value itself."""
    return tirx.Broadcast(value, lanes) if lanes > 1 else value


def _channels(first: Expr, lanes: int) -> Expr:
    """The indices of a vector of channels."""
    return tirx.Ramp(first, 1, lanes) if lanes > 1 else first
