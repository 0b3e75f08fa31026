"""`gemmlowp.py` as TIR expressions over int64, equal bit for bit, for computations with a few numbers per row of data.

Newton steps and polynomials use a value several times, which would multiply the size of a single expression, and TVM
simplifies nested let-bindings in exponential time. So they take a `RowStages`, which gives every intermediate result
its own stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm_ffi
from tvm import te, tirx

from . import gemmlowp, tir
from .annotations import KEEP

Expr = Any


Bind = Callable[[Expr], Expr]


class RowStages:
    """x = bind(expr) turns `expr` into a TE stage over `shape` and returns its element at the current row.

    expr is an expression in elements at `indices`.
    """

    def __init__(self, shape: Sequence[int], name: str) -> None:
        self.shape = tuple(shape)
        self.indices = [tirx.Var(f"r{axis}", "int64") for axis in range(len(self.shape))]
        self._name = name
        self._count = 0

    def __call__(self, value: Expr) -> Expr:
        if isinstance(value, (tirx.Var, tirx.IntImm)):
            return value
        return self.stage(value)(*self.indices)

    def stage(self, value: Expr) -> te.Tensor:
        """The expression as a stage."""
        self._count += 1
        return te.compute(
            self.shape,
            lambda *i: substitute(value, dict(zip(self.indices, i, strict=True))),
            name=f"{self._name}{self._count}",
            attrs={KEEP: True},
        )


def substitute(expr: Expr, replacements: dict[tirx.Var, Expr]) -> Expr:
    """`expr` with variables replaced."""

    def swap(variable: tirx.Var) -> Expr:
        return next((new for old, new in replacements.items() if variable.same_as(old)), variable)

    return tvm_ffi.structural_map(expr, (tirx.Var, swap))


def i64(value: int) -> Expr:
    """An int64 constant."""
    return tirx.const(value, "int64")


def multiply(x: Expr, y: Expr) -> Expr:
    """SaturatingRoundingDoublingHighMul."""
    return tirx.min((x * y + i64(1 << 30)) >> i64(31), i64(gemmlowp.INT32_MAX))


def rescale(x: Expr, exponent: int, bind: Bind) -> Expr:
    """x · 2^exponent: left shifts saturate, right shifts round midpoints away from zero."""
    if exponent <= 0:
        return tir.rounding_divide_by_pot(bind(x), i64(-exponent)) if exponent else x
    return tirx.max(tirx.min(x << i64(exponent), i64(gemmlowp.INT32_MAX)), i64(gemmlowp.INT32_MIN))


def half_sum(x: Expr, y: Expr, bind: Bind) -> Expr:
    """(x + y) / 2, midpoints away from zero."""
    return rescale(x + y, -1, bind)


def leading_zeros(x: Expr) -> Expr:
    """Zero bits above the highest set bit of int64 values in 1 … 2³¹ − 1, counted in 32 bits."""
    return tirx.clz(x.astype("int32")).astype("int64")


def reciprocal_of_one_plus(x: Expr, bind: Bind) -> Expr:
    """1 / (1 + x) in Q0 for 0 ≤ x < 1 in Q0."""
    half_denominator = bind(half_sum(x, i64(gemmlowp.ONE), bind))
    y = bind(i64(1515870810) + multiply(half_denominator, i64(-1010580540)))
    for _ in range(3):
        error = bind(i64(1 << 29) - multiply(half_denominator, y))
        y = bind(y + rescale(multiply(y, error), 2, bind))
    return rescale(y, 1, bind)


def reciprocal(x: Expr, integer_bits: int, bind: Bind) -> tuple[Expr, Expr]:
    """(r, bits) with 1/x = r / 2³¹ · 2^−bits for x ≥ 1 in Q(integer_bits)."""
    headroom = bind(leading_zeros(x))
    shifted = bind(((x << headroom) & i64(0xFFFFFFFF)) - i64(1 << 31))
    return reciprocal_of_one_plus(shifted, bind), i64(integer_bits) - headroom


def inverse_sqrt(x: Expr, bind: Bind) -> tuple[Expr, Expr]:
    """(m, shift) with 1/√x = m / 2³¹ · 2^shift, for 0 ≤ x < 2³¹."""
    large = x >= i64(1 << 29)
    value = bind(tirx.max(tirx.Select(large, x >> i64(2), x), i64(2)))
    pairs = bind(((leading_zeros(value) - i64(1)) >> i64(1)) - i64(1))
    right_shift = bind(i64(11) + large.astype("int64") - pairs)
    half = bind(rescale(bind((value << (pairs * i64(2))) >> i64(1)), -1, bind))
    root = i64(1 << 28)
    for _ in range(5):
        cube = bind(rescale(multiply(bind(multiply(root, root)), root), 6, bind))
        product = multiply(i64((1 << 28) + (1 << 27)), root) - multiply(half, cube)
        root = bind(rescale(product, 3, bind))
    result = bind(multiply(root, i64(1518500250)))
    result = result << tirx.max(-right_shift, i64(0))
    trivial = x <= i64(1)
    multiplier = tirx.Select(trivial, i64(gemmlowp.INT32_MAX), result)
    return multiplier, tirx.Select(trivial, i64(0), -tirx.max(right_shift, i64(0)))


def log(x: Expr, integer_bits: int, out_integer_bits: int, bind: Bind) -> Expr:
    """ln x in Q(out_integer_bits) for x ≥ 1 in Q(integer_bits)."""
    accumulator_bits = out_integer_bits + 1
    ln_2, root_half, fourth_root_half, quarter = (i64(v) for v in (1488522236, 1518500250, 1805811301, 536870912))
    alpha_n, alpha_d, alpha_i, alpha_f = (i64(v) for v in (117049297, 127690142, 1057819769, 638450708))
    shifted_quarter = bind(rescale(quarter, -accumulator_bits, bind))
    unit = 31 - accumulator_bits

    headroom = bind(leading_zeros(x) - i64(1))
    r_a = rescale(multiply(x << headroom, root_half), 1, bind)
    k_a = rescale(i64(integer_bits - 1) - headroom, unit, bind) + shifted_quarter
    headroom = bind(leading_zeros(multiply(x, root_half)) - i64(1))
    r_b = tirx.min(x << headroom, i64(gemmlowp.INT32_MAX))
    k_b = rescale(i64(integer_bits) - headroom, unit, bind) - shifted_quarter
    r, k = bind(tirx.min(r_a, r_b)), bind(tirx.max(k_a, k_b))

    p = bind(half_sum(r, fourth_root_half, bind))
    q = bind(i64(2) * (r - fourth_root_half))
    q2 = bind(multiply(q, q))
    numerator = bind(multiply(q, r) + multiply(multiply(q, q2), alpha_n))
    denominator = bind(multiply(p, alpha_i + q + multiply(alpha_d, q2)) + multiply(alpha_f, q))
    inverse = bind(reciprocal_of_one_plus(denominator, bind))
    quotient = bind(multiply(rescale(numerator, -accumulator_bits, bind), inverse))
    return rescale(multiply(k, ln_2) + quotient, 1, bind)
