"""NaN stays NaN, compiled and interpreted alike, wherever floats are compared: extremes, clips, activations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import qnn_ext
from qnn_ext.module import QnnModule, TensorSpec

SHAPE = (3, 37)
HOSTILE = np.array(
    [0, 1, -1, 0.3, 0.625, 0.8, -0.625, 9.2, -9.2, 100, -100, 1e30, 1e-40, np.inf, -np.inf, np.nan], np.float32
)

UNARY: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "relu": op.nn.relu,
    "clip": lambda x: op.clip(x, -1, 6),
    "clip to infinity": lambda x: op.clip(x, 0, float("inf")),
    "max of rows": lambda x: op.max(x, 1),
    "min of columns": lambda x: op.min(x, 0, keepdims=True),
    "max of all": op.max,
    "maximum with a constant": lambda x: op.maximum(x, relax.const(0.5, "float32")),
    "constant with maximum": lambda x: op.maximum(relax.const(0.5, "float32"), x),
    "minimum with NaN": lambda x: op.minimum(x, relax.const(np.float32([[np.nan], [1], [0]]))),
    "exp": op.exp,
    "tanh": op.tanh,
    "erf": op.erf,
    "sigmoid": op.sigmoid,
    "silu": op.nn.silu,
    "gelu": op.nn.gelu,
    "softmax": lambda x: op.nn.softmax(x, -1),
}


def module(function: Callable[..., relax.Expr], inputs: int = 1) -> QnnModule:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{i}", relax.TensorType(SHAPE, "float32")) for i in range(inputs)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit(function(*params))
            outputs = builder.emit_output(relax.Tuple([result]))
        builder.emit_func_output(outputs)
    main = builder.get()["main"].with_attr("num_input", inputs)
    shape = tuple(int(dim) for dim in result.ty.shape)
    specs = tuple(TensorSpec(f"x{i}", SHAPE, "float32") for i in range(inputs))
    return QnnModule(ir=tvm.IRModule({"main": main}), inputs=specs, outputs=(TensorSpec("y", shape, "float32"),))


def both(module: QnnModule, *inputs: np.ndarray) -> np.ndarray:
    """The result, equal compiled and interpreted."""
    with np.errstate(all="ignore"):
        interpreted = np.asarray(qnn_ext.Interpreter(module)(*inputs))
    np.testing.assert_array_equal(np.asarray(qnn_ext.build(module, num_threads=1)(*inputs)), interpreted)
    return interpreted


@pytest.mark.parametrize("name", UNARY)
def test_one_operand(rng, name):
    x = rng.choice(HOSTILE, SHAPE)
    result = both(module(UNARY[name]), x)
    if result.shape == SHAPE:
        assert np.isnan(result[np.isnan(x)]).all()
    elif result.ndim == 1:
        np.testing.assert_array_equal(np.isnan(result), np.isnan(x).any(axis=1))
    else:
        assert np.isnan(result).any()


@pytest.mark.parametrize(("function", "reference"), [(op.maximum, np.maximum), (op.minimum, np.minimum)])
def test_two_operands(rng, function, reference):
    x, y = rng.choice(HOSTILE, SHAPE), rng.choice(HOSTILE, SHAPE)
    np.testing.assert_array_equal(both(module(function, 2), x, y), reference(x, y))


def test_nan_differs_from_every_number(rng):
    x, y = rng.choice(HOSTILE, SHAPE), rng.choice(HOSTILE, SHAPE)
    unequal = module(lambda x, y: op.astype(op.not_equal(x, y), "float32"), 2)
    np.testing.assert_array_equal(both(unequal, x, y), x != y)
    true = module(lambda x: op.astype(op.astype(x, "bool"), "float32"))
    np.testing.assert_array_equal(both(true, x), x.astype(bool))


@pytest.mark.parametrize(("function", "reference"), [(op.max, np.max), (op.min, np.min)])
@pytest.mark.parametrize("axis", [None, 0, [0, 1]])
@pytest.mark.parametrize("keepdims", [False, True])
def test_along_axes_of_infinities(function, reference, axis, keepdims):
    x = np.full(SHAPE, -np.inf if reference is np.max else np.inf, np.float32)
    result = both(module(lambda x: function(x, axis, keepdims=keepdims)), x)
    axes = tuple(axis) if isinstance(axis, list) else axis
    np.testing.assert_array_equal(result, reference(x, axis=axes, keepdims=keepdims))
