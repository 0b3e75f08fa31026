"""Sorting of integers and floats of all sizes."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.compiling.build import lower_module
from qnn_ext.op.evaluate import interpret
from tests.cpus import cpu_target

from .modules import run_lowered

OPERATORS = {
    "sort": lambda x: relax.op.sort(x, 0, descending=True),
    "argsort": lambda x: relax.op.argsort(x, -1, dtype="int32"),
    "values": lambda x: relax.op.topk(x, 3, -1, "values", largest=False, dtype="int64"),
    "indices": lambda x: relax.op.topk(x, 2, 0, "indices", largest=True, dtype="int32"),
    "both": lambda x: relax.op.topk(x, 4, -1, "both", largest=True, dtype="int64"),
}
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def sorted_in(call, x):
    """What a kernel for the CPU gives, and what the interpreter does."""
    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with builder.function("main", [data]):
        with builder.dataflow():
            found = builder.emit(call(data))
            parts = [found[0], found[1]] if isinstance(found.ty, relax.TupleType) else [found]
            result = builder.emit_output(relax.Tuple([builder.emit(relax.op.flip(part, 0)) for part in parts]))
        builder.emit_func_output(result)
    target = cpu_target("x86-64", 1)
    actual = run_lowered(lower_module(builder.get(), target), [x], target)
    return list(zip(actual, interpret(builder.get(), [x]), strict=True))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", OPERATORS)
def test_equals_the_interpreter(rng, name, dtype):
    info = np.iinfo(dtype)
    ends = [*range(int(info.min), int(info.min) + 4), *range(int(info.max) - 4, int(info.max) + 1)]
    x = np.stack([rng.permutation(np.array(ends, dtype)) for _ in range(5)])
    x[0, :3] = info.max, info.max, info.max // 2 + 1  # equal ones, and the highest bit alone
    for actual, expected in sorted_in(OPERATORS[name], x):
        np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("count", "length"), [(17, 34), (18, 35), (17, 1000), (100, 1000), (499, 1000), (17, 33)])
def test_selection_by_a_heap(rng, count, length, largest, dtype):
    """Values of which many are equal, of which few are, and sorted ones, in both directions: along the second axis."""
    drawn = [rng.integers(0, most, (length, 3)) for most in (4, 250)]
    rising = np.repeat(np.arange(length)[:, None] % 256, 3, 1)
    x = np.stack([*drawn, rising, rising[::-1]]).astype(dtype)

    def call(data):
        return relax.op.topk(data, count, 1, "both", largest=largest, dtype="int64")

    for actual, expected in sorted_in(call, x):
        np.testing.assert_array_equal(actual, expected, strict=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("count", [5, 20, 60])
def test_nan_is_the_largest(rng, count, largest, dtype):
    """By insertion, by a heap, and by merging; among zeros of both signs and infinities, which are as they came."""
    special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-7], (4, 64))
    x = np.where(rng.random((4, 64)) < 0.6, special, rng.standard_normal((4, 64))).astype(dtype)

    def call(data):
        return relax.op.topk(data, count, 1, "both", largest=largest, dtype="int32")

    sign = -1 if largest else 1
    order = []
    for row in x:
        missing = [place for place in range(64) if np.isnan(row[place])]
        numbers = sorted(set(range(64)) - set(missing), key=lambda place, row=row: (sign * row[place], place))
        order.append((missing + numbers if largest else numbers + missing)[:count])
    (values, of_interpreter), (positions, expected) = sorted_in(call, x)
    np.testing.assert_array_equal(positions, expected, strict=True)
    np.testing.assert_array_equal(positions[::-1], order)
    np.testing.assert_array_equal(values, of_interpreter, strict=True)
    np.testing.assert_array_equal(values[::-1], np.take_along_axis(x, np.array(order), 1))
