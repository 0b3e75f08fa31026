"""qnn.normalize: against float64, and its type rule."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError

from .helpers import evaluate, random_integers, var


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_float32_accuracy(dtype, centered, rng):
    data = random_integers(rng, (5, 300), dtype)
    data[1] = data[1] // 64 + 3  # a row of small spread
    scale, zero_point, epsilon = np.float32(0.013), 3, 1e-5
    x = (data.astype(np.float64) - zero_point) * float(scale)
    mean = x.mean(axis=-1, keepdims=True) if centered else 0.0
    expected = (x - mean) / np.sqrt(((x - mean) ** 2).mean(axis=-1, keepdims=True) + epsilon)
    np.testing.assert_allclose(evaluate(op.normalize(data, scale, zero_point, epsilon, centered)), expected, rtol=5e-7)


def test_a_row_of_equal_values_is_zero():
    assert not evaluate(op.normalize(np.full((2, 7), 100, np.uint8), 0.1, 3)).any()


def test_type_rule():
    with pytest.raises(ShapeError, match="data must be int8 or uint8 or int16, found int32"):
        op.normalize(var("x", (2, 3), "int32"), 0.5, 0)
    with pytest.raises(ShapeError, match="last axis"):
        op.normalize(var("x", (), "int8"), 0.5, 0)
    with pytest.raises(ShapeError, match="does not fit into int64"):
        op.normalize(var("x", (2, 1 << 17), "int16"), 0.5, 0)
    with pytest.raises(ShapeError, match="epsilon"):
        op.normalize(var("x", (2, 3), "int8"), 0.5, 0, -1.0)
