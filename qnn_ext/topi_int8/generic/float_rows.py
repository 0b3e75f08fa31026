"""TE computes of float softmax and of layer normalization along the last axis, the twins of numerics/float_rows.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod
from operator import add
from typing import Any

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ...numerics import elementary, mlas, tir, xnnpack
from ...numerics.annotations import KEEP
from ...numerics.float_rows import LANES, PACKET, SQUARES, rounded_squares
from ...targets.features import current_backend
from .nest import memory, nest
from .operands import Constants, Expr, Operand
from .rows import unravel
from .stages import stages

Element = Callable[..., Expr]
Combine = Callable[[Expr, Expr], Expr]


def _plus_square(total: Expr, x: Expr) -> Expr:
    return tir.shared(x, lambda x: tir.fused_multiply_add(x, x, total))


def _plus_rounded_square(total: Expr, x: Expr) -> Expr:
    return total + tir.shared(x, lambda x: tir.fence(x * x))


_SUM_OF_SQUARES = te.comm_reducer(_plus_square, lambda dtype: tirx.const(0, dtype), name="sum_of_squares")


def _pairs(first: Sequence[Expr | None], second: Sequence[Expr | None], combine: Combine) -> list[Expr | None]:
    """Each of the first combined with its partner; the partners of a short row's last elements are None."""
    return [low if high is None else combine(low, high) for low, high in zip(first, second, strict=True)]


class _Rows:
    """Reductions over one axis of float32 elements, in the order of `float_rows.row_sum`: sixteen in parallel."""

    def __init__(self, shape: Sequence[int], axis: int = -1) -> None:
        self.axis = axis % len(shape)
        self.length = shape[self.axis]
        self.before, self.after = tuple(shape[: self.axis]), tuple(shape[self.axis + 1 :])

    def at(self, row: Sequence[Expr], position: Expr) -> list[Expr]:
        """The indices of an element of a row."""
        return [*row[: self.axis], position, *row[self.axis :]]

    def of(self, indices: Sequence[Expr]) -> list[Expr]:
        """The indices of the row of an element."""
        return [*indices[: self.axis], *indices[self.axis + 1 :]]

    def reduce(self, element: Element, combine: Combine, reduction: Callable[..., Expr], name: str) -> te.Tensor:
        """One number for each row; `combine` does for two numbers what `reduction` does for an axis."""
        whole, rest = divmod(self.length, LANES)
        k = te.reduce_axis((0, whole), "k")

        def lane_sum(*i: Expr) -> Expr:
            return reduction(element(*self.at(self.of(i), k * LANES + i[self.axis])), axis=k)

        lanes = te.compute((*self.before, LANES, *self.after), lane_sum, name=f"{name}_lanes") if whole > 0 else None

        def row(*i: Expr) -> Expr:
            terms = []
            for lane in range(LANES):
                parts = [lanes(*self.at(i, lane))] if lanes is not None else []
                parts += [element(*self.at(i, whole * LANES + lane))] if lane < rest else []
                terms.append(parts[0] if len(parts) == 1 else combine(*parts) if parts else None)
            half = LANES // 2
            terms = _pairs(terms[:half], terms[half:], combine)
            while len(terms) > 1:
                terms = _pairs(terms[::2], terms[1::2], combine)
            return terms[0]

        return te.compute((*self.before, *self.after), row, name=name, attrs={KEEP: True})

    def sum(self, element: Element, name: str) -> te.Tensor:
        return self.reduce(element, lambda a, b: a + b, te.sum, name)

    def squares(self, element: Element, name: str) -> te.Tensor:
        """Σ element² of rows along the last axis, in the order of `float_rows.row_squares`."""
        whole, rounded = self.length // SQUARES, rounded_squares(self.length)
        k = te.reduce_axis((0, whole), "k")

        def lane_sum(*i: Expr) -> Expr:
            return _SUM_OF_SQUARES(element(*i[:-1], k * SQUARES + i[-1]), axis=k)

        lanes = te.compute((*self.before, SQUARES), lane_sum, name=f"{name}_lanes") if whole > 0 else None

        def row(*i: Expr) -> Expr:
            terms = [elementary.TIR.const(0.0) if lanes is None else lanes(*i, lane) for lane in range(SQUARES)]
            while len(terms) > 1:
                half = len(terms) // 2
                terms = [low + high for low, high in zip(terms[:half], terms[half:], strict=True)]
            total = terms[0]
            for position in range(whole * SQUARES, self.length):
                add = _plus_rounded_square if position in rounded else _plus_square
                total = add(total, element(*i, position))
            return total

        return te.compute(self.before, row, name=name, attrs={KEEP: True})

    def max(self, element: Element, name: str) -> te.Tensor:
        return self.reduce(element, tirx.max, te.max, name)


