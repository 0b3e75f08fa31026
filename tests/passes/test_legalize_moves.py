"""Moves and searches of floats: which of them become part of other kernels."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from tests.compiling.program.small import small_module

FIRST, SECOND = (constant(np.array(rows, np.int64)) for rows in ([0, 0, 1, 3, 2], [1, 2, 2, 3, 0]))


def interpolated(data):
    """The mean of rows at two lists of positions along two axes."""
    corners = [
        relax.op.take(relax.op.take(data, rows, 2), columns, 1) for rows in (FIRST, SECOND) for columns in (FIRST,)
    ]
    return [relax.op.multiply(relax.op.add(*corners), constant(np.float32(0.5)))]


def joined(data):
    return [relax.op.concat([relax.op.take(data, FIRST, 1), data], 1)]


@pytest.mark.parametrize(
    "build, kernels",
    [
        (lambda x: interpolated(x), 1),
        (lambda x: interpolated(relax.op.sum(x, 0, keepdims=True)), 2),  # which is not computed again
        (lambda x: interpolated(relax.op.exp(x)), 4),  # nor is this
        (joined, 2),
    ],
    ids=["input", "sum", "function", "joined"],
)
def test_takes_are_fused(build, kernels, rng):
    x = rng.standard_normal((2, 4, 4, 7)).astype(np.float32)
    module = small_module(lambda builder, params: build(*params), [(x.shape, "float32")])
    engine = qnn_ext.build(module, num_threads=1)
    np.testing.assert_array_equal(engine(x), interpret(module.ir, [x])[0])
    assert len(engine.kernels) == kernels, [kernel.symbol for kernel in engine.kernels]


def test_positions_from_data_are_not(rng):
    x, rows = rng.standard_normal((4, 7)).astype(np.float32), np.array([3, 0, 9, -1], np.int32)
    module = small_module(
        lambda builder, params: [relax.op.abs(relax.op.take(*params, 0, mode="clip"))],
        [(x.shape, "float32"), (rows.shape, "int32")],
    )
    engine = qnn_ext.build(module, num_threads=1)
    np.testing.assert_array_equal(engine(x, rows), np.abs(x[[3, 0, 3, 0]]))
    assert len(engine.kernels) == 2


@pytest.mark.parametrize("axis", [1, 2])
def test_the_position_of_an_extreme_is_a_kernel_of_its_own(axis, rng):
    """Fused, it would jump through all that its data are computed from, or compute them value by value."""
    x, y = (rng.standard_normal((2, 5, 70)).astype(np.float32) for _ in range(2))
    module = small_module(
        lambda builder, params: [relax.op.argmax(builder.emit(relax.op.add(*params)), axis)],
        [(x.shape, "float32")] * 2,
    )
    engine = qnn_ext.build(module, num_threads=1)
    np.testing.assert_array_equal(engine(x, y), (x + y).argmax(axis))
    assert len(engine.kernels) == 2
