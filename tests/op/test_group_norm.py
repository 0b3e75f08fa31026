"""qnn.group_norm and qnn.instance_norm: against float64, where the channels may be, and what they refuse."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError

from .helpers import evaluate, random_integers, var

SCALE, EPSILON = np.float32(0.013), 1e-5
GAMMA, BETA = np.float32([0.5, -2, 1, 3, 0, 1.5]), np.float32([0, 1, -1, 0.25, 2, -0.5])


def in_float64(data, zero_point, groups):
    """The real result for (N, C, …) data."""
    x = (data.astype(np.float64) - zero_point) * float(SCALE)
    rows = x.reshape(len(x), groups, -1)
    unit = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + EPSILON)
    column = (-1, *(1,) * (data.ndim - 2))
    return unit.reshape(data.shape) * GAMMA.reshape(column) + BETA.reshape(column)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", [(3, 6, 7, 5), (2, 6, 1, 3, 5), (2, 6, 11), (5, 6)])
@pytest.mark.parametrize("dtype, zero_point", [("int8", -128), ("int8", 127), ("uint8", 255), ("int16", 9)])
def test_rounded_from_float64(dtype, zero_point, shape, groups, rng):
    """The nearest integer but for midpoints, which float32 may put on the other side."""
    data = random_integers(rng, shape, dtype)
    data[0] = zero_point  # a group of equal values is β
    scale, zero = np.float32(0.041), 7
    found = evaluate(op.group_norm(data, GAMMA, BETA, SCALE, zero_point, scale, zero, groups, out_dtype="uint8"))
    exact = np.clip(in_float64(data, zero_point, groups) / float(scale) + zero, 0, 255)
    assert found.dtype == np.uint8
    np.testing.assert_allclose(found, exact, atol=0.5 + 1e-4)


@pytest.mark.parametrize("shape", [(3, 6, 7, 5), (2, 6, 11)])
def test_an_instance_is_a_group_of_one_channel(shape, rng):
    data = random_integers(rng, shape, "int8")
    rest = (GAMMA, BETA, SCALE, 3, 0.041, -4)
    one = evaluate(op.instance_norm(data, *rest, epsilon=1e-3, reciprocal=True))
    np.testing.assert_array_equal(one, evaluate(op.group_norm(data, *rest, 6, epsilon=1e-3, reciprocal=True)))


@pytest.mark.parametrize("axis", [1, 2, 3, -1])
def test_axis(axis, rng):
    """Wherever the channels are, the result is that of channels first."""
    data, rest = random_integers(rng, (2, 6, 4, 5), "uint8"), (GAMMA, BETA, SCALE, 130, 0.041, -4)
    moved = np.moveaxis(data, 1, axis)
    expected = evaluate(op.group_norm(data, *rest, 3))
    np.testing.assert_array_equal(evaluate(op.group_norm(moved, *rest, 3, axis)), np.moveaxis(expected, 1, axis))


def test_reciprocal(rng):
    """It differs from a division at midpoints, as it does for quantize."""
    data = random_integers(rng, (8, 6, 40, 40), "int8")
    rest = (np.ones(6, np.float32), np.zeros(6, np.float32), SCALE, 3, np.float32(1.3e-4), -4)
    divided, multiplied = (
        evaluate(op.instance_norm(data, *rest, reciprocal=flag, out_dtype="int16")) for flag in (False, True)
    )
    difference = np.abs(divided.astype(np.int32) - multiplied)
    assert difference.max() == 1 and difference.mean() < 0.01


@pytest.mark.parametrize(
    "message, data, gamma, groups, axis",
    [
        ("6 channels cannot be divided into num_groups=4", ((2, 6, 5), "int8"), 6, 4, 1),
        ("6 channels cannot be divided into num_groups=0", ((2, 6, 5), "int8"), 6, 0, 1),
        ("gamma must have one value for each of 6 channels", ((2, 6, 5), "int8"), 5, 3, 1),
        ("data must be int8 or uint8 or int16, found int32", ((2, 6, 5), "int32"), 6, 3, 1),
        ("must have a batch, and channels along another axis", ((6,), "int8"), 6, 3, 0),
        ("must have a batch, and channels along another axis", ((6, 2, 5), "int8"), 6, 3, 0),
        ("axis 3 is out of range", ((2, 6, 5), "int8"), 6, 3, 3),
        ("does not fit into int64", ((2, 6, 1 << 17), "int16"), 6, 3, 1),
        ("last axis", ((2, 6, 0), "int8"), 6, 3, 1),
    ],
)
def test_type_rule(message, data, gamma, groups, axis):
    vector = np.ones(gamma, np.float32)
    with pytest.raises(ShapeError, match=message):
        op.group_norm(var("x", *data), vector, vector, 0.5, 0, 0.5, 0, groups, axis)
    if "num_groups" not in message:
        with pytest.raises(ShapeError, match=message):
            op.instance_norm(var("x", *data), vector, vector, 0.5, 0, 0.5, 0, axis)


def test_parameters_are_floats():
    with pytest.raises(ShapeError, match="beta must be float32, found float64"):
        op.group_norm(var("x", (2, 6, 5), "int8"), GAMMA, BETA.astype(np.float64), 0.5, 0, 0.5, 0, 3)
    with pytest.raises(ShapeError, match="epsilon"):
        op.instance_norm(var("x", (2, 6, 5), "int8"), GAMMA, BETA, 0.5, 0, 0.5, 0, epsilon=-1.0)
    with pytest.raises(ShapeError, match="out_dtype"):
        op.instance_norm(var("x", (2, 6, 5), "int8"), GAMMA, BETA, 0.5, 0, 0.5, 0, out_dtype="int32")
