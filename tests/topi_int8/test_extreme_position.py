"""argmax and argmin: the first position wins, along every axis, at every length and in every vector."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.rewrite import straight_line
from tests.cpus import TARGETS

from ..passes.modules import compile_and_run, module

FUNCTIONS = {"argmax": (relax.op.argmax, np.argmax), "argmin": (relax.op.argmin, np.argmin)}
SHAPES = [(3, 8), (2, 3, 5, 21), (40, 16), (3, 1, 37), (2, 256), (4, 257), (5, 7), (9,), (0x900, 64)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_position(shape, name, rng):
    function, reference = FUNCTIONS[name]
    for dtype, target in zip(cycle(("int8", "uint8")), TARGETS, strict=False):  # as many as this CPU runs
        keepdims = target == TARGETS[0]
        mod = module([(shape, dtype)], lambda emit, x, k=keepdims: emit(function(x, axis=-1, keepdims=k)))
        info = np.iinfo(dtype)
        # few values, so that many rows are all alike in their extreme
        low, high = (info.min, info.min + 3) if name == "argmax" else (info.max - 3, info.max)
        for data in (rng.integers(low, high, shape), rng.integers(info.min, info.max + 1, shape)):
            result = compile_and_run(mod, target, [data.astype(dtype)])[0]
            assert np.array_equal(result, reference(data, axis=-1, keepdims=keepdims))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_every_position_counts(dtype):
    info = np.iinfo(dtype)
    data = np.where(np.eye(37, dtype=bool), info.max, info.min).astype(dtype)
    mod = module([((37, 37), dtype)], lambda emit, x: emit(relax.op.argmax(x, axis=1)))
    assert np.array_equal(compile_and_run(mod, "native", [data])[0], np.arange(37))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["int8", "int32", "float32"])
def test_values_that_the_search_starts_from(dtype, name):
    """A whole line of the least or the greatest value of a dtype: its first position."""
    function, reference = FUNCTIONS[name]
    info = np.finfo(dtype) if dtype == "float32" else np.iinfo(dtype)
    data = np.array([[info.min] * 5, [info.max] * 5, [info.min, info.max] * 2 + [info.min]], dtype)
    for axis in (0, 1, None):
        mod = module([(data.shape, dtype)], lambda emit, x, a=axis: emit(function(x, axis=a)))
        expected = reference(data, axis=axis)
        assert np.array_equal(compile_and_run(mod, "native", [data])[0], expected)
        assert np.array_equal(interpret(mod, [data])[0], expected)


LINES = [((2, 5, 70), 1), ((2, 5, 70), 2), ((2, 5, 7, 13), 0), ((3, 21), 1), ((4, 4), 0), ((300,), 0), ((2, 3, 5), 1)]
LINES += [((3, 260, 3), 1), ((1, 1, 64), 1), ((2, 0x900), 1), ((2, 8, 0x200), 1), ((3, 65), 1), ((5, 2, 4), 1)]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("shape", "axis"), LINES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_position_among_values_of_every_dtype(shape, axis, name, rng):
    """Also of both zeros, which are equal, infinities and NaN, which is beyond all numbers."""
    function, reference = FUNCTIONS[name]
    dtypes = ("float32", "float16", "int32", "int16", "uint16", "int8", "uint8", "int64", "float64")
    for dtype, target in zip(dtypes, cycle(TARGETS), strict=False):
        keepdims = dtype == "int16"
        mod = module([(shape, dtype)], lambda emit, x, k=keepdims: emit(function(x, axis=axis, keepdims=k)))
        for data in _lines(np.dtype(dtype), shape, rng):
            result = compile_and_run(mod, target, [data])[0]
            assert np.array_equal(result, reference(data, axis=axis, keepdims=keepdims)), dtype


def _lines(dtype: np.dtype, shape: tuple[int, ...], rng: np.random.Generator) -> list[np.ndarray]:
    """Values of all sizes, and few different ones, so that many are equal."""
    if dtype.kind == "f":
        few = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.finfo(dtype).smallest_subnormal], dtype)
        chosen = rng.choice(few, shape)
        return [rng.standard_normal(shape).astype(dtype), chosen, np.where(rng.random(shape) < 0.1, np.nan, -chosen)]
    info = np.iinfo(dtype)
    ends = rng.choice(np.array([info.min, info.max, info.max - 1], dtype), shape)
    return [rng.integers(info.min, info.max, shape, dtype, endpoint=True), ends]


@pytest.mark.parametrize("function", [relax.op.argmax, relax.op.argmin], ids=["argmax", "argmin"])
@pytest.mark.parametrize("shape", [(1,), (1, 3)], ids=str)
def test_of_one_element(function, shape):
    """The position is written, whatever the memory held before."""
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with straight_line(builder, "main", [x]) as returns:
        returns(relax.Tuple([builder.emit(function(builder.emit(relax.op.exp(x)), 0, False))]))
    outputs = (TensorSpec("y", shape[1:], "int64"),)
    engine = qnn_ext.build(QnnModule(builder.get(), (TensorSpec("x", shape, "float32"),), outputs), num_threads=1)
    engine.prepare()
    engine._executor._workspace[...] = 1
    assert not np.any(engine(np.ones(shape, np.float32)))
