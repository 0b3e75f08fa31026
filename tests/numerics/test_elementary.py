"""The elementary functions: NumPy and TIR bit for bit, on every kind of CPU, close to the true values."""

import math

import numpy as np
import pytest
import tvm
from tvm import te

from qnn_ext.numerics import elementary
from tests.cpus import TARGETS

FUNCTIONS = {
    "exp": np.exp,
    "erf": np.vectorize(math.erf),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (0.5 + 0.5 * np.vectorize(math.erf)(x * 0.5**0.5)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))),
}
CPUS = [tvm.target.codegen.llvm_get_system_cpu(), *TARGETS[1:]]


def data(rng: np.random.Generator) -> np.ndarray:
    """Every magnitude, both signs, the ends of the ranges, infinities."""
    spread = rng.standard_normal(4000) * 2.0 ** rng.uniform(-30, 8, 4000)
    dense = np.linspace(-12, 12, 4001)
    edges = [0, -0.0, 1, -1, 0.625, 0.8, 4, 9.1, 88.72283, 88.7229, 89, -87.336, -87.337, -104, 1e30, -1e30]
    x = np.concatenate([spread, dense, edges, np.float32(88.722839) + np.arange(-8, 8) * 1e-5])
    return np.resize(x, -(-len(x) // 16) * 16).astype(np.float32)


def evaluate(function, x: np.ndarray, cpu: str) -> np.ndarray:
    source = te.placeholder(x.shape, "float32", "x")
    result = te.compute(x.shape, lambda i: function(source[i], elementary.TIR), "y")
    schedule = tvm.s_tir.Schedule(te.create_prim_func([source, result]))
    (loop,) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.vectorize(schedule.split(loop, [None, 16])[1])
    built = tvm.compile(schedule.mod, target=tvm.target.Target({"kind": "llvm", "mcpu": cpu}))
    out = tvm.runtime.tensor(np.zeros_like(x))
    built["main"](tvm.runtime.tensor(x), out)
    return out.numpy()


@pytest.mark.parametrize("cpu", dict.fromkeys(CPUS))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_and_tir_are_equal(rng, name, cpu):
    function, x = getattr(elementary, name), data(rng)
    np.testing.assert_array_equal(
        evaluate(function, x, cpu).view(np.int32), elementary.on_arrays(function, x).view(np.int32)
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_close_to_the_function(rng, name):
    x = data(rng)
    x = x[np.abs(x) < 80]
    actual = elementary.on_arrays(getattr(elementary, name), x).astype(np.float64)
    expected = FUNCTIONS[name](x.astype(np.float64))
    # 1 + erf and 1 + tanh cancel on the negative side of the activations, in every implementation of their formulas
    scale = np.maximum(np.abs(x), np.abs(expected)) if name.startswith("gelu") else np.abs(expected)
    assert np.max(np.abs(actual - expected) / np.maximum(scale, 1e-37)) < (3 if name == "silu" else 2.1) * 2.0**-23


@pytest.mark.parametrize("cpu", dict.fromkeys(CPUS))
def test_log(rng, cpu):
    """The float32 nearest to the logarithm, here of all numbers tried."""
    spread = 2.0 ** rng.uniform(-126, 127, 3000)
    near_one = np.float32(1) + np.arange(-500, 500, dtype=np.float32) * np.float32(2.0**-23)
    x = np.concatenate([spread, near_one, [2**-126, 0.5**0.5, 2**0.5, 3e38, np.inf, np.nan]]).astype(np.float32)
    x = np.resize(x, -(-len(x) // 16) * 16)
    found = elementary.on_arrays(elementary.log, x)
    np.testing.assert_array_equal(evaluate(elementary.log, x, cpu), found)
    np.testing.assert_array_equal(found, np.log(x.astype(np.float64)).astype(np.float32))


def test_ends_of_exp():
    x = np.float32([-np.inf, -1e30, -88, 0, 89, np.inf])
    np.testing.assert_array_equal(elementary.on_arrays(elementary.exp, x), np.float32([0, 0, 0, 1, np.inf, np.inf]))
