"""Functions of ONNX Runtime and XNNPACK: NumPy and TIR bit for bit, on every kind of CPU, close to the true values."""

import math

import numpy as np
import pytest

from qnn_ext.numerics import elementary, float_functions

from .test_elementary import CPUS, FUNCTIONS, data, evaluate

TRUE = FUNCTIONS | {"logistic": FUNCTIONS["sigmoid"], "sin": np.sin, "cos": np.cos}
TRUE |= {f"xnnpack_{name}": FUNCTIONS[name] for name in ("sigmoid", "tanh", "gelu", "gelu_tanh")}
TRUE |= {f"xnnpack_{name}": getattr(np, name) for name in ("exp", "log", "sin", "cos")}
TRUE |= {
    "vector_exp": np.exp,
    "log": np.log,
    "softplus": lambda x: np.logaddexp(0, x),
    "xnnpack_elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "gru_tanh": np.tanh,
    "litert_tanh": np.tanh,
    "litert_logistic": FUNCTIONS["sigmoid"],
    "litert_vector_logistic": FUNCTIONS["sigmoid"],
    "gru_logistic": FUNCTIONS["sigmoid"],
}
ABSOLUTE = {"logistic", "gru_logistic", "sin", "cos", "xnnpack_sin", "xnnpack_cos", "xnnpack_log"}
MOST = {
    "xnnpack_sigmoid": 2.2,
    "gru_tanh": 4.2,
    "litert_tanh": 4.2,
    "litert_vector_logistic": 4.5,
    "xnnpack_exp": 32,
    "xnnpack_sin": 24,
    "xnnpack_cos": 24,
}
"""Ulps; 2.1 for others. XNNPACK rounds x · log₂(e), and uses 33 bits of 2π."""
ENDS = {"exp": (0, math.inf), "erf": (-1, 1), "tanh": (-1, 1), "logistic": (0, 1), "xnnpack_sigmoid": (0, 1)}
ENDS |= {"litert_tanh": (-1, 1), "litert_logistic": (0, 1), "litert_vector_logistic": (0, 1)}
ENDS |= {"xnnpack_exp": (0, math.inf), "xnnpack_log": (math.nan, math.inf), "xnnpack_elu": (-1, math.inf)}


@pytest.mark.parametrize("cpu", dict.fromkeys(CPUS))
@pytest.mark.parametrize("name", float_functions.FUNCTIONS)
def test_numpy_and_tir_are_equal(rng, name, cpu):
    x = np.concatenate([data(rng), np.resize(np.float32([18, -18, 9, -9, 0.921875, 3.925]), 16)])
    expected = elementary.on_arrays(float_functions.FUNCTIONS[name], x)
    np.testing.assert_array_equal(
        evaluate(float_functions.FUNCTIONS[name], x, cpu).view(np.int32), expected.view(np.int32)
    )


@pytest.mark.parametrize("name, ends", ENDS.items())
def test_infinities_and_nan(name, ends):
    x, function = np.resize(np.float32([-math.inf, math.inf, math.nan]), 16), float_functions.FUNCTIONS[name]
    expected = np.resize(np.float32([*ends, math.nan]), 16)
    np.testing.assert_allclose(elementary.on_arrays(function, x), expected, rtol=2e-7)
    np.testing.assert_array_equal(evaluate(function, x, CPUS[0]), elementary.on_arrays(function, x))


@pytest.mark.parametrize("name", float_functions.FUNCTIONS)
def test_close_to_the_function(rng, name):
    x = data(rng)
    x = x[(np.abs(x) < 80) & ((x > 0) | (not name.endswith("log")))]
    actual = elementary.on_arrays(float_functions.FUNCTIONS[name], x).astype(np.float64)
    expected = TRUE[name](x.astype(np.float64))
    # 1 + erf and 1 + tanh cancel on the negative side of the activations
    scale = np.maximum(np.abs(x), np.abs(expected)) if "gelu" in name else np.abs(expected)
    scale = np.maximum(np.abs(expected), 1) if name in ABSOLUTE else scale
    assert np.max(np.abs(actual - expected) / np.maximum(scale, 1e-37)) < MOST.get(name, 2.1) * 2.0**-23
