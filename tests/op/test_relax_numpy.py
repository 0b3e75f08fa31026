"""The interpreter's NumPy rules for ordinary Relax operators against the same operators compiled by TVM."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from qnn_ext.op import evaluate

SHAPE = (4, 3, 5)
DTYPES = ("float32", "float16", "int8", "uint8", "int32", "int64", "bool")
SPECIAL = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 0.5, 1.5, 2.5, -0.5, 1e10, 3e38])

MOVES: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "slice": lambda x: op.strided_slice(x, [0, 2], [-3, 1], [2**31 - 1, 4]),
    "slice backwards": lambda x: op.strided_slice(x, [0, -1], [-1, 4], [-9, 0], [-1, -2]),
    "slice backwards from outside": lambda x: op.strided_slice(x, [2], [99], [-6], [-1]),
    "split in equal parts": lambda x: op.split(x, 2, 0),
    "split in unequal parts": lambda x: op.split(x, 2, 1),
    "split at positions": lambda x: op.split(x, [1, 2, 4], -1),
    "tile": lambda x: op.tile(x, [2, 1, 3]),
    "tile of fewer repeats": lambda x: op.tile(x, 2),
    "tile of more repeats": lambda x: op.tile(x, [2, 1, 2, 1]),
    "flip": lambda x: op.flip(x, -1),
    "stack": lambda x: op.stack([x, x], -1),
    "broadcast": lambda x: op.broadcast_to(x, (2, *SHAPE)),
}
NUMERIC: dict[str, Callable[[relax.Expr], relax.Expr]] = {
    "pad": lambda x: op.nn.pad(x, [0, 0, 1, 2, 0, 3], pad_value=3),
    "sum": op.sum,
    "sum over an axis": lambda x: op.sum(x, [-2]),
    "sum over axes": lambda x: op.sum(x, [2, 0], keepdims=True),
    "not equal": lambda x: op.not_equal(x, op.flip(x, 0)),
    "less or equal": lambda x: op.less_equal(x, op.flip(x, 1)),
    "greater": lambda x: op.greater(x, op.flip(x, 0)),
    "greater or equal": lambda x: op.greater_equal(x, op.flip(x, 1)),
}
OF = {
    **dict.fromkeys(("negative",), ("float32", "float16", "int8", "int32", "int64")),
    **dict.fromkeys(("sqrt", "floor", "ceil"), ("float32", "float16")),
    **dict.fromkeys(("logical_not",), ("bool",)),
}
CASES = [
    *((name, function, dtype) for name, function in MOVES.items() for dtype in ("float32", "int8", "bool")),
    *((name, function, dtype) for name, function in NUMERIC.items() for dtype in DTYPES if dtype != "bool"),
    *((name, getattr(op, name), dtype) for name, dtypes in OF.items() for dtype in dtypes),
    ("logical_and", lambda x: op.logical_and(x, op.flip(x, 0)), "bool"),
    ("logical_or", lambda x: op.logical_or(x, op.flip(x, 0)), "bool"),
]


@pytest.mark.parametrize(("function", "dtype"), [case[1:] for case in CASES], ids=[f"{n} {d}" for n, _, d in CASES])
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_numpy_rules_are_what_tvm_computes(function, dtype, monkeypatch):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, dtype))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(function(x)))
    mod, array = builder.get(), values(dtype)
    found = evaluate.interpret(mod, [array])
    monkeypatch.setattr(evaluate, "NUMPY_RULES", {})
    for one, two in zip(found, evaluate.interpret(mod, [array]), strict=True):
        assert one.dtype == two.dtype
        np.testing.assert_array_equal(one, two)
        if dtype.startswith("float"):
            np.testing.assert_array_equal(np.signbit(one[~np.isnan(one)]), np.signbit(two[~np.isnan(two)]))


def values(dtype: str) -> np.ndarray:
    """Arbitrary values, including the ends and special values of the dtype."""
    rng = np.random.default_rng(0)
    if dtype == "bool":
        return rng.random(SHAPE) < 0.5
    if dtype.startswith("float"):
        numbers = np.where(rng.random(SHAPE) < 0.3, rng.choice(SPECIAL, SHAPE), rng.normal(0, 2, SHAPE))
        return numbers.astype(dtype)
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max, SHAPE, dtype=dtype, endpoint=True)


def test_functions_of_float16_are_compiled_in_seconds():
    """Loops over three dimensions, for which LLVM's second level of optimization takes minutes."""
    data = np.linspace(-3, 3, 2048).reshape(2, 8, 128).astype("float16")
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(data.shape, "float16"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.nn.gelu_tanh(x)))
    (found,) = evaluate.interpret(builder.get(), [data])
    wide = data.astype(np.float32)
    expected = wide * 0.5 * (1 + np.tanh(0.7978845608 * (wide + 0.044715 * wide**3)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-3)
