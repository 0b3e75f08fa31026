"""The bodies of loops go through the same passes as `main`."""

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op
from qnn_ext.compiling.coverage import coverage
from qnn_ext.frontends.loops import loop
from qnn_ext.interpreter import interpret
from qnn_ext.op.base import constant
from qnn_ext.op.loop import Loop
from qnn_ext.passes.bodies import every_binding, hoist_invariants, without_unused
from qnn_ext.passes.qdq_to_integer import qdq_to_integer
from qnn_ext.passes.rewrite import bindings_of, op_name
from tests.cases.loops import as_model, assembled

R = relax.op


def recurrence(trips, rng):
    """h = tanh(x + h · w), in float with quantize and dequantize around the product, as ONNX QDQ has it."""
    weight = constant(rng.integers(-90, 90, (8, 8)).astype(np.int8))

    def walk(a, x):
        def body(states, slices):
            q = a.emit(op.quantize(states[0], 1 / 128, 0, out_dtype="int8"))
            h, w = a.emit(op.dequantize(q, 1 / 128, 0)), a.emit(op.dequantize(weight, 1 / 256, 0))
            product = a.emit(op.quantize(a.emit(R.matmul(h, w)), 1 / 32, 3, out_dtype="int8"))
            new = a.emit(R.tanh(a.emit(R.add(slices[0], a.emit(op.dequantize(product, 1 / 32, 3))))))
            return [new], [product]

        states, outputs = loop(a, body, [constant(np.zeros((2, 8), np.float32))], [x], trips)
        return [*states, *outputs]

    return assembled([("x", (trips, 2, 8), "float32")], walk)


def test_a_qdq_body_becomes_integer(rng):
    mod = recurrence(5, rng)
    converted, notes = qdq_to_integer(mod)
    before, after = (coverage(as_model(one)) for one in (mod, converted))
    assert [(found.macs, found.share) for found in (before, after)] == [(5 * 2 * 64, 0), (5 * 2 * 64, 1)]
    assert all(note.operator in ("add", "tanh") for note in notes)
    x = rng.normal(size=(5, 2, 8)).astype(np.float32)
    for found, expected in zip(interpret(converted, [x]), interpret(mod, [x]), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_products_of_what_is_captured_are_hoisted(rng):
    """A product of a captured tensor leaves the loop, and the constant it multiplies with it; one of a state stays."""
    weight = constant(rng.integers(-9, 9, (4, 4)).astype(np.int32))

    def walk(a, x, y):
        def body(states, slices):
            turned = a.emit(R.permute_dims(weight))
            fixed = a.emit(R.matmul(y, turned))
            return [a.emit(R.add(a.emit(R.matmul(states[0], turned)), fixed))], [fixed]

        states, outputs = loop(a, body, [x], [], 3)
        return [*states, *outputs]

    mod = assembled([("x", (2, 4), "int32"), ("y", (2, 4), "int32")], walk)
    hoisted = hoist_invariants(mod)
    (found,) = (Loop.of(binding.value) for binding in bindings_of(hoisted["main"]) if Loop.of(binding.value))
    assert [op_name(binding.value) for binding in bindings_of(hoisted["main"])].count("matmul") == 1
    assert [op_name(binding.value) for binding in bindings_of(found.body)].count("matmul") == 1
    assert [rounds for binding, rounds in every_binding(hoisted) if op_name(binding.value) == "matmul"] == [1, 3]
    values = [rng.integers(-9, 9, (2, 4)).astype(np.int32) for _ in range(2)]
    for one, other in zip(interpret(hoisted, values), interpret(mod, values), strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_a_condition_may_skip_stays():
    def walk(a, x, going):
        def body(states, slices):
            return going, [a.emit(R.exp(x))], []

        return loop(a, body, [x], [], 4, condition=going)[0]

    mod = assembled([("x", (2,), "float32"), ("going", (), "bool")], walk)
    assert not any(op_name(binding.value) == "exp" for binding in bindings_of(hoist_invariants(mod)["main"]))


@pytest.mark.parametrize("conditional", [False, True])
def test_what_nothing_needs_is_no_state(conditional, rng):
    """A counter that nothing reads goes, and so do states that need each other only."""

    def walk(a, x, unused):
        def body(states, slices):
            count, total, other, further = states
            new = a.emit(R.add(total, slices[0]))
            results = [
                a.emit(R.add(count, constant(np.int32(1)))),
                new,
                a.emit(R.add(other, slices[1])),
                a.emit(R.multiply(further, a.emit(R.add(other, count)))),
            ]
            going = [a.emit(R.less(a.emit(R.max(new)), constant(np.int32(25))))] if conditional else []
            return *going, results, [new, results[2]]

        zero, row = constant(np.int32(0)), constant(np.zeros(3, np.int32))
        flags = {"condition": constant(np.bool_(True))} if conditional else {}
        states, outputs = loop(a, body, [zero, row, row, row], [x, unused], 4, backwards_out=[True, False], **flags)
        return [states[1], outputs[0]]

    mod = assembled([("x", (4, 3), "int32"), ("unused", (4, 3), "int32")], walk)
    trimmed = without_unused(mod)
    (found,) = (Loop.of(binding.value) for binding in bindings_of(trimmed["main"]) if Loop.of(binding.value))
    assert (len(found.states), len(found.sequences), found.backwards_out) == (1, 1, (True,))
    values = [rng.integers(0, 9, (4, 3)).astype(np.int32) for _ in range(2)]
    for one, other in zip(interpret(trimmed, values), interpret(mod, values), strict=True):
        np.testing.assert_array_equal(one, other)
