"""qnn.lane_sum, qnn.wide_sum, qnn.lane_norm, qnn.rms_norm, qnn.welford_norm: against float64, and their type rules."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError

from .helpers import evaluate, var


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 7, 8, 13, 50])
def test_sums(rng, aligned, length):
    data = rng.standard_normal((5, 3, length)).astype(np.float32)
    expected = data.astype(np.float64).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(evaluate(op.lane_sum(data, aligned)), expected, rtol=1e-5, atol=1e-5)


def test_the_order_of_a_sum():
    """The second row begins one element in front of an aligned one, which is added to the four behind it."""
    data = np.ones((2, 7), np.float32)
    data[1, 0] = 2.0**24
    assert evaluate(op.lane_sum(data, True)).tolist() == [[7.0], [2.0**24 + 4]]


@pytest.mark.parametrize("length", [1, 15, 16, 31, 32, 47, 48, 87, 128])
def test_wide_sums(rng, length):
    data = rng.standard_normal((5, 3, length)).astype(np.float32)
    expected = data.astype(np.float64).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(evaluate(op.wide_sum(data)), expected, rtol=1e-5, atol=1e-5)


def test_the_order_of_a_wide_sum():
    """Ones that are added to a partial sum of 2²⁴ one by one are lost."""
    data = np.ones((2, 49), np.float32)
    data[:, 0], data[1, 32] = 2.0**24, 2.0**24
    assert evaluate(op.wide_sum(data)).tolist() == [[2.0**24 + 46], [2.0**25 + 44]]


def test_norm(rng):
    data = (rng.standard_normal((5, 33)) + 2).astype(np.float32)
    gamma, beta = rng.standard_normal((2, 33)).astype(np.float32)
    wide = data.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * gamma + beta
    np.testing.assert_allclose(evaluate(op.welford_norm(data, gamma, beta, 1e-5)), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("length", [1, 7, 20, 64])
def test_norm_by_squares(rng, length, in_order):
    data, gamma = rng.standard_normal((5, length)).astype(np.float32), rng.standard_normal(length).astype(np.float32)
    wide = data.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * gamma
    np.testing.assert_allclose(evaluate(op.rms_norm(data, gamma, 1e-5, in_order)), expected, rtol=1e-6)


def test_the_order_of_squares():
    """Ones are lost beside 2²⁴ where they are added one by one, and not in lanes of their own."""
    data, gamma = np.ones((1, 16), np.float32), np.ones(16, np.float32)
    data[0, 0] = 2.0**12
    means = {in_order: 1 / evaluate(op.rms_norm(data, gamma, 0.0, in_order))[0, 1] ** 2 for in_order in (False, True)}
    np.testing.assert_allclose([means[True] * 16 - 2.0**24, means[False] * 16 - 2.0**24], [0, 14], atol=4)


@pytest.mark.parametrize("length", [1, 7, 8, 50])
def test_norm_of_channels(rng, length):
    data = (rng.standard_normal((2, 3, length)) + 2).astype(np.float32)
    gamma, beta = rng.standard_normal((2, 3)).astype(np.float32)
    wide = data.astype(np.float64)
    unit = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
    expected = unit * gamma[:, None] + beta[:, None]
    np.testing.assert_allclose(evaluate(op.lane_norm(data, gamma, beta, 1e-5)), expected, rtol=1e-4, atol=1e-5)


def test_types():
    row = var("r", (3,), "float32")
    with pytest.raises(ShapeError, match="last axis"):
        op.lane_sum(var("x", (), "float32"))
    with pytest.raises(ShapeError, match="last axis"):
        op.wide_sum(var("x", (2, 0), "float32"))
    with pytest.raises(ShapeError, match="at least two elements"):
        op.welford_norm(var("x", (2, 1), "float32"), row, row)
    with pytest.raises(ShapeError, match="gamma must have shape"):
        op.welford_norm(var("x", (2, 4), "float32"), row, row)
    with pytest.raises(ShapeError, match="epsilon"):
        op.welford_norm(var("x", (2, 3), "float32"), row, row, -1.0)
    with pytest.raises(ShapeError, match="last axis to normalize"):
        op.rms_norm(var("x", (), "float32"), row)
    with pytest.raises(ShapeError, match="gamma must have shape"):
        op.rms_norm(var("x", (2, 4), "float32"), row)
    with pytest.raises(ShapeError, match="N, C, L"):
        op.lane_norm(var("x", (2, 3), "float32"), row, row)
    with pytest.raises(ShapeError, match="gamma must have shape"):
        op.lane_norm(var("x", (2, 4, 5), "float32"), row, row)
    with pytest.raises(ShapeError, match="epsilon"):
        op.lane_norm(var("x", (2, 3, 5), "float32"), row, row, -1.0)
