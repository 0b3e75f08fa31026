"""Type rules with a symbolic batch: every operator that takes one keeps it in the result's shape."""

import numpy as np
import pytest
from tvm import tirx

from qnn_ext import op
from qnn_ext.errors import ShapeError
from qnn_ext.op.base import call_attributes, definition_of

from .helpers import var

N = tirx.Var("n", "int64")
ONE = (0.5, 3, 0.25, -4)
IMAGE = var("data", (N, 8, 8, 4), "int8")
ROWS = var("data", (N, 8), "int8")


def shape(call):
    ty = definition_of(call).infer_type(call.args, call_attributes(call))
    return tuple(dim if isinstance(dim, tirx.Var) else int(dim) for dim in ty.shape)


@pytest.mark.parametrize(
    "call,expected",
    [
        (lambda: op.conv2d(IMAGE, np.zeros((6, 3, 3, 4), np.int8), 0, 0, 1.0, 1.0), (N, 6, 6, 6)),
        (lambda: op.conv2d_transpose(IMAGE, np.zeros((6, 3, 3, 4), np.int8), 0, 0, 1.0, 1.0), (N, 10, 10, 6)),
        (lambda: op.avg_pool2d(IMAGE, *ONE, (2, 2), (2, 2), ceil_mode=True), (N, 4, 4, 4)),
        (lambda: op.dense(ROWS, np.zeros((5, 8), np.int8), 0, 0, 1.0, 1.0), (N, 5)),
        (lambda: op.add(ROWS, var("rhs", (8,), "int8"), *ONE, 1.0, 0), (N, 8)),
        (lambda: op.mul(ROWS, var("rhs", (N, 1), "int8"), *ONE, 1.0, 0), (N, 8)),
        (lambda: op.concatenate([ROWS, ROWS], [0.5, 0.5], [1, 1], 0.5, 1, axis=1), (N, 16)),
        (lambda: op.softmax(ROWS, *ONE), (N, 8)),
        (lambda: op.group_norm(IMAGE, *[np.ones(4, np.float32)] * 2, *ONE, 2, axis=3), (N, 8, 8, 4)),
        (lambda: op.instance_norm(IMAGE, *[np.ones(8, np.float32)] * 2, *ONE), (N, 8, 8, 4)),
        (lambda: op.mean(IMAGE, *ONE, axis=[1, 2]), (N, 4)),
        (lambda: op.prelu(IMAGE, var("alpha", (4,), "int8"), *ONE, 1.0, 0), (N, 8, 8, 4)),
        (lambda: op.sigmoid(ROWS, *ONE), (N, 8)),
        (lambda: op.batch_matmul(var("x", (N, 2, 3), "int8"), var("y", (N, 4, 3), "int8"), 0, 0, 1.0, 1.0), (N, 2, 4)),
    ],
)
def test_symbolic_batch(call, expected):
    result = shape(call())
    assert len(result) == len(expected)
    assert all(a.same_as(b) if isinstance(b, tirx.Var) else a == b for a, b in zip(result, expected, strict=True))


def test_different_variables_do_not_fit():
    other = var("rhs", (tirx.Var("m", "int64"), 8), "int8")
    with pytest.raises(ShapeError, match="do not broadcast"):
        op.add(ROWS, other, *ONE, 1.0, 0)
    with pytest.raises(ShapeError, match="cannot be concatenated"):
        op.concatenate([ROWS, other], [0.5, 0.5], [1, 1], 0.5, 1, axis=1)
