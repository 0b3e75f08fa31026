"""gemmlowp's 16-bit logistic and tanh: close to the functions, symmetric, monotonic where gemmlowp's are."""

import numpy as np
import pytest

from qnn_ext.numerics.gemmlowp16 import logistic_table, tanh_table

X = np.arange(-32768, 32768)


def test_logistic():
    table = logistic_table().astype(int)
    assert np.abs(table / 32768 - 1 / (1 + np.exp(-X / 4096))).max() < 2.5e-4
    np.testing.assert_array_equal(table[32769:] + table[1:32768][::-1], 32767)
    assert table[32768] == 16384


@pytest.mark.parametrize("integer_bits", range(7))
def test_tanh(integer_bits):
    table = tanh_table(integer_bits).astype(int)
    assert np.abs(table / 32768 - np.tanh(X / 2.0 ** (15 - integer_bits))).max() < 4e-4
    np.testing.assert_array_equal(table[32769:], -table[1:32768][::-1])
    assert table[32768] == 0
