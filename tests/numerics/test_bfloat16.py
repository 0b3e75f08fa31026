"""bfloat16: nearest, ties to even, for every kind of float32; NumPy and compiled code agree bit for bit."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.compiling.build import lower_module
from qnn_ext.numerics import bfloat16
from qnn_ext.targets.names import make_target
from tests.passes.modules import module, run_lowered

SPECIAL = np.float32([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4028235e38, -3.3961775e38, 2.0**-126])


def samples() -> np.ndarray:
    """Numbers around every boundary of every exponent, and NaN with any bits."""
    high = np.arange(1 << 16, dtype=np.uint32)[:: 7 * 13] << 16
    low = np.uint32([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    words = (high[:, None] | low).reshape(-1)
    return np.concatenate([words.view(np.float32), SPECIAL])


def test_the_nearest_of_two_neighbours():
    x = samples()
    bits = bfloat16.bits_of(x)
    nan = np.isnan(x)
    assert np.isnan(bfloat16.from_bits(bits[nan])).all()
    x, bits = x[~nan], bits[~nan]
    below = (x.view(np.uint32) >> 16).astype(np.uint16)  # towards zero
    inside = (below & 0x7FFF) < 0x7F7F  # away from zero it is finite
    x, bits, below = x[inside], bits[inside], below[inside]
    near, far = (np.abs(x.astype(np.float64) - bfloat16.from_bits(one)) for one in (below, below + 1))
    even = np.where(below & 1, below + 1, below)
    np.testing.assert_array_equal(bits, np.where(near < far, below, np.where(far < near, below + 1, even)))


def test_beyond_the_largest_is_infinity():
    largest = bfloat16.from_bits(np.uint16([0x7F7F]))
    np.testing.assert_array_equal(bfloat16.rounded(np.float32([3.3961775e38, 3.3895314e38])), [np.inf, largest[0]])
    assert bfloat16.rounded(np.float32(-np.inf)) == -np.inf


@pytest.mark.parametrize("out_dtype", ["float32", "uint16"])
def test_compiled(out_dtype):
    x, target = samples(), make_target("native", 1)
    kernels = lower_module(module([(x.shape, "float32")], lambda emit, v: [emit(op.bfloat16(v, out_dtype))]), target)
    (found,) = run_lowered(kernels, [x], target)
    expected = op.OPS["bfloat16"].reference(x, out_dtype=out_dtype)
    np.testing.assert_array_equal(found.view(f"u{found.itemsize}"), expected.view(f"u{found.itemsize}"))
