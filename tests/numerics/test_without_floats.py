"""Requantization with integers equals TFLite's in float64 for every int32, as far as it says that it does."""

import numpy as np
import pytest

from qnn_ext.numerics.without_floats import equal_fixed_point
from qnn_ext.qparams import dtype_range

INT32 = np.iinfo(np.int32)


def in_floats(x, ratio, zero_point, dtype):
    """saturate(round(x · r) + z), midpoints away from zero."""
    real = x * ratio
    return np.clip(np.trunc(real + np.copysign(np.nextafter(0.5, 0), real)) + zero_point, *dtype_range(dtype))


def in_integers(x, m, s, zero_point, dtype):
    return np.clip(((x * int(m) + (1 << (int(s) - 1))) >> int(s)) + zero_point, *dtype_range(dtype))


def values(rng, ratio, zero_point, dtype):
    """Random values, the extremes, and some around all places where the result grows."""
    low, high = dtype_range(dtype)
    places = np.floor((np.arange(low, high + 1) - zero_point - 0.5) / ratio)
    near = (np.clip(places, INT32.min + 4, INT32.max - 4)[:, None] + np.arange(-3, 4)).ravel()
    drawn = rng.integers(INT32.min, INT32.max, 10_000)
    return np.concatenate([near.astype(np.int64), drawn, [0, 1, -1, INT32.min, INT32.max]])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_equal_for_every_value(dtype, rng):
    found = 0
    for ratio in 2.0 ** rng.uniform(-24, 2, 200):
        zero_point = int(rng.integers(*dtype_range(dtype)))
        numbers = equal_fixed_point(np.array([ratio]), zero_point, dtype)
        if numbers is None:
            continue
        found += 1
        (m,), (s,) = numbers
        x = values(rng, ratio, zero_point, dtype)
        np.testing.assert_array_equal(in_integers(x, m, s, zero_point, dtype), in_floats(x, ratio, zero_point, dtype))
    assert found > (150 if dtype != "int16" else 0)


def test_channels_keep_their_shape():
    m, s = equal_fixed_point(np.array([[np.e / 100], [np.pi / 8]]), -3, "int8")
    assert m.shape == s.shape == (2, 1) and m.dtype == s.dtype == np.int32


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0])
def test_midpoints_are_away_from_zero(ratio):
    """A multiplier a little larger takes those below zero further down, and those above zero no further up."""
    (m,), (s,) = equal_fixed_point(np.array([ratio]), 0, "int8")
    x = np.arange(-600, 600)
    np.testing.assert_array_equal(in_integers(x, m, s, 0, "int8"), in_floats(x, ratio, 0, "int8"))


@pytest.mark.parametrize("ratio", [0.0, -0.5, float(1 << 20), float("inf"), float("nan")])
def test_what_has_no_such_numbers(ratio):
    assert equal_fixed_point(np.array([0.5, ratio]), 0, "int8") is None
