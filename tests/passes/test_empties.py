"""Tensors without elements: joins leave them out, and what is computed from them is a constant, in what TVM's virtual
machine runs too."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.op.base import constant
from qnn_ext.passes.empties import without_empties
from qnn_ext.passes.rewrite import bindings_of, op_name
from tests.compiling.program.small import small_module
from tests.quantize.networks import float_module

R = relax.op


def nothing(emit, x):
    """Of a sorted tensor, so that no program is made of the model."""
    return emit(R.exp(emit(R.strided_slice(emit(R.sort(x)), [0], [2], [2]))))


BODIES = {
    "a join with another": lambda emit, x: emit(R.exp(emit(R.concat([x, nothing(emit, x)], 0)))),
    "a join of three": lambda emit, x: emit(R.concat([nothing(emit, x), x, constant(np.ones(3, np.float32))], 0)),
}


@pytest.mark.parametrize("name", BODIES)
def test_joins_leave_them_out(name, rng):
    module = float_module((5,), BODIES[name])
    names = [op_name(binding.value) for binding in bindings_of(without_empties(module.ir)["main"])]
    assert names.count("concat") == (name == "a join of three")
    x = rng.standard_normal(5).astype(np.float32)
    np.testing.assert_allclose(qnn_ext.build(module, num_threads=1)(x), qnn_ext.Interpreter(module)(x), rtol=1e-6)


def no_columns(emit, x, count=4):
    """(count, 0)"""
    return emit(R.strided_slice(emit(R.broadcast_to(x, (count, 5))), [1], [2], [2]))


def product(emit, x):
    """In batches, whose sum is reshaped, and elementwise operators behind it."""
    rows = emit(R.expand_dims(no_columns(emit, x), 0))
    sums = emit(R.matmul(rows, constant(np.zeros((1, 0, 3), np.float32))))
    return emit(R.exp(emit(R.add(emit(R.reshape(sums, (2, 6))), constant(np.ones((2, 6), np.float32))))))


FROM_NOTHING = {
    "a product": product,
    "a softmax": lambda emit, x: emit(R.nn.softmax(no_columns(emit, x))),
    "a lookup": lambda emit, x: emit(R.take(no_columns(emit, x), constant(np.arange(2)), 0)),
    "a sum": lambda emit, x: emit(R.sum(no_columns(emit, x), 1)),
    "a mean": lambda emit, x: emit(R.mean(no_columns(emit, x), 1)),
    "a maximum": lambda emit, x: emit(R.max(no_columns(emit, x), 1)),
    "a minimum of integers": lambda emit, x: emit(R.min(emit(R.astype(no_columns(emit, x), "int32")), 1)),
    "padding": lambda emit, x: emit(R.nn.pad(no_columns(emit, x), [0, 0, 1, 1], pad_value=2.5)),
}


@pytest.mark.parametrize("sorts", [False, True])
@pytest.mark.parametrize("name", FROM_NOTHING)
def test_computed_from_nothing(name, sorts, rng):
    def build(emit, x):
        return FROM_NOTHING[name](emit, emit(R.sort(x)) if sorts else x)

    module = float_module((5,), build)
    x = rng.standard_normal(5).astype(np.float32)
    wanted = qnn_ext.Interpreter(module)(x)
    got = qnn_ext.build(module, num_threads=1)(x)
    np.testing.assert_array_equal(got, wanted, strict=True)
    of_none = {"a sum": 0, "a mean": np.nan, "a maximum": -np.inf, "a minimum of integers": 2**31 - 1, "padding": 2.5}
    if name in of_none:
        np.testing.assert_array_equal(got, np.full(got.shape, of_none[name], got.dtype))


@pytest.mark.parametrize("name", ["a softmax", "a lookup"])
def test_an_output_beside_a_sorted_one(name, rng):
    def build(builder, params):
        (x,) = params
        return [builder.emit(R.sort(x)), FROM_NOTHING[name](builder.emit, x)]

    module = small_module(build, [((5,), "float32")])
    x = rng.standard_normal(5).astype(np.float32)
    ordered, empty = qnn_ext.build(module, num_threads=1)(x)
    np.testing.assert_array_equal(ordered, np.sort(x))
    assert empty.shape == module.outputs[1].shape and not empty.size
