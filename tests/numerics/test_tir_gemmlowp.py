"""gemmlowp's functions in TIR, equal bit for bit to their NumPy twins."""

import numpy as np
import pytest
import tvm
from tvm import te

from qnn_ext.numerics import gemmlowp, tir_gemmlowp

UNIT = 1 << 19  # 1.0 in Q12.19


def positive(rng: np.random.Generator, low: int) -> np.ndarray:
    """Values in low … 2³¹ − 1 of all magnitudes, and those around every power of two."""
    powers = np.array([(1 << k) + d for k in range(32) for d in (-1, 0, 1)])
    magnitudes = np.exp2(rng.uniform(0, 31, 3000)).astype(np.int64)
    x = np.concatenate([powers, magnitudes, np.arange(low, low + 1000), [2**31 - 1]])
    return np.unique(np.clip(x, low, 2**31 - 1))


def evaluate(function, x: np.ndarray) -> np.ndarray:
    """Run function(element, bind) over the rows of x."""
    source = te.placeholder(x.shape, "int64", "x")
    bind = tir_gemmlowp.RowStages(x.shape, "stage")
    result = bind.stage(function(source(*bind.indices), bind))
    built = tvm.compile(te.create_prim_func([source, result]), target="llvm")
    out = tvm.runtime.tensor(np.zeros(x.shape, np.int64))
    built["main"](tvm.runtime.tensor(x), out)
    return out.numpy()


def test_reciprocal(rng):
    x = positive(rng, UNIT)
    inverse, bits = gemmlowp.reciprocal(x, 12)
    np.testing.assert_array_equal(evaluate(lambda v, bind: tir_gemmlowp.reciprocal(v, 12, bind)[0], x), inverse)
    np.testing.assert_array_equal(evaluate(lambda v, bind: tir_gemmlowp.reciprocal(v, 12, bind)[1], x), bits)


def test_log(rng):
    x = positive(rng, UNIT)
    np.testing.assert_array_equal(evaluate(lambda v, bind: tir_gemmlowp.log(v, 12, 5, bind), x), gemmlowp.log(x, 12, 5))


@pytest.mark.parametrize("part", [0, 1])
def test_inverse_sqrt(rng, part):
    x = positive(rng, 0)
    expected = [gemmlowp.inverse_sqrt(int(value))[part] for value in x]
    np.testing.assert_array_equal(
        evaluate(lambda v, bind: tir_gemmlowp.inverse_sqrt(v, bind)[part], x), np.array(expected)
    )
