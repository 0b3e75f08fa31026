"""Products between dequantized tensors: integers after the pass, the model's own numbers."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from qnn_ext.op.base import constant

from .qdq import RNG, Graph, operators, run_both

IMAGE = RNG.normal(size=(2, 4, 9, 8)).astype(np.float32)


def weights(shape, axis=0):
    data = RNG.integers(-127, 128, shape).astype(np.int8)
    return data, RNG.uniform(0.01, 0.02, shape[axis]).astype(np.float32)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
def test_convolution_with_float_bias_and_relu(dtype, reciprocal, groups):
    w, scales = weights((8, 4 // groups, 3, 3))
    bias = RNG.normal(size=(1, 8, 1, 1)).astype(np.float32)
    zero_point = 120 if dtype == "uint8" else -5

    def model(g: Graph, x):
        a = g.qdq(x, 0.03, zero_point, dtype, reciprocal)
        y = g.emit(relax.op.nn.conv2d(a, g.dq(w, scales, np.zeros(8), 0), padding=(1, 1), groups=groups))
        y = g.emit(relax.op.nn.relu(g.emit(relax.op.add(y, constant(bias)))))
        return g.q(y, 0.05, 3 if dtype == "uint8" else -128, dtype, reciprocal)

    expected, got, mod = run_both(model, IMAGE)
    assert "nn.conv2d" not in operators(mod) and "qnn.conv2d" in operators(mod)
    assert np.abs(expected[0].astype(int) - got[0]).max() <= 1
    assert (expected[0] != got[0]).mean() < 1e-3  # a float sum on the wrong side of a tie
