"""qnn.lane_softmax: against float64, beside masks, and its type rules."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError

from .helpers import evaluate, var


@pytest.mark.parametrize("length", [1, 15, 16, 63, 64, 65, 130, 1001])
def test_close_to_softmax(rng, length):
    data = rng.normal(0, 5, (4, length)).astype(np.float32)
    exps = np.exp(data.astype(np.float64) - data.max(-1, keepdims=True))
    np.testing.assert_allclose(evaluate(op.lane_softmax(data)), exps / exps.sum(-1, keepdims=True), rtol=3e-6)


def test_masked_elements_are_zero():
    data = np.float32([[0, -1e9, 0, -np.inf, -3e38, -120]])
    assert evaluate(op.lane_softmax(data)).tolist() == [[0.5, 0, 0.5, 0, 0, 0]]


@pytest.mark.parametrize("shape", [(), (3, 0)])
def test_rows_must_have_elements(shape):
    with pytest.raises(ShapeError, match="last axis"):
        op.lane_softmax(var("x", shape, "float32"))
