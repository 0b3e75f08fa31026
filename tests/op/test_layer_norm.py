"""qnn.layer_norm: close to layer normalization in real numbers; rows stay apart."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.errors import ShapeError
from qnn_ext.op import layer_norm
from qnn_ext.op.layer_norm import LAYER_NORM

SCALE = np.float32(1 / 16384)


def reference(data, weight, bias):
    return LAYER_NORM.reference(data, weight, bias, np.asarray(SCALE))


@pytest.mark.parametrize("count", [8, 64, 256])
def test_normalizes(count, rng):
    data = rng.integers(-8000, 8001, (5, count)).astype("int16")
    weight = rng.integers(8000, 24000, count).astype("int16")
    bias = rng.integers(-(2**23), 2**23, count).astype("int32")
    x = data.astype(float)
    normal = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
    expected = normal * weight * float(SCALE) + bias * float(SCALE) / 1024
    np.testing.assert_allclose(reference(data, weight, bias) / 4096, expected, atol=0.01)


def test_constant_rows_give_the_bias(rng):
    weight, bias = np.full(16, 16384, "int16"), np.arange(16, dtype="int32") << 20
    result = reference(np.full((1, 16), 1234, "int16"), weight, bias)
    np.testing.assert_array_equal(result[0], np.arange(16) * 4096 // 16)


def test_rows_are_independent(rng):
    data = rng.integers(-30000, 30001, (4, 12)).astype("int16")
    weight, bias = rng.integers(-9000, 9000, 12).astype("int16"), np.zeros(12, "int32")
    together = reference(data, weight, bias)
    for row, expected in zip(data, together, strict=True):
        np.testing.assert_array_equal(reference(row[None], weight, bias)[0], expected)


def test_type_rule():
    data = relax.Var("x", relax.TensorType((2, 8), "int16"))
    with pytest.raises(ShapeError, match="shapes must be data"):
        layer_norm(data, np.zeros(7, "int16"), np.zeros(8, "int32"), SCALE)
    with pytest.raises(ShapeError, match="bias must be int32"):
        layer_norm(data, np.zeros(8, "int16"), np.zeros(8, "int64"), SCALE)
