"""qnn.qlinear_add and qnn.qlinear_mul: known values, and the last bit where they differ from qnn.add and qnn.mul."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError

from .helpers import evaluate, random_integers

F32 = np.float32


def test_add_rounds_each_fused_step_once(rng):
    left, right = random_integers(rng, (7, 200), "int8"), random_integers(rng, (200,), "int8")
    factors, offset = F32([0.7391, 0.2517]), F32(-3.0625)
    wide = [x.astype(np.float64) for x in (left, right)]  # a product of 8 and 24 bits and a sum of such are exact
    inner = (wide[1] * factors[1] + offset).astype(F32)
    total = (wide[0] * factors[0] + inner).astype(F32)
    expected = np.clip(np.rint(total), -128, 127)
    call = op.qlinear_add(left, right, 0, 0, factors[0].item(), factors[1].item(), offset.item(), 0)
    np.testing.assert_array_equal(evaluate(call), expected)


def test_zero_points_shift_operands_and_result(rng):
    left, right = random_integers(rng, (3, 5), "uint8"), random_integers(rng, (3, 1), "uint8")
    plain = op.qlinear_add(
        (left.astype(int) - 128).astype(np.int8), (right.astype(int) - 128).astype(np.int8), 0, 0, 0.5, 0.25, 1.0, 0
    )
    moved = op.qlinear_add(left, right, 128, 128, 0.5, 0.25, 1.0, 128, out_dtype="uint8")
    np.testing.assert_array_equal(evaluate(moved).astype(int) - 128, evaluate(plain))


@pytest.mark.parametrize("offset,expected", [(0.0, 2), (1.0, 4)])
def test_mul_adds_the_offset_before_rounding(offset, expected):
    """2.5 rounds to 2, but 2.5 + 1 to 4."""
    call = op.qlinear_mul(np.int8([5]), np.int8([1]), 0, 0, 0.5, offset, 0)
    assert evaluate(call).tolist() == [expected]


def test_saturates():
    data = np.int8([-128, 127])
    assert evaluate(op.qlinear_mul(data, data, 0, 0, 1.0, 0.0, 0)).tolist() == [127, 127]
    assert evaluate(op.qlinear_add(data, data, 0, 0, 9.0, 9.0, 0.0, 0)).tolist() == [-128, 127]


def test_type_rule_names_the_argument():
    data = np.zeros((2, 3), np.int8)
    with pytest.raises(ShapeError, match="rhs"):
        op.qlinear_add(data, np.zeros((4,), np.int8), 0, 0, 1.0, 1.0, 0.0, 0)
    with pytest.raises(ShapeError, match="lhs must be"):
        op.qlinear_mul(data.astype(np.float32), data, 0, 0, 1.0, 0.0, 0)
    with pytest.raises(ShapeError, match="factor"):
        op.qlinear_mul(data, data, 0, 0, np.ones(3, np.float32), 0.0, 0)


def test_average_pool_adds_the_zero_point_before_rounding():
    data = np.int8([[[0, 3], [1, 2]]])  # (N, L, C): averages 0.5 and 2.5
    for zero, expected in ((0, [0, 2]), (1, [2, 4])):
        call = op.qlinear_avg_pool(data, 1.0, 0, 1.0, zero, (2,), (1,), (0, 0))
        assert evaluate(call).tolist() == [[expected]]


@pytest.mark.parametrize("include,expected", [(False, [4, 8]), (True, [4, 4])])
def test_average_pool_counts_the_cells_of_the_window(include, expected):
    data = np.uint8([[[4], [4], [8]]])
    call = op.qlinear_avg_pool(data, 1.0, 0, 1.0, 0, (2,), (2,), (0, 0), True, include, "uint8")
    assert evaluate(call).ravel().tolist() == expected
