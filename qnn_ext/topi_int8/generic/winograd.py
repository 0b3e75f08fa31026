"""Kernels of qnn.winograd_data and qnn.winograd_results: a tile at a time, in vectors of channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...numerics.winograd import Form, Numbers, form_for_data, form_for_products
from ...numerics.winograd import Transform as FormTransform
from ...targets.features import current_backend
from .nest import nest
from .operands import Constants, Expr, Operand
from .stages import stages

LANES = (16, 8, 4)
"""Channels in a vector: those of the widest registers, or fewer where they do not divide."""

Transform = Callable[[list[Expr]], list[Expr]]


def lanes_of(channels: int) -> int:
    """The channels that are transformed together."""
    return next((lanes for lanes in LANES if channels % lanes == 0), 1)


@stages("qnn.winograd_data")
def _winograd_data(
    constants: Constants, shape: tuple[int, ...], data: Operand, *, padding: tuple[int, ...], pad_value: int
) -> te.Tensor:
    source = data.tensor if data.tensor is not None else constants.add(data.value)
    form = form_for_data(data.dtype)
    body = partial(_data_nest, shape=shape, form=form, padding=padding, pad_value=pad_value)
    return nest(shape, [source], body, dtype=form.dtypes[1], name="winograd_data")


def _data_nest(
    ins: list[Any], outs: list[Any], shape: tuple[int, ...], form: Form, padding: tuple[int, ...], pad_value: int
) -> Any:
    data, result = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
    _, height, width, channels = map(int, ins[0].shape)
    rows, columns = shape[1:3]
    lanes, dtype, size = lanes_of(channels), form.dtypes[1], form.size
    transform = _transform(form.data, dtype, lanes)
    outside = _each(tirx.const(pad_value, dtype), lanes)
    with IRBuilder() as builder, _loop(shape)(0, shape[0] * rows) as line:
        image, row = line // rows, line % rows
        down = [_position(form, row, k, padding[0], height, rows) for k in range(size)]
        with T.serial(0, columns) as column, T.serial(0, channels // lanes) as block:
            across = [_position(form, column, k, padding[1], width, columns) for k in range(size)]

            def element(k: int, j: int) -> Expr:
                (y, y_inside), (x, x_inside) = down[k], across[j]
                value = _as(dtype, data[image, y, x, _channels(block * lanes, lanes)], lanes)
                inside = [check for check in (y_inside, x_inside) if check is not None]
                return tirx.Select(_each(tirx.all(*inside), lanes), value, outside) if inside else value

            halves = [transform([element(k, j) for k in range(size)]) for j in range(size)]
            for i in range(size):
                for j, value in enumerate(transform([half[i] for half in halves])):
                    start = (i * size + j) * channels + block * lanes
                    result[image, row, column, _channels(start, lanes)] = value
    return builder.get()


def _position(form: Form, tile: Expr, k: int, before: int, size: int, tiles: int) -> tuple[Expr, Expr | None]:
    """Where element k of a tile lies along an axis, moved inside it, and whether it was there: None if always."""
    position = tile * form.results + (k - before)
    last = (tiles - 1) * form.results + k - before
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
    form = form_for_products(data.dtype)
    body = partial(_results_nest, shape=shape, form=form)
    return nest(shape, [source], body, dtype=data.dtype, name="winograd_results")


def _results_nest(ins: list[Any], outs: list[Any], shape: tuple[int, ...], form: Form) -> Any:
    data, result = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
    _, rows, columns, _ = map(int, ins[0].shape)
    _, height, width, channels = shape
    lanes, size = lanes_of(channels), form.size
    transform = _transform(form.products, form.dtypes[2], lanes)
    with IRBuilder() as builder, _loop(map(int, ins[0].shape))(0, shape[0] * rows) as line:
        image, row = line // rows, line % rows
        with T.serial(0, columns) as column, T.serial(0, channels // lanes) as block:

            def element(k: int, j: int) -> Expr:
                start = (k * size + j) * channels + block * lanes
                return data[image, row, column, _channels(start, lanes)]

            halves = [transform([element(k, j) for k in range(size)]) for j in range(size)]
            for i in range(form.results):
                for j, value in enumerate(transform([half[i] for half in halves])):
                    y, x = row * form.results + i, column * form.results + j
                    final = value >> _each(tirx.const(form.shift, "int32"), lanes) if form.shift else value
                    checks = [y < height] if (rows - 1) * form.results + i >= height else []
                    checks += [x < width] if (columns - 1) * form.results + j >= width else []
                    if checks:
                        with T.If(tirx.all(*checks)), T.Then():
                            result[image, y, x, _channels(block * lanes, lanes)] = final
                    else:
                        result[image, y, x, _channels(block * lanes, lanes)] = final
    return builder.get()


def _loop(shape: Any) -> Any:
    """The kind of the outermost loop of a kernel that moves so many elements."""
    return T.parallel if prod(shape) >= current_backend().sharing.moved_elements else T.serial


def _transform(function: FormTransform, dtype: str, lanes: int) -> Transform:
    """`function` of vectors, each operand and each result bound to a variable."""

    def fma(a: Expr, b: Expr, c: Expr) -> Expr:
        return tirx.call_llvm_pure_intrin(f"float32x{lanes}" if lanes > 1 else "float32", "llvm.fma", a, b, c)

    numbers = Numbers(lambda value: _each(tirx.const(value, dtype), lanes), fma)

    def apply(values: list[Expr]) -> list[Expr]:
        return [T.bind(value) for value in function([T.bind(value) for value in values], numbers)]

    return apply


def _as(dtype: str, value: Expr, lanes: int) -> Expr:
    """A vector converted to a dtype."""
    return value.astype(f"{dtype}x{lanes}" if lanes > 1 else dtype)


def _each(value: Expr, lanes: int) -> Expr:
    """A vector of equal values; of one, the value itself."""
    return tirx.Broadcast(value, lanes) if lanes > 1 else value


def _channels(first: Expr, lanes: int) -> Expr:
    """The indices of a vector of channels."""
    return tirx.Ramp(first, 1, lanes) if lanes > 1 else first
