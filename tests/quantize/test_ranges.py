"""Ranges and the QParams that follow: formulas, zero, powers of two, dead tensors, values that are not finite."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qnn_ext.errors import QuantizationError, QuantizationWarning
from qnn_ext.quantize import Range, integer_range, qparams_of


@pytest.mark.parametrize(
    "dtype,bits,symmetric,expected",
    [
        ("int8", 8, True, (-127, 127)),
        ("int8", 8, False, (-128, 127)),
        ("uint8", 8, False, (0, 255)),
        ("uint8", 8, True, (1, 255)),
        ("int8", 4, True, (-7, 7)),
        ("int8", 4, False, (-8, 7)),
        ("uint8", 4, False, (0, 15)),
    ],
)
def test_integers_used(dtype, bits, symmetric, expected):
    assert integer_range(dtype, bits, symmetric) == expected


@pytest.mark.parametrize(
    "found,arguments,scale,zero_point",
    [
        (Range(-2.54, 1.0), {}, 0.02, 0),
        (Range(0.0, 2.55), {"dtype": "uint8", "symmetric": False}, 0.01, 0),
        (Range(-0.55, 2.0), {"dtype": "uint8", "symmetric": False}, 0.01, 55),
        (Range(-0.55, 2.0), {"dtype": "int8", "symmetric": False}, 0.01, -73),
        (Range(1.0, 2.55), {"dtype": "uint8", "symmetric": False}, 0.01, 0),  # zero belongs to every range
        (Range(-2.55, -1.0), {"dtype": "uint8", "symmetric": False}, 0.01, 255),
        (Range(-1.27, 1.0), {"dtype": "uint8", "symmetric": True}, 0.01, 128),
        (Range(-0.7, 0.1), {"bits": 4}, 0.1, 0),
        (Range(-8.0, 8.0, "global_scale"), {}, 1 / 16, 0),
        (Range(-8.0, 8.0, "global_scale"), {"dtype": "uint8", "symmetric": False}, 1 / 16, 128),
        (Range(-0.5, 0.5, "power2"), {}, 1 / 256, 0),
        (Range(-3.0, 5.0), {"power_of_two": True}, 1 / 16, 0),
        (Range(-4.0, 4.0), {"power_of_two": True}, 1 / 32, 0),
        (Range(-4.01, 4.0), {"power_of_two": True}, 1 / 16, 0),
    ],
)
def test_qparams(found, arguments, scale, zero_point):
    qparams = qparams_of(found, **arguments)
    assert qparams.scale == pytest.approx(scale, rel=1e-6)
    assert qparams.zero_point == zero_point


def test_per_channel():
    array = np.float32([[1, -2, 0.5], [-0.25, 1, 0.5]])
    found = Range.of(array, axis=0)
    qparams = qparams_of(found, axis=0)
    np.testing.assert_allclose(qparams.scale, np.float32([2, 1]) / 127, rtol=1e-7)
    assert qparams.axis == 0
    assert Range.of(array) == Range(-2.0, 1.0, "minmax")
    with pytest.raises(QuantizationError, match="w: the range has 2 channels"):
        qparams_of(found, site="w")


@given(
    low=st.floats(-1e6, 1e6),
    width=st.floats(1e-6, 1e6),
    bits=st.integers(2, 8),
    dtype=st.sampled_from(["int8", "uint8"]),
    symmetric=st.booleans(),
)
def test_zero_is_exact_and_the_range_is_covered(low, width, bits, dtype, symmetric):
    high = low + width
    qparams = qparams_of(Range(low, high), dtype, bits, symmetric)
    q_low, q_high = integer_range(dtype, bits, symmetric)
    assert q_low <= qparams.zero_point <= q_high
    scale, zero = float(qparams.scale), int(qparams.zero_point)
    assert scale * (q_low - zero) <= min(low, 0.0) + scale * 0.501
    assert scale * (q_high - zero) >= max(high, 0.0) - scale * 0.501


def test_a_tensor_that_is_zero():
    with pytest.warns(QuantizationWarning, match="relu_3: all values are zero"):
        qparams = qparams_of(Range(0.0, 0.0), site="relu_3")
    assert qparams.scale == 1 / 128


def test_a_constant_tensor_needs_no_fallback(recwarn):
    assert qparams_of(Range(2.55, 2.55), "uint8", symmetric=False).scale == pytest.approx(0.01)
    assert not recwarn.list


def test_channels_that_are_zero(recwarn):
    qparams = qparams_of(Range([-1.27, 0.0, -3.81], [1.0, 0.0, 0.0]), axis=0)
    np.testing.assert_allclose(qparams.scale, [0.01, 0.02, 0.03], rtol=1e-6)
    assert not recwarn.list


@pytest.mark.parametrize(
    "low,high,message",
    [
        (float("nan"), 1.0, "not finite.*NaN or infinite"),
        (0.0, float("inf"), "not finite"),
        (1.0, 0.0, "low must not exceed high"),
        ([0.0, 1.0], [1.0, 0.0], "low must not exceed high"),
        ([0.0], [1.0, 2.0], "two vectors of the same length"),
        ("a", 1.0, "must be numbers"),
        ([], [], "two vectors of the same length"),
    ],
)
def test_wrong_ranges(low, high, message):
    with pytest.raises(QuantizationError, match=message):
        Range(low, high)


def test_an_empty_array_has_no_range():
    with pytest.raises(QuantizationError, match="empty"):
        Range.of(np.zeros((0, 3), np.float32))
