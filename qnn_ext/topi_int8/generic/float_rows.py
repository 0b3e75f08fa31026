"""TE computes of float softmax and of layer normalization along the last axis, the twins of numerics/float_rows.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te, tirx

from ...numerics import elementary, mlas, tir
from ...numerics.annotations import KEEP
from ...numerics.float_rows import LANES, SQUARES, rounded_squares
from .elementwise import Constants, Expr, Operand
from .stages import stages

Element = Callable[..., Expr]
Combine = Callable[[Expr, Expr], Expr]


def _plus_square(total: Expr, x: Expr) -> Expr:
    return tir.shared(x, lambda x: tir.fused_multiply_add(x, x, total))


def _plus_rounded_square(total: Expr, x: Expr) -> Expr:
    return total + tir.shared(x, lambda x: tir.fence(x * x))


_SUM_OF_SQUARES = te.comm_reducer(_plus_square, lambda dtype: tirx.const(0, dtype), name="sum_of_squares")


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
            terms = pairs(terms[:half], terms[half:])
            while len(terms) > 1:
                terms = pairs(terms[::2], terms[1::2])
            return terms[0]

        def pairs(first: list, second: list) -> list:
            return [low if high is None else combine(low, high) for low, high in zip(first, second, strict=True)]

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


@stages("nn.softmax")
def _softmax(constants: Constants, shape: tuple[int, ...], data: Operand, *, axis: int) -> te.Tensor:
    return softmax(data.tensor, axis)


@stages("nn.layer_norm")
def _layer_norm(
    constants: Constants, shape: tuple[int, ...], data: Operand, gamma: Operand, beta: Operand, *, epsilon: float
) -> te.Tensor:
    scale, shift = (
        operand.tensor if operand.tensor is not None else constants.add(operand.value) for operand in (gamma, beta)
    )
    return layer_norm(data.tensor, scale, shift, epsilon)
