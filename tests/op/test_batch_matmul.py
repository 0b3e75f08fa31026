"""qnn.batch_matmul against a plain int64 product of shifted operands."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError

from .helpers import evaluate, random_integers, var


@pytest.mark.parametrize(
    "x_dtype,y_dtype", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8"), ("int16", "int16")]
)
@pytest.mark.parametrize("batches", [(3, 3), (1, 3), (3, 1)])
def test_shifted_product(rng, x_dtype, y_dtype, batches):
    x, y = random_integers(rng, (batches[0], 4, 9), x_dtype), random_integers(rng, (batches[1], 5, 9), y_dtype)
    for zx, zy in [(0, 0), (4, 0), (0, 7), (123, 12)]:
        expected = np.einsum("bmk,bnk->bmn", x.astype(np.int64) - zx, y.astype(np.int64) - zy)
        for out_dtype in ("int32", "int64"):
            result = evaluate(op.batch_matmul(x, y, zx, zy, 0.5, 0.25, out_dtype))
            np.testing.assert_array_equal(result, expected.astype(out_dtype))


def test_errors():
    x = var("x", (2, 3, 4), "int8")
    for shape in [(3, 5, 4), (2, 5, 6)]:
        with pytest.raises(ShapeError, match="do not match"):
            op.batch_matmul(x, var("y", shape, "int8"), 0, 0, 1.0, 1.0)
    with pytest.raises(ShapeError, match="must be a scalar"):
        op.batch_matmul(x, var("y", (2, 5, 4), "int8"), 0, 0, 1.0, np.ones(5, np.float32))
    with pytest.raises(ShapeError, match="out_dtype"):
        op.batch_matmul(x, var("y", (2, 5, 4), "int8"), 0, 0, 1.0, 1.0, "int8")