def softmax(x: te.Tensor, axis: int = -1) -> te.Tensor:
    """e^(x − max) · (1 / Σ e^(x − max)) over one axis."""
    shape = [int(size) for size in x.shape]
    rows = _Rows(shape, axis)
    high = rows.max(x, "row_max")
    exps = te.compute(shape, lambda *i: mlas.exp(x(*i) - high(*rows.of(i)), elementary.TIR), name="exps")
    total = rows.sum(exps, "row_total")
    inverse = te.compute(
        total.shape, lambda *i: elementary.TIR.const(1.0) / total(*i), name="row_inverse", attrs={KEEP: True}
    )
    return te.compute(shape, lambda *i: exps(*i) * inverse(*rows.of(i)), name="softmax")


def log_softmax(x: te.Tensor, axis: int = -1) -> te.Tensor:
    """(x − max) − ln Σ e^(x − max) over one axis."""
    shape = [int(size) for size in x.shape]
    rows = _Rows(shape, axis)
    high = rows.max(x, "row_max")
    total = rows.sum(lambda *i: mlas.exp(x(*i) - high(*rows.of(i)), elementary.TIR), "row_total")
    logarithm = te.compute(
        total.shape, lambda *i: elementary.log(total(*i), elementary.TIR), name="row_log", attrs={KEEP: True}
    )
    return te.compute(shape, lambda *i: (x(*i) - high(*rows.of(i))) - logarithm(*rows.of(i)), name="log_softmax")


def lane_softmax(x: te.Tensor) -> te.Tensor:
    """The same over the last axis, with XNNPACK's exponentials and sums, as `numerics.float_rows.lane_softmax`."""
    shape = [int(size) for size in x.shape]
    high = _Rows(shape).max(x, "row_max")
    exps = te.compute(
        shape,
        lambda *i: xnnpack.exp_of_negative(x(*i) - high(*i[:-1]), elementary.TIR),
        name="exps",
        attrs={KEEP: True},
    )
    whole = shape[-1] // (4 * LANES) * 2  # pairs of vectors that are added to two partial sums
    k = te.reduce_axis((0, whole), "k")
    lanes = te.compute(
        (*shape[:-1], 2 * LANES),
        lambda *i: te.sum(exps(*i[:-1], k * (2 * LANES) + i[-1]), axis=k),
        name="row_total_lanes",
    )

    def total(*i: Expr) -> Expr:
        terms = []
        for lane in range(LANES):
            parts = [lanes(*i, lane) + lanes(*i, lane + LANES)] if whole else []
            parts += [exps(*i, place) for place in range(whole * 2 * LANES + lane, shape[-1], LANES)]
            terms.append(reduce(add, parts) if parts else None)
        return elementary.TIR.const(1.0) / _halved(terms)

    inverse = te.compute(shape[:-1], total, name="row_inverse", attrs={KEEP: True})

    def probability(*i: Expr) -> Expr:
        return xnnpack.flushed(exps(*i) * inverse(*i[:-1]), elementary.TIR)

    return te.compute(shape, probability, name="softmax")


def _halved(terms: list[Expr | None]) -> Expr:
    """Repeatedly one half added to the other."""
    while len(terms) > 1:
        half = len(terms) // 2
        terms = _pairs(terms[:half], terms[half:], add)
    return terms[0]


