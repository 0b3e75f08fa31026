"""The loops that frontends write: what a body may use, and what it becomes."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext.errors import LimitError, ModelFormatError
from qnn_ext.frontends.assembly import Conversion
from qnn_ext.frontends.loops import loop
from qnn_ext.interpreter import interpret
from qnn_ext.op.base import constant
from qnn_ext.op.loop import Loop
from qnn_ext.passes.rewrite import bindings_of
from tests.cases.loops import assembled

R = relax.op


def loops_of(mod):
    return [found for found in (Loop.of(binding.value) for binding in bindings_of(mod["main"])) if found]


def test_a_body_captures_what_it_uses_from_outside(rng):
    weight = rng.integers(-5, 5, (3, 4)).astype(np.int32)

    def walk(assembly, x, state, other):
        node = Conversion(assembly, lambda: "node 'n'")
        doubled, unused = node.emit(R.add(other, other)), node.emit(R.multiply(other, other))

        def body(states, slices):
            product = node.emit(R.matmul(slices[0], constant(weight)))
            node.emit(R.multiply(product, unused))
            new = node.emit(R.add(node.emit(R.add(states[0], product)), doubled))
            return [new], [doubled, product]

        states, outputs = loop(node, body, [state], [x], 5)
        return [*states, *outputs]

    mod = assembled([("x", (5, 2, 3), "int32"), ("state", (2, 4), "int32"), ("other", (4,), "int32")], walk)
    (found,) = loops_of(mod)
    assert [var.name for var in found.captured] != [] and len(found.captured) == 1
    assert len(bindings_of(found.body)) == 4  # what nothing needs is gone
    x, state, other = (rng.integers(-9, 9, shape).astype(np.int32) for shape in ((5, 2, 3), (2, 4), (4,)))
    final, doubled, products = interpret(mod, [x, state, other])
    np.testing.assert_array_equal(products, x @ weight)
    np.testing.assert_array_equal(doubled, np.broadcast_to(2 * other, (5, 4)))
    np.testing.assert_array_equal(final, state + (x @ weight).sum(axis=0) + 10 * other)


def test_a_loop_within_a_loop(rng):
    def walk(assembly, x):
        def outer(states, slices):
            def inner(states, parts):
                new = assembly.emit(R.add(states[0], parts[0]))
                return [new], [assembly.emit(R.multiply(new, slices[1]))]

            (total,), (products,) = loop(assembly, inner, [states[0]], [slices[0]], 3)
            return [total], [products]

        states, outputs = loop(assembly, outer, [constant(np.int32(7))], [x, constant(np.int32([1, 10]))], 2)
        return [*states, *outputs]

    x = rng.integers(-9, 9, (2, 3)).astype(np.int32)
    total, products = interpret(assembled([("x", (2, 3), "int32")], walk), [x])
    sums = 7 + np.cumsum(x.reshape(-1)).reshape(2, 3)
    assert total == sums[-1, -1]
    np.testing.assert_array_equal(products, sums * np.int32([[1], [10]]))


def test_a_condition(rng):
    def walk(assembly, limit):
        def body(states, slices):
            new = assembly.emit(R.add(states[0], constant(np.int32(3))))
            return assembly.emit(R.less(new, limit)), [new], []

        (final,), _ = loop(assembly, body, [constant(np.int32(0))], [], 10, condition=constant(np.bool_(True)))
        return [final]

    mod = assembled([("limit", (), "int32")], walk)
    assert [int(interpret(mod, [np.int32(limit)])[0]) for limit in (-1, 3, 4, 20, 99)] == [3, 3, 6, 21, 30]


def test_no_round_leaves_no_loop():
    def walk(assembly, x):
        states, outputs = loop(assembly, lambda states, slices: (states, states), [x], [], 0)
        return [*states, *outputs]

    mod = assembled([("x", (2,), "int8")], walk)
    assert not loops_of(mod)
    state, stacked = interpret(mod, [np.int8([1, 2])])
    np.testing.assert_array_equal(state, [1, 2])
    assert stacked.shape == (0, 2)
    assert stacked.dtype == np.int8


def test_a_state_that_grows():
    def walk(assembly, x):
        return loop(assembly, lambda states, _: ([assembly.emit(R.concat([states[0]] * 2))], []), [x], [], 2)[0]

    with pytest.raises(ModelFormatError, match=r"state 0 of the loop changes from int8 of shape \(2,\) to int8 of .*4"):
        assembled([("x", (2,), "int8")], walk)


def test_outputs_too_large():
    def walk(assembly, x):
        return loop(assembly, lambda states, _: (states, states), [x], [], 2**31)[1]

    with pytest.raises(LimitError, match="elements"):
        assembled([("x", (2,), "int8")], walk)
