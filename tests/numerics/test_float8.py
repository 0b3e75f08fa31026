"""float8: nearest, ties to even, saturating, for every kind of float32; NumPy and compiled code agree bit for bit."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.compiling.build import lower_module
from qnn_ext.numerics import float8
from qnn_ext.targets.names import make_target
from tests.passes.modules import module, run_lowered

pytestmark = pytest.mark.parametrize("dtype", float8.FORMATS)


def samples() -> np.ndarray:
    """Numbers around every midpoint of every format, each exponent, infinities and NaN with any bits."""
    high = np.arange(1 << 16, dtype=np.uint32)[::3] << 16
    low = np.uint32([0, 1, 0x7FFF, 0x8000, 0xFFFF])
    steps = (np.arange(1 << 13, dtype=np.uint32) << 19)[:, None] + np.array([-1, 0, 1], np.int64).astype(np.uint32)
    return np.concatenate([(high[:, None] | low).reshape(-1), steps.reshape(-1)]).view(np.float32)


def grid(dtype: str) -> np.ndarray:
    """The numbers of the format, in order: all multiples of powers of two with the mantissa's bits."""
    form = float8.FORMATS[dtype]
    exponents = range(form.exponent, 32)
    normal = [(2**form.mantissa + m) * 2.0 ** (e - form.mantissa) for e in exponents for m in range(2**form.mantissa)]
    small = [m * 2.0 ** (form.exponent - form.mantissa) for m in range(2**form.mantissa)]
    positive = np.array([value for value in small + normal if value <= form.largest])
    return np.concatenate([-positive[:0:-1], positive])


def test_the_nearest_with_even_mantissas_in_the_middle(dtype):
    x = samples()
    found = float8.rounded(x, dtype)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
    x, found = x[~np.isnan(x)].astype(np.float64), found[~np.isnan(x)]
    values, largest = grid(dtype), float8.FORMATS[dtype].largest
    np.testing.assert_array_equal(found[np.abs(x) >= largest], np.sign(x[np.abs(x) >= largest]) * largest)
    x, found = x[np.abs(x) < largest], found[np.abs(x) < largest]
    above = np.searchsorted(values, x, side="right")
    low, high = values[above - 1], values[np.minimum(above, len(values) - 1)]
    zero = len(values) // 2
    even = np.where((above - 1 - zero) % 2 == 0, low, high)  # of two neighbours one has an odd index from zero on
    nearest = np.where(x - low < high - x, low, np.where(high - x < x - low, high, even))
    np.testing.assert_array_equal(found, nearest)


def test_compiled(dtype):
    x, target = samples(), make_target("native", 1)
    kernels = lower_module(module([(x.shape, "float32")], lambda emit, v: [emit(op.float8(v, dtype))]), target)
    (found,) = run_lowered(kernels, [x], target)
    expected = float8.rounded(x, dtype)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan].view("uint32"), expected[~nan].view("uint32"))