def wide_sum(x: te.Tensor) -> te.Tensor:
    """Σ over the last axis, kept with extent 1, in the order of `numerics.float_rows.wide_sum`."""
    *before, length = (int(size) for size in x.shape)
    whole, rest = divmod(length, 2 * LANES)
    k = te.reduce_axis((0, whole), "k")
    lanes = te.compute(
        (*before, 2 * LANES), lambda *i: te.sum(x(*i[:-1], k * (2 * LANES) + i[-1]), axis=k), name="row_sum_lanes"
    )

    def total(*i: Expr) -> Expr:
        row, terms = i[:-1], []
        for lane in range(LANES):
            sums = [lanes(*row, lane), lanes(*row, lane + LANES)] if whole else []
            left = [x(*row, length - rest + place) for place in range(lane, rest, LANES)]
            # sixteen elements come between the two partial sums, fewer than that behind them
            parts = [*sums[:1], *left[:1], *sums[1:], *left[1:]] if rest >= LANES else [*sums, *left]
            terms.append(reduce(add, parts) if parts else None)
        return _halved(terms)

    return te.compute((*before, 1), total, name="row_sum", attrs={KEEP: True})


def layer_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, epsilon: float) -> te.Tensor:
    """fma((x − mean) / √(variance + ε), γ, β): the mean from a sum in float64, the variance from the deviations."""
    shape = [int(size) for size in x.shape]
    const = elementary.TIR.const
    count = const(shape[-1])
    rows = _Rows(shape)
    total = rows.sum(lambda *i: x(*i).astype("float64"), "row_total")
    mean = te.compute(
        shape[:-1],
        lambda *i: (total(*i) / tirx.const(float(shape[-1]), "float64")).astype("float32"),
        name="row_mean",
        attrs={KEEP: True},
    )

    def deviation(*i: Expr) -> Expr:
        return x(*i) - mean(*i[:-1])

    squares = rows.squares(deviation, "row_squares")
    inverse = te.compute(
        shape[:-1],
        lambda *i: const(1.0) / tirx.sqrt(squares(*i) / count + const(epsilon)),
        name="row_inverse",
        attrs={KEEP: True},
    )
    return te.compute(
        shape,
        lambda *i: tir.fused_multiply_add(deviation(*i) * inverse(*i[:-1]), gamma(i[-1]), beta(i[-1])),
        name="layer_norm",
    )


