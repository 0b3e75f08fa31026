"""qnn.piecewise: the formula, its ends, and what it refuses."""

from fractions import Fraction

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError
from tests.cases.segments import ARGUMENTS, COEFFICIENTS, FACTOR, HIGH, LOW, OFFSET, arguments

from .helpers import evaluate, var
from .test_fma import nearest_float32


def once(a, b, c) -> np.float32:
    """a·b + c, rounded once."""
    return nearest_float32(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def by_hand(x: np.float32) -> np.float32:
    x = LOW if np.isnan(x) else min(max(x, LOW), HIGH)
    index = min(round(float(once(x, FACTOR, OFFSET))), 15)
    y = COEFFICIENTS[3, index]
    for degree in (2, 1, 0):
        y = once(y, x, COEFFICIENTS[degree, index])
    return y


def test_formula(rng):
    x = arguments(rng, (4, 50))
    expected = np.float32([by_hand(value) for value in x.reshape(-1)]).reshape(x.shape)
    np.testing.assert_array_equal(evaluate(op.piecewise(x, COEFFICIENTS, *ARGUMENTS)), expected)


def test_refuses():
    x = var("x", (2,), "float32")
    with pytest.raises(ShapeError, match=r"coefficients must have shape \(4, 16\), found \(4, 15\)"):
        op.piecewise(x, COEFFICIENTS[:, :15], *ARGUMENTS)
    with pytest.raises(ShapeError, match="factor must be a scalar"):
        op.piecewise(x, COEFFICIENTS, LOW, HIGH, np.float32([1, 2]), OFFSET)
    with pytest.raises(ShapeError, match="data must be float32"):
        op.piecewise(var("x", (2,), "int8"), COEFFICIENTS, *ARGUMENTS)
    with pytest.raises(ShapeError, match="must be finite constants"):
        op.piecewise(x, COEFFICIENTS, LOW, np.float32(np.inf), FACTOR, OFFSET)
    with pytest.raises(ShapeError, match="must be at most high"):
        op.piecewise(x, COEFFICIENTS, HIGH, LOW, FACTOR, OFFSET)
    with pytest.raises(ShapeError, match=r"the first segment, -1\.452 before rounding, must be 0"):
        op.piecewise(x, COEFFICIENTS, LOW, HIGH, FACTOR, np.float32(3))
