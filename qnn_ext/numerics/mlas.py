"""Functions that ONNX Runtime approximates in its own way, on NumPy arrays, for tables."""

from __future__ import annotations

import numpy as np

from .reference import Array, fused_multiply_add

_BOUND = np.float32(18)
_NUMERATOR = (
    4.37031012579801e-11,
    1.15627324459942e-07,
    6.08574864600143e-05,
    8.51377133304701e-03,
    2.48287947061529e-01,
)
_DENOMINATOR = (
    6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03, 1.16817656904453e-01,
    9.93151921023180e-01,
)  # fmt: skip


def logistic(x: Array) -> Array:
    """1 / (1 + e^−x) of float32 as x·p(x²) / q(x²) + ½ for |x| ≤ 18, each step of the polynomials rounded once: the
    bits of MlasComputeLogistic on CPUs with fused multiply-add."""
    x = np.clip(x, -_BOUND, _BOUND)
    square = x * x
    quotient = _polynomial(_NUMERATOR, square) * x / _polynomial(_DENOMINATOR, square)
    return np.clip(quotient + np.float32(0.5), np.float32(0), np.float32(1))


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """By Horner's rule, the highest power first."""
    first, *others = (np.full_like(x, coefficient) for coefficient in coefficients)
    for coefficient in others:
        first = fused_multiply_add(x, first, coefficient)
    return first