def welford_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, epsilon: float) -> te.Tensor:
    """(x − mean) / √(variance + ε) · γ + β, with the moments of sixteen rows side by side."""
    shape = [int(size) for size in x.shape]
    const, length, rows = elementary.TIR.const, shape[-1], prod(shape[:-1])
    padded = -(-rows // LANES) * LANES

    def column(k: Expr, row: Expr) -> Expr:
        return x(*unravel(tirx.min(row, rows - 1), shape[:-1]), k)

    columns = te.compute((length, padded), column, name="columns", attrs={KEEP: True})
    size = [tirx.const(2, "int64"), tirx.const(padded, "int64")]
    moments = nest(size, [columns], partial(_moments, length=length, rows=padded), dtype="float32", name="row_moments")
    deviation = te.compute(
        (rows,),
        lambda row: tirx.sqrt(moments(1, row) / const(length) + const(epsilon)),
        name="row_deviation",
        attrs={KEEP: True},
    )

    def element(*i: Expr) -> Expr:
        row = _flat(i[:-1], shape[:-1])
        return tir.fence((x(*i) - moments(0, row)) / deviation(row) * gamma(i[-1])) + beta(i[-1])

    return te.compute(shape, element, name="welford_norm")


def _moments(ins: list[Any], outs: list[Any], length: int, rows: int) -> Any:
    """Welford's mean, and sum of squares of deviations, of each column; a vector of columns at a time."""
    data, moments = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
    zero = tirx.const(0.0, "float32")

    with IRBuilder() as builder, T.serial(0, rows // LANES) as group:
        for moment in range(2):
            with T.vectorized(LANES) as lane:
                moments[moment, group * LANES + lane] = zero
        with T.serial(0, length) as k, T.vectorized(LANES) as lane:
            row = group * LANES + lane
            x, mean = data[k, row], moments[0, row]
            after = T.bind(mean + (x - mean) / (k + 1).astype("float32"))
            moments[1, row] = moments[1, row] + tir.fence((x - mean) * (x - after))
            moments[0, row] = after
    return builder.get()


def rms_norm(x: te.Tensor, gamma: te.Tensor, epsilon: float, in_order: bool) -> te.Tensor:
    """x / √(mean of x² + ε) · γ, as `numerics.float_rows.rms_norm`."""
    shape = [int(size) for size in x.shape]
    const = elementary.TIR.const
    if in_order:
        k = te.reduce_axis((0, shape[-1]), "k")

        def square(*i: Expr) -> Expr:
            return te.sum(tir.fence(x(*i, k) * x(*i, k)), axis=k)

        squares = te.compute(shape[:-1], square, name="row_squares", attrs={KEEP: True})
    else:
        squares = _Rows(shape).squares(lambda *i: x(*i), "row_squares")

    def root(*i: Expr) -> Expr:
        deviation = tirx.sqrt(squares(*i) / const(shape[-1]) + const(epsilon))
        return deviation if in_order else const(1.0) / deviation

    roots = te.compute(shape[:-1], root, name="row_root", attrs={KEEP: True})

    def element(*i: Expr) -> Expr:
        unit = x(*i) / roots(*i[:-1]) if in_order else x(*i) * roots(*i[:-1])
        return unit * gamma(i[-1])

    return te.compute(shape, element, name="rms_norm")


def lane_sum(x: te.Tensor, packets: int, aligned: bool, name: str = "lane_sum") -> te.Tensor:
    """Σ over the last axis, in the order of `numerics.float_rows.lane_sum`."""
    shape = [int(size) for size in x.shape]
    length, before, zero = shape[-1], shape[:-1], elementary.TIR.const(0.0)
    number, size = tirx.const(length, "int32"), packets * PACKET

    def start(row: Sequence[Expr]) -> Expr:
        """The first element of a row that partial sums begin with."""
        if not aligned or length % PACKET == 0:
            return tirx.const(0, "int32")
        return tirx.min(tirx.indexmod(-(_flat(row, before) % PACKET) * number + PACKET * number, PACKET), number)

    def ends(row: Sequence[Expr]) -> tuple[Expr, Expr]:
        """Behind the last whole group of packets, and behind the last packet."""
        first = start(row)
        rest = number - first
        return first + rest // size * size, first + rest // PACKET * PACKET

    def at(row: Sequence[Expr], position: Expr, counts: Expr) -> Expr:
        """An element, or zero."""
        return tirx.if_then_else(counts, x(*row, tirx.min(position, number - 1)), zero)

    def lane_loop(ins: list[Any], outs: list[Any]) -> Any:
        """Partial sums of each row, over whole groups of elements."""
        data, lanes = T.buffer_proxy(ins[0]), T.buffer_proxy(outs[0])
        loop = T.parallel if prod(shape) >= current_backend().sharing.softmax_elements else T.serial
        with IRBuilder() as builder, loop(0, prod(before)) as one:
            row = unravel(one, before)
            partial_sums = memory([size], "float32")
            with T.vectorized(size) as lane:
                partial_sums[lane] = zero
            first = start(row)
            with T.serial(0, (number - first) // size) as group, T.vectorized(size) as lane:
                partial_sums[lane] = partial_sums[lane] + data[(*row, first + group * size + lane)]
            with T.vectorized(size) as lane:
                lanes[one, lane] = partial_sums[lane]
        return builder.get()

    def lane_of(one: Expr, lane: Expr) -> Expr:
        """The same, where threads compute elements."""
        row = unravel(one, before)
        group = start(row) + k * size
        return te.sum(at(row, group + lane, group < ends(row)[0]), axis=k)

    k = te.reduce_axis((0, -(-length // size)), "k")
    sums, named = [prod(before), size], f"{name}_lanes"
    if current_backend().grid:
        lanes = te.compute(sums, lane_of, name=named, attrs={KEEP: True})
    else:
        lanes = nest(sums, [x], lane_loop, dtype="float32", name=named)

    def two_packets(*i: Expr) -> Expr:
        *row, lane = i
        groups, behind = ends(row)
        one = _flat(row, before)
        return lanes(one, lane) + lanes(one, lane + PACKET) + at(row, groups + lane, groups < behind)

    def one_packet(*i: Expr) -> Expr:
        return lanes(_flat(i[:-1], before), i[-1])

    packet = two_packets if packets == 2 else one_packet
    packed = te.compute((*before, PACKET), packet, name=f"{name}_packet", attrs={KEEP: True})

    def total(*i: Expr) -> Expr:
        *row, _ = i
        first, behind = start(row), ends(row)[1]
        sums = [packed(*row, lane) + packed(*row, lane + PACKET // 2) for lane in range(PACKET // 2)]
        result = sums[0] + sums[1]
        if length % PACKET:
            for place in range(PACKET - 1 if aligned else 0):
                result = result + at(row, tirx.const(place, "int32"), first > place)
            for place in range(PACKET - 1):
                result = result + at(row, behind + place, behind + place < number)
        return result

    return te.compute((*before, 1), total, name=name, attrs={KEEP: True})


def lane_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, epsilon: float) -> te.Tensor:
    """x · f + (β − mean · f) with f = γ / √(variance + ε)."""
    shape = [int(size) for size in x.shape]
    const, rows = elementary.TIR.const, shape[:-1]
    count = const(shape[-1])

    def by_row(value: Callable[[Expr, Expr], Expr], name: str) -> te.Tensor:
        return te.compute(rows, value, name=name, attrs={KEEP: True})

    def square(n: Expr, c: Expr, i: Expr) -> Expr:
        return tir.shared(x(n, c, i) - mean(n, c), lambda deviation: tir.fence(deviation * deviation))

    total = lane_sum(x, 2, aligned=True, name="row_sum")
    mean = by_row(lambda n, c: total(n, c, 0) / count, "row_mean")
    squares = lane_sum(
        te.compute(shape, square, name="squares", attrs={KEEP: True}), 2, aligned=False, name="row_squares"
    )
    factor = by_row(
        lambda n, c: const(1.0) / tirx.sqrt(squares(n, c, 0) / count + const(epsilon)) * gamma(c), "row_factor"
    )
    shift = by_row(lambda n, c: beta(c) - tir.fence(mean(n, c) * factor(n, c)), "row_shift")
    return te.compute(shape, lambda n, c, i: tir.fence(x(n, c, i) * factor(n, c)) + shift(n, c), name="lane_norm")


def _flat(indices: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The position of an element in a tensor of this shape."""
    position = tirx.const(0, "int32")
    for index, size in zip(indices, shape, strict=True):
        position = position * size + index
    return position


@stages("nn.softmax")
def _softmax(constants: Constants, shape: tuple[int, ...], data: Operand, *, axis: int) -> te.Tensor:
    return softmax(data.tensor, axis)


@stages("qnn.lane_softmax")
def _lane_softmax(constants: Constants, shape: tuple[int, ...], data: Operand) -> te.Tensor:
    return lane_softmax(data.tensor)


@stages("qnn.wide_sum")
def _wide_sum(constants: Constants, shape: tuple[int, ...], data: Operand) -> te.Tensor:
    return wide_sum(data.tensor)


@stages("nn.layer_norm")
def _layer_norm(
    constants: Constants, shape: tuple[int, ...], data: Operand, gamma: Operand, beta: Operand, *, epsilon: float
) -> te.Tensor:
    return layer_norm(data.tensor, _tensor(constants, gamma), _tensor(constants, beta), epsilon)


@stages("qnn.welford_norm")
def _welford_norm(
    constants: Constants, shape: tuple[int, ...], data: Operand, gamma: Operand, beta: Operand, *, epsilon: float
) -> te.Tensor:
    return welford_norm(data.tensor, _tensor(constants, gamma), _tensor(constants, beta), epsilon)


@stages("qnn.rms_norm")
def _rms_norm(
    constants: Constants, shape: tuple[int, ...], data: Operand, gamma: Operand, *, epsilon: float, in_order: bool
) -> te.Tensor:
    return rms_norm(data.tensor, _tensor(constants, gamma), epsilon, in_order)


@stages("qnn.lane_sum")
def _lane_sum(constants: Constants, shape: tuple[int, ...], data: Operand, *, aligned: bool) -> te.Tensor:
    return lane_sum(data.tensor, 2 if aligned else 1, aligned)


@stages("qnn.lane_norm")
def _lane_norm(
    constants: Constants, shape: tuple[int, ...], data: Operand, gamma: Operand, beta: Operand, *, epsilon: float
) -> te.Tensor:
    return lane_norm(data.tensor, _tensor(constants, gamma), _tensor(constants, beta), epsilon)


def _tensor(constants: Constants, operand: Operand) -> te.Tensor:
    return operand.tensor if operand.tensor is not None else constants.add(operand.value)
