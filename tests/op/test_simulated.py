"""qnn.simulated_quantize and qnn.simulated_dequantize: every dtype code, per channel, round trips, errors."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError
from qnn_ext.op.simulated import dtype_code
from qnn_ext.qparams import dtype_range

from .helpers import evaluate, var


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_equals_quantize_and_dequantize(rng, dtype):
    x = rng.uniform(-200, 200, (4, 100)).astype(np.float32)
    zero_point = 0 if dtype == "int32" else dtype_range(dtype)[0] + 100
    simulated = evaluate(op.simulated_quantize(x, dtype_code(dtype), 0.7, zero_point))
    real = evaluate(op.quantize(x, 0.7, zero_point, out_dtype=dtype, rounding="TONEAREST"))
    np.testing.assert_array_equal(simulated, real.astype(np.float32))
    back = evaluate(op.simulated_dequantize(simulated, dtype_code(dtype), 0.7, zero_point))
    np.testing.assert_array_equal(back, evaluate(op.dequantize(real, 0.7, zero_point)))


def test_disabled(rng):
    x = rng.standard_normal((3, 4)).astype(np.float32)
    for builder in (op.simulated_quantize, op.simulated_dequantize):
        np.testing.assert_array_equal(evaluate(builder(x, dtype_code(None), 0.1, 3)), x)


def test_per_channel(rng):
    x = rng.uniform(-20, 20, (2, 3, 50)).astype(np.float32)
    scale, zero_point = np.float32([0.1, 0.2, 0.5]), np.int32([1, -2, 3])
    whole = evaluate(op.simulated_quantize(x, 1, scale, zero_point, axis=1))
    back = evaluate(op.simulated_dequantize(whole, 1, scale, zero_point, axis=1))
    for c in range(3):
        part = evaluate(op.simulated_quantize(x[:, c], 1, scale[c], zero_point[c]))
        np.testing.assert_array_equal(whole[:, c], part)
        np.testing.assert_array_equal(back[:, c], (part - np.float32(zero_point[c])) * scale[c])


def test_errors():
    x = var("x", (2, 3), "float32")
    with pytest.raises(ShapeError, match="found int16"):
        dtype_code("int16")
    with pytest.raises(ShapeError, match="must be float32"):
        op.simulated_quantize(var("x", (2, 3), "int8"), 1, 1.0, 0)
    with pytest.raises(ShapeError, match="dtype must be a scalar"):
        op.simulated_quantize(x, np.int32([1, 2]), 1.0, 0)
    with pytest.raises(ShapeError, match="vector of 3"):
        op.simulated_dequantize(x, 1, np.ones(2, np.float32), 0)
