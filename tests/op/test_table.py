"""qnn.table and the tables of functions."""

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.errors import ShapeError
from qnn_ext.numerics.reference import domain
from qnn_ext.op.table import function_table
from qnn_ext.qparams import QParams

from .helpers import evaluate, random_integers, var


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("target", ["int8", "uint8", "int32", "float32"])
def test_lookup(rng, dtype, target):
    values = domain(dtype)
    entries = rng.integers(0, 100, values.size).astype(target)
    np.testing.assert_array_equal(evaluate(op.table(values, entries)), entries)
    x = random_integers(rng, (3, 4, 5), dtype)
    np.testing.assert_array_equal(evaluate(op.table(x, entries)), entries[x.astype(int) - int(values[0])])


def test_identity_table_keeps_values():
    source = QParams(np.float32(0.1), 3, "int8")
    np.testing.assert_array_equal(function_table(lambda x: x, source, source), domain("int8"))


def test_function_table():
    source, target = QParams(np.float32(0.5), 0, "int8"), QParams(np.float32(1.0), 10, "uint8")
    even = function_table(np.abs, source, target)
    away = function_table(np.abs, source, target, "TONEAREST")
    steps = np.abs(np.arange(-128, 128)) / 2
    np.testing.assert_array_equal(even, np.rint(steps) + 10)
    np.testing.assert_array_equal(away, np.floor(steps + 0.5) + 10)
    assert even.dtype == np.uint8


def test_function_table_edges():
    """NaN becomes the lowest integer, infinities the ends of the dtype."""
    source, target = QParams(np.float32(1.0), 0, "int8"), QParams(np.float32(1.0), 7, "int8")
    table = function_table(np.log, source, target)
    assert table[127] == -128 and table[128] == -128 and table[129] == 7 and table[255] == 7 + 5


def test_errors():
    with pytest.raises(ShapeError, match="must have 256 entries"):
        op.table(var("x", (2,), "int8"), np.zeros(255, np.int8))
    with pytest.raises(ShapeError, match="must have 65536 entries"):
        op.table(var("x", (2,), "int16"), np.zeros(256, np.int8))
    with pytest.raises(ShapeError, match="data must be int8"):
        op.table(var("x", (2,), "int32"), np.zeros(256, np.int8))
