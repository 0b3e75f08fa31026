"""Floats as integers: one result on every CPU, NaN and infinities included."""

import numpy as np
import pytest
import tvm
from tvm import te

from qnn_ext.numerics import reference, tir
from qnn_ext.qparams import dtype_range

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def floats(dtype: str, target: str, rng: np.random.Generator) -> np.ndarray:
    low, high = dtype_range(target)
    edges = [float(edge) + step for edge in (low, high, high + 1) for step in (-1, -0.5, 0, 0.5, 1)]
    special = [np.nan, np.inf, -np.inf, -0.0, 0.5, -0.5, 1e-40, 1e30, -1e30, 1e300, *edges]
    with np.errstate(over="ignore"):
        values = np.concatenate([special, rng.normal(0, 1, 300) * (high - low), rng.normal(0, 100, 200)]).astype(dtype)
        neighbours = [np.nextafter(values, np.asarray(end, dtype)) for end in (-np.inf, np.inf)]
    return np.concatenate([values, *neighbours])


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", ["float16", "float32", "float64"])
def test_compiled_equals_numpy(source, target, rng):
    x = floats(source, target, rng)
    data = te.placeholder(x.shape, source, name="x")
    library = tvm.compile(
        te.create_prim_func([data, te.compute(x.shape, lambda i: tir.truncate(data(i), target), name="out")]), "llvm"
    )
    result = tvm.runtime.tensor(np.zeros(x.shape, target))
    library(tvm.runtime.tensor(x), result)
    np.testing.assert_array_equal(result.numpy(), reference.truncate(x, target))


@pytest.mark.parametrize("target", INTEGERS)
def test_values(target):
    low, high = dtype_range(target)
    x = np.float64([np.nan, np.inf, -np.inf, 2.9, 0.9, 1e300, -1e300])
    assert reference.truncate(x, target).tolist() == [0, high, low, 2, 0, high, low]
