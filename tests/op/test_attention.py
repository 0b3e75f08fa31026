"""qnn.attention: its reference against PyTorch, its kernels against the reference, errors."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.errors import ShapeError
from qnn_ext.op.attention import ATTENTION
from tests.cases.loops import as_model, assembled

NATIVE = "native"


def operands(rng, batch, groups, rows, length, size, values):
    query = rng.normal(size=(batch, groups, rows, size))
    key, value = (rng.normal(size=(batch, groups, length, width)) for width in (size, values))
    return [array.astype(np.float32) for array in (query, key, value)]


def module(arrays, scale):
    names = ("query", "key", "value", "positions", "key_scale", "value_scale")
    inputs = [(name, array.shape, str(array.dtype)) for name, array in zip(names, arrays, strict=False)]
    return as_model(assembled(inputs, lambda a, *values: [a.emit(op.attention(*values, scale=scale))]))


def tolerance(query, key, value, scale):
    """A score's error, by `attention`'s docstring, changes a result by twice as much relative to the values; and sums
    of as many products as there are keys."""
    products = np.abs(query).astype(np.float64) @ np.abs(key).astype(np.float64).swapaxes(2, 3)
    score = (query.shape[-1] + 4) * 2**-24 * scale * products.max()
    return (2 * score + (key.shape[2] + 16) * 2**-24) * np.abs(value).max()


def test_reference_is_pytorchs(rng):
    torch = pytest.importorskip("torch")
    query, key, value = operands(rng, 2, 3, 4, 9, 5, 7)
    positions = np.array([[0, 8, 3, 5], [2, 2, 7, 1]])
    mask = np.arange(9) <= positions[:, None, :, None]
    tensors = map(torch.from_numpy, (query, key, value))
    expected = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=torch.from_numpy(mask), scale=0.3)
    found = ATTENTION.reference(query, key, value, positions, scale=0.3)
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-6)
    twice = ATTENTION.reference(np.tile(query, (1, 1, 2, 1)), key, value, positions, scale=0.3)
    np.testing.assert_array_equal(twice, np.tile(found, (1, 1, 2, 1)))


SHAPES = [
    # batch, groups, rows, length, size, values, queries, samples
    (1, 2, 5, 64, 16, 16, 1, 1),  # a token, five heads in a group
    (1, 1, 1, 7, 3, 8, 1, 1),
    (2, 3, 8, 20, 8, 24, 8, 2),
    (2, 1, 26, 13, 5, 32, 13, 1),  # two heads, rows that fill no tile
    (1, 2, 48, 12, 64, 64, 16, 1),
    (1, 1, 9, 6, 4, 7, 3, 1),  # values that make no vectors
    (1, 3, 1, 21, 32, 16, 1, 1),  # few rows: each has several lanes, as many as divide the size
    (2, 2, 2, 19, 24, 32, 2, 2),
    (1, 2, 3, 7, 8, 16, 1, 1),
    (1, 1, 1, 40, 12, 16, 1, 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads, target", [(1, NATIVE), (2, NATIVE), (1, "x86-64")])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.one_in(3)
def test_kernels(shape, threads, target, dtype, rng):
    *sizes, queries, samples = shape
    arrays = operands(rng, *sizes)
    length = arrays[1].shape[2]
    positions = rng.integers(0, length, (samples, queries)).astype(dtype)
    positions[0, 0] = [-5, 0, length - 1, 10 * length][rng.integers(4)]  # outside, the nearest inside counts
    engine = qnn_ext.build(module([*arrays, positions], 0.25), target, num_threads=threads)
    expected = ATTENTION.reference(*arrays, positions, scale=0.25)
    np.testing.assert_allclose(engine(*arrays, positions), expected, rtol=0, atol=tolerance(*arrays, 0.25))


@pytest.mark.parametrize("target", [NATIVE, "x86-64"])
def test_keys_and_values_in_float16(target, rng):
    query, key, value = operands(rng, 1, 2, 10, 33, 24, 16)
    key, value, positions = key.astype(np.float16), value.astype(np.float16), rng.integers(0, 33, (1, 5))
    engine = qnn_ext.build(module([query, key, value, positions], 0.2), target, num_threads=1)
    expected = ATTENTION.reference(query, key, value, positions, scale=0.2)
    atol = tolerance(query, key.astype(np.float32), value, 0.2)
    np.testing.assert_allclose(engine(query, key, value, positions), expected, rtol=0, atol=atol)


def integers(rng, *sizes):
    """query, key and value in int8 with extremes, and their scales, which differ much between rows."""
    query, *floats = operands(rng, *sizes)
    rows = [rng.integers(-128, 128, array.shape).astype(np.int8) for array in floats]
    scales = [(2.0 ** rng.uniform(-9, -5, (*array.shape[:3], 1))).astype(np.float32) for array in floats]
    return query, rows, scales


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("threads, target", [(1, NATIVE), (2, NATIVE), (1, "x86-64")])
@pytest.mark.one_in(3)
def test_keys_and_values_in_int8(shape, threads, target, rng):
    *sizes, queries, samples = shape
    query, rows, scales = integers(rng, *sizes)
    length = rows[0].shape[2]
    positions = rng.integers(0, length, (samples, queries))
    positions[0, 0] = [-5, 0, length - 1, 10 * length][rng.integers(4)]
    arrays = [query, *rows, positions, *scales]
    engine = qnn_ext.build(module(arrays, 0.25), target, num_threads=threads)
    real = [integer * scale for integer, scale in zip(rows, scales, strict=True)]
    expected = ATTENTION.reference(*arrays, scale=0.25)
    np.testing.assert_allclose(engine(*arrays), expected, rtol=0, atol=tolerance(query, *real, 0.25))
    np.testing.assert_array_equal(expected, ATTENTION.reference(query, *_doubles(rows, scales), positions, scale=0.25))


def _doubles(rows, scales):
    return [integer.astype(np.float64) * scale for integer, scale in zip(rows, scales, strict=True)]


def test_scales_of_keys_that_no_query_sees_are_not_read(rng):
    query, rows, scales = integers(rng, 1, 2, 4, 50, 16, 16)
    positions = np.array([[3, 11]])
    engine = qnn_ext.build(module([query, *rows, positions, *scales], 0.5), num_threads=1)
    expected = engine(query, *rows, positions, *scales)
    for scale in scales:
        scale[:, :, 12:] = np.nan
    np.testing.assert_array_equal(engine(query, *rows, positions, *scales), expected)


@pytest.mark.parametrize("large", [-1e30, 1e30])
def test_scores_of_any_size(large, rng):
    query, key, value = operands(rng, 1, 1, 4, 10, 8, 8)
    key[..., 4, :] = large
    positions = np.array([[1, 3, 5, 9]])
    engine = qnn_ext.build(module([query, key, value, positions], 1e-3), num_threads=1)
    found = engine(query, key, value, positions)
    np.testing.assert_allclose(found, ATTENTION.reference(query, key, value, positions, scale=1e-3), rtol=0, atol=1e-5)


def test_keys_that_no_query_sees_are_not_read(rng):
    """What lies behind the last position may be anything, NaN too: a cache that was never written."""
    query, key, value = operands(rng, 1, 2, 4, 50, 16, 16)
    positions = np.array([[3, 11]])
    engine = qnn_ext.build(module([query, key, value, positions], 0.5), num_threads=1)
    expected = engine(query, key, value, positions)
    key[:, :, 12:], value[:, :, 12:] = np.nan, np.nan
    np.testing.assert_array_equal(engine(query, key, value, positions), expected)
    np.testing.assert_allclose(ATTENTION.reference(query, key, value, positions, scale=0.5), expected, atol=1e-5)


@pytest.mark.parametrize(
    "shapes, message",
    [
        (((1, 2, 4, 8), (1, 2, 9, 7), (1, 2, 9, 8), (1, 4)), "do not fit"),
        (((1, 2, 4, 8), (1, 3, 9, 8), (1, 3, 9, 8), (1, 4)), "do not fit"),
        (((1, 2, 4, 8), (1, 2, 9, 8), (1, 2, 8, 8), (1, 4)), "do not fit"),
        (((1, 2, 4, 8), (1, 2, 0, 8), (1, 2, 0, 8), (1, 4)), "do not fit"),
        (((2, 2, 4, 8), (2, 2, 9, 8), (2, 2, 9, 8), (3, 4)), "positions must have shape"),
        (((1, 2, 4, 8), (1, 2, 9, 8), (1, 2, 9, 8), (1, 3)), "positions must have shape"),
        (((1, 2, 4), (1, 2, 9, 8), (1, 2, 9, 8), (1, 4)), "query must have 4 dimensions"),
    ],
)
def test_errors(shapes, message):
    dtypes = ("float32", "float32", "float32", "int32")
    values = [
        relax.Var(str(i), relax.TensorType(list(s), d)) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    with pytest.raises(ShapeError, match=message):
        relax.BlockBuilder().normalize(op.attention(*values, scale=1.0))


@pytest.mark.parametrize(
    "dtype, scales, message",
    [
        ("int8", (), "int8 have a scale for each row"),
        ("float32", ((1, 2, 9, 1), (1, 2, 9, 1)), "others have none; found 2"),
        ("int8", ((1, 2, 9, 1), (1, 2, 9)), "must have shape"),
        ("int8", ((1, 2, 1, 1), (1, 2, 9, 1)), "must have shape"),
        ("uint8", (), "uint8"),
    ],
)
def test_errors_of_scales(dtype, scales, message):
    kinds = ((1, 2, 4, 8), "float32"), ((1, 2, 9, 8), dtype), ((1, 2, 9, 8), dtype), ((1, 4), "int32")
    kinds = (*kinds, *((scale, "float32") for scale in scales))
    values = [relax.Var(str(i), relax.TensorType(list(s), d)) for i, (s, d) in enumerate(kinds)]
    with pytest.raises(ShapeError, match=message):
        relax.BlockBuilder().normalize(op.attention(*values, scale=1.0))
