"""TE computes of float softmax and layer normalization along the last axis, the twins of numerics/float_rows.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import te, tirx

from ...numerics import elementary, tir
from ...numerics.float_rows import LANES
from .elementwise import Constants, Expr, Operand
from .stages import stages

Element = Callable[..., Expr]
Combine = Callable[[Expr, Expr], Expr]


def _lanes_of(
    element: Element,
    shape: Sequence[int],
    combine: Callable[[Expr, Expr], Expr],
    reduce: Callable[..., Expr],
    name: str,
) -> te.Tensor:
    """combine over the rows of element(*indices), one number per row: sixteen side by side, then halves with halves."""
    *outer, length = shape
    whole, rest = divmod(length, LANES)
    k = te.reduce_axis((0, whole), "k")
    lanes = None
    if whole > 0:
        lanes = te.compute(
            (*outer, LANES), lambda *i: reduce(element(*i[:-1], k * LANES + i[-1]), axis=k), name=f"{name}_lanes"
        )

    def row(*i: Expr) -> Expr:
        terms = []
        for lane in range(LANES):
            parts = [lanes(*i, lane)] if lanes is not None else []
            parts += [element(*i, whole * LANES + lane)] if lane < rest else []
            terms.append(parts[0] if len(parts) == 1 else combine(*parts) if parts else None)
        while len(terms) > 1:
            half = len(terms) // 2
            pairs = zip(terms[:half], terms[half:], strict=True)
            terms = [low if high is None else combine(low, high) for low, high in pairs]
        return terms[0]

    return te.compute(tuple(outer), row, name=name, attrs={tir.KEEP: True})


def row_sum(element: Element, shape: Sequence[int], name: str) -> te.Tensor:
    """Σ of float32 elements, without the axis."""
    return _lanes_of(element, shape, lambda a, b: a + b, te.sum, name)


def row_max(element: Element, shape: Sequence[int], name: str) -> te.Tensor:
    """The largest of the elements, without the axis."""
    return _lanes_of(element, shape, tirx.max, te.max, name)


def softmax(x: te.Tensor) -> te.Tensor:
    """e^(x − max) / Σ e^(x − max)."""
    shape = [int(size) for size in x.shape]
    high = row_max(x, shape, "row_max")
    exps = te.compute(shape, lambda *i: elementary.exp(x(*i) - high(*i[:-1]), elementary.TIR), name="exps")
    total = row_sum(exps, shape, "row_total")
    return te.compute(shape, lambda *i: exps(*i) / total(*i[:-1]), name="softmax")


def layer_norm(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor, epsilon: float) -> te.Tensor:
    """fma((x − mean) / √(variance + ε), γ, β), the variance from the deviations."""
    shape = [int(size) for size in x.shape]
    const = elementary.TIR.const
    count = const(shape[-1])
    total = row_sum(x, shape, "row_total")
    mean = te.compute(shape[:-1], lambda *i: total(*i) / count, name="row_mean", attrs={tir.KEEP: True})

    def deviation(*i: Expr) -> Expr:
        return x(*i) - mean(*i[:-1])

    squares = row_sum(lambda *i: tir.fence(tir.shared(deviation(*i), lambda d: d * d)), shape, "row_squares")
    inverse = te.compute(
        shape[:-1],
        lambda *i: const(1.0) / tirx.sqrt(squares(*i) / count + const(epsilon)),
        name="row_inverse",
        attrs={tir.KEEP: True},
    )
    return te.compute(
        shape,
        lambda *i: tir.fused_multiply_add(deviation(*i) * inverse(*i[:-1]), gamma(i[-1]), beta(i[-1])),
        name="layer_norm",
    )


@stages("nn.softmax")
def _softmax(constants: Constants, shape: tuple[int, ...], data: Operand) -> te.Tensor:
    return softmax(data.tensor)


@stages("nn.layer_norm")
def _layer_norm(
    constants: Constants, shape: tuple[int, ...], data: Operand, gamma: Operand, beta: Operand, *, epsilon: float
) -> te.Tensor:
    scale, shift = (
        operand.tensor if operand.tensor is not None else constants.add(operand.value) for operand in (gamma, beta)
    )
    return layer_norm(data.tensor, scale, shift, epsilon)
