"""Integer division as NumPy and as TIR, for every divisor."""

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from qnn_ext.numerics import division

KINDS = {"divide": tirx.Div, "floor_divide": tirx.FloorDiv, "mod": tirx.Mod, "floor_mod": tirx.FloorMod}


def compiled(name: str, n: np.ndarray, d: np.ndarray) -> np.ndarray:
    inputs = [te.placeholder(n.shape, str(n.dtype), name=name) for name in "nd"]
    out = te.compute(n.shape, lambda i: division.divided(KINDS[name], inputs[0](i), inputs[1](i)), name="out")
    library = tvm.compile(te.create_prim_func([*inputs, out]), target="llvm")
    result = tvm.runtime.tensor(np.zeros_like(n))
    library(tvm.runtime.tensor(n), tvm.runtime.tensor(d), result)
    return result.numpy()


def operands(dtype: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of extremes and of numbers near zero, then random ones."""
    info = np.iinfo(dtype)
    special = np.array([v for v in (info.min, info.min + 1, -2, -1, 0, 1, 2, info.max) if v >= info.min], dtype)
    pairs = np.array(np.meshgrid(special, special)).reshape(2, -1)
    random = rng.integers(info.min, info.max, (2, 500), dtype, endpoint=True)
    return tuple(np.concatenate([pairs, random], axis=1))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
@pytest.mark.parametrize("name", KINDS)
def test_compiled_equals_numpy(name, dtype, rng):
    n, d = operands(dtype, rng)
    expected = division.NUMPY[name](n, d)
    assert expected.dtype == dtype
    np.testing.assert_array_equal(compiled(name, n, d), expected)


def test_what_python_defines(rng):
    n, d = operands("int32", rng)
    usual = (d != 0) & ~((n == np.iinfo("int32").min) & (d == -1))
    for a, b in zip(n[usual].tolist(), d[usual].tolist(), strict=True):
        found = {name: int(division.NUMPY[name](np.int32([a]), np.int32([b]))[0]) for name in KINDS}
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        assert found == {"divide": quotient, "floor_divide": a // b, "mod": a - b * quotient, "floor_mod": a % b}


def test_what_nobody_defines():
    low = np.iinfo("int32").min
    n, d = np.int32([low, 7, low]), np.int32([-1, 0, 0])
    for name in ("divide", "floor_divide"):
        assert division.NUMPY[name](n, d).tolist() == [low, 7, low]
    for name in ("mod", "floor_mod"):
        assert division.NUMPY[name](n, d).tolist() == [0, 0, 0]
