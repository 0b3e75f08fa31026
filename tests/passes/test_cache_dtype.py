"""Caches in 16 and 8 bits: what they hold after each call, that attention reads it as it is, errors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import QnnError
from qnn_ext.interpreter import interpret
from qnn_ext.module import State
from qnn_ext.op.attention import ATTENTION
from qnn_ext.passes.cache_dtype import with_cache_dtype
from tests.passes.test_attention import GROUPS, HEADS, ROOM, SIZE, group_query, kernels

STATES = {"past.*": "present.*"}


def rounded(rows, dtype):
    """Rows as a cache of this dtype holds them: its parts."""
    if dtype == "float16":
        return [rows.astype(np.float16)]
    scale = np.abs(rows).max(axis=-1, keepdims=True) / np.float32(127)
    scale[scale == 0] = 1
    return [np.rint(rows / scale).astype(np.int8), scale]


def real(parts):
    values, *scale = parts
    return values.astype(np.float32) * scale[0] if scale else values.astype(np.float32)


def qkv_of(rng, count):
    return rng.normal(size=(1, count, (HEADS + 2 * GROUPS) * SIZE)).astype(np.float32)


def model(count):
    """Attention whose keys and values are parts of its input."""
    return qnn_ext.from_onnx(group_query(count, do_rotary=0), states=STATES)


def heads_of(qkv, count):
    """query, key and value (1, heads, count, SIZE)"""
    ends = np.cumsum([HEADS, GROUPS]) * SIZE
    return [part.reshape(1, count, -1, SIZE).swapaxes(1, 2) for part in np.split(qkv, ends, axis=-1)]


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("target, threads", [("native", 1), ("native", 2), ("x86-64", 1)])
def test_rows_are_rounded_when_they_are_written(dtype, count, target, threads, rng):
    """What the cache holds is exact; attention reads that, within its own bound."""
    engine = qnn_ext.build(model(count), target, num_threads=threads, cache_dtype=dtype)
    if target == "native":
        assert "attention" in kernels(engine) and not any("matmul" in name for name in kernels(engine))
    cache = [rounded(np.zeros((1, GROUPS, ROOM, SIZE), np.float32), dtype) for _ in range(2)]
    for before in (0, count, ROOM - count):
        qkv, last = qkv_of(rng, count), np.array([before + count - 1], np.int32)
        qkv[0, 0, HEADS * SIZE : (HEADS + 1) * SIZE] = 0  # a key of zeros
        query, *new = heads_of(qkv, count)
        for parts, rows in zip(cache, new, strict=True):
            for part, values in zip(parts, rounded(rows, dtype), strict=True):
                part[:, :, before : before + count] = values
        found = engine(qkv, last)
        for state, part in zip(engine.state_values(), [part for parts in cache for part in parts], strict=True):
            np.testing.assert_array_equal(state, part)
        grouped = query.reshape(1, GROUPS, -1, SIZE)
        positions = before + np.arange(count)[None]
        expected = ATTENTION.reference(grouped, *map(real, cache), positions, scale=SIZE**-0.5)
        expected = expected.reshape(1, HEADS, count, SIZE).swapaxes(1, 2).reshape(found.shape)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_interpreted(dtype, rng):
    module = with_cache_dtype(model(2), dtype)
    check_steps(module, qnn_ext.build(module, num_threads=1), rng)


def check_steps(module, engine, rng):
    """Two calls give what the interpreter does, and the same rows in the caches."""
    states = [state.initial for state in module.states]
    for before in (0, 2):
        inputs = qkv_of(rng, 2), np.array([before + 1], np.int32)
        expected, *states = interpret(module.ir, [*inputs, *states])
        np.testing.assert_allclose(engine(*inputs), expected, rtol=0, atol=1e-5)
        for found, state in zip(engine.state_values(), states, strict=True):
            np.testing.assert_array_equal(found, state)


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_initial_rows(dtype, rng):
    module = model(1)
    given = [rng.normal(size=state.initial.shape).astype(np.float32) for state in module.states]
    states = [State(state.name, array) for state, array in zip(module.states, given, strict=True)]
    narrow = with_cache_dtype(replace(module, states=tuple(states)), dtype)
    expected = [part for array in given for part in rounded(array, dtype)]
    for state, array in zip(narrow.states, expected, strict=True):
        np.testing.assert_array_equal(state.initial, array)
    names = [name for state in states for name in (state.name, f"{state.name}.scale")]
    assert [state.name for state in narrow.states] == (names if dtype == "int8" else names[::2])


def test_several_shapes_share_a_narrow_cache(rng):
    engine = qnn_ext.build([model(1), model(4)], num_threads=1, cache_dtype="int8")
    alone = qnn_ext.build(model(1), num_threads=1, cache_dtype="int8")
    (many,) = engine.others
    qkv = qkv_of(rng, 5)
    many(qkv[:, :4], np.array([3], np.int32))
    found = engine(qkv[:, 4:], np.array([4], np.int32))
    for index in range(5):
        expected = alone(qkv[:, index : index + 1], np.array([index], np.int32))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_saved_and_loaded(tmp_path, rng):
    engine = qnn_ext.build(model(1), num_threads=1, cache_dtype="int8")
    engine.save(tmp_path / "model.qnn")
    loaded = qnn_ext.load(tmp_path / "model.qnn")
    for index in range(3):
        inputs = qkv_of(rng, 1), np.array([index], np.int32)
        np.testing.assert_array_equal(loaded(*inputs), engine(*inputs))
    assert [state.initial.dtype for state in loaded.states] == [np.int8, np.float32] * 2


def test_errors():
    module = model(1)
    with pytest.raises(QnnError, match="cache_dtype: must be one of 'model', 'float16', 'int8', found 'int4'"):
        qnn_ext.build(module, cache_dtype="int4")
    data = Path(qnn_ext.__file__).parent / "data"
    with pytest.raises(QnnError, match="has no state in float32 into which it writes rows"):
        qnn_ext.build(qnn_ext.from_onnx(data / "digits_cnn_float32.onnx"), cache_dtype="int8")
    assert qnn_ext.build(module, num_threads=1).states[0].initial.dtype == np.float32
