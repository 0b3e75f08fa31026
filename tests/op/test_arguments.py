"""What the arguments of a builder become: relax expressions of a certain dtype."""

import numpy as np
import pytest

from qnn_ext.op.base import as_expr, constant_value

THIRD = 1 / 3  # which float32 does not have


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, "int32"),
        (True, "int32"),
        (THIRD, "float32"),
        (np.float32(THIRD), "float32"),
        (np.float64(THIRD), "float64"),
        (np.asarray(THIRD), "float64"),
        (np.float64(THIRD) * np.asarray(0.5), "float64"),  # a product of 0-d arrays is a scalar
        (np.int64(1 << 40), "int64"),
        (np.uint8(255), "uint8"),
        (np.array([THIRD, 1]), "float64"),
    ],
    ids=str,
)
def test_numpy_values_keep_their_dtype(value, dtype):
    found = constant_value(as_expr(value))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, np.asarray(value, dtype))
