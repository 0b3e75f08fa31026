"""Where a quantize may move, and where it has to stay."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.qdq_to_integer import qdq_to_integer
from qnn_ext.passes.qdq_to_integer.hoist import hoist_quantize

from .qdq import RNG, Graph, module, operators, run

R = relax.op
IMAGE = RNG.normal(size=(2, 4, 6, 8)).astype(np.float32)


def hoisted(function, *inputs) -> list[str]:
    """The operators after hoisting, which changes no bit of the results."""
    before = module(function, *inputs)
    after = hoist_quantize(before)
    for one, two in zip(interpret(before, list(inputs)), interpret(after, list(inputs)), strict=True):
        np.testing.assert_array_equal(one, two)
    return operators(after)


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize("dtype,zero_point", [("uint8", 0), ("uint8", 117), ("int8", -7), ("int16", 300)])
def test_chain_of_moves(dtype, zero_point, reciprocal):
    def model(g: Graph, x):
        y = g.emit(R.nn.relu(g.emit(R.nn.max_pool2d(x, (3, 3), (1, 1), (1, 1)))))
        y = g.emit(R.nn.pad(y, [0, 0, 0, 0, 1, 1, 1, 1]))
        y = g.emit(R.concat([g.emit(R.clip(y, -0.7, 0.9)), constant(np.full((2, 1, 8, 10), 0.3, np.float32))], 1))
        return g.q(g.emit(R.permute_dims(g.emit(R.reshape(y, (10, 80))))), 0.031, zero_point, dtype, reciprocal)

    found = hoisted(model, IMAGE)
    assert found[0] == "qnn.quantize" and found.count("qnn.quantize") == 1


def test_relu_at_the_lowest_value_is_no_operator():
    assert hoisted(lambda g, x: g.q(g.emit(R.nn.relu(x)), 0.1, 0), IMAGE) == ["qnn.quantize"]


def test_two_readers_with_equal_parameters_share_one_quantize():
    def model(g: Graph, x):
        y = g.emit(R.nn.relu(g.emit(R.negative(x))))
        return [g.q(y, 0.1, 3), g.q(g.emit(R.flip(y, 1)), 0.1, 3)]

    found = hoisted(model, IMAGE)
    assert found.count("qnn.quantize") == 1 and found.index("qnn.quantize") == 1


@pytest.mark.parametrize("other", ["output", "quantize", "operator"])
def test_another_reader_keeps_the_value_real(other):
    def model(g: Graph, x):
        y = g.emit(R.nn.relu(g.emit(R.negative(x))))
        others = {"output": y, "quantize": g.q(y, 0.2, 3), "operator": g.emit(R.exp(y))}
        return [g.q(y, 0.1, 3), others[other]]

    assert "nn.relu" in hoisted(model, IMAGE)


def test_quantize_that_is_an_output_itself():
    def model(g: Graph, x):
        q = g.q(g.emit(R.nn.relu(x)), 0.1, 3)
        return [q, g.dq(q, 0.1, 3)]

    assert hoisted(model, IMAGE) == ["qnn.quantize", "clip", "qnn.dequantize"]


def test_split_that_is_quantized_alike():
    def model(g: Graph, x):
        parts = g.emit(R.split(g.emit(R.negative(x)), 2, 1))
        return [g.q(g.emit(relax.TupleGetItem(parts, i)), 0.1, 3) for i in range(2)]

    assert hoisted(model, IMAGE) == ["negative", "qnn.quantize", "split"]


def test_split_that_is_quantized_differently():
    def model(g: Graph, x):
        parts = g.emit(R.split(g.emit(R.negative(x)), 2, 1))
        return [g.q(g.emit(relax.TupleGetItem(parts, i)), 0.1 + i, 3) for i in range(2)]

    assert hoisted(model, IMAGE) == ["negative", "split", "qnn.quantize", "qnn.quantize"]


def test_tuple_that_has_no_integers():
    def model(g: Graph, x):
        result = g.emit(R.topk(x, 2))
        return [g.q(g.emit(relax.TupleGetItem(result, 0)), 0.1, 3), g.emit(relax.TupleGetItem(result, 1))]

    assert hoisted(model, IMAGE) == ["topk", "qnn.quantize"]


def test_scales_per_channel_and_at_run_time_stay():
    from qnn_ext import op as qnn

    def model(g: Graph, x):
        y = g.emit(R.nn.relu(x))
        scales = constant(np.float32([0.1, 0.2, 0.3, 0.4]))
        q = g.emit(qnn.quantize(y, scales, constant(np.zeros(4, np.int32)), axis=1))
        return [q, g.emit(qnn.quantize(y, g.emit(R.max(R.abs(x))), constant(np.int32(0))))]

    assert "nn.relu" in hoisted(model, IMAGE)


def test_maximum_with_a_constant():
    def model(g: Graph, x):
        bound = constant(RNG.normal(size=(4, 1, 1)).astype(np.float32))
        return g.q(g.emit(R.maximum(x, bound)), 0.05, 100)

    assert hoisted(model, IMAGE) == ["qnn.quantize", "maximum"]


def test_where_keeps_its_condition():
    def model(g: Graph, x):
        condition = g.emit(R.greater(x, constant(np.float32(0.2))))
        return g.q(g.emit(R.where(condition, x, constant(np.float32(-np.inf)))), 0.05, 100)

    assert hoisted(model, IMAGE) == ["greater", "qnn.quantize", "where"]


def test_constants_are_computed_now():
    def model(g: Graph, x):
        c = g.emit(R.multiply(constant(np.float32([1, 2])), constant(np.float32([3, 4]))))
        return [g.emit(R.add(x, g.emit(R.sum(c)))), g.q(g.emit(R.reshape(c, (2, 1))), 0.1, 3)]

    assert hoisted(model, np.float32([5.0])) == ["add"]


def test_modules_without_quantization_come_back_as_they_are():
    mod = module(lambda g, x: g.emit(R.nn.relu(x)), IMAGE)
    after, notes = qdq_to_integer(mod)
    assert operators(after) == ["nn.relu"] and not notes


@pytest.mark.parametrize("operator", [R.nn.relu, R.tanh, R.negative])
def test_deep_graphs(operator):
    """A thousand operators between dequantize and quantize, and a thousand whose values are needed as they are."""

    def model(g: Graph, x):
        y = z = g.dq(x, 0.1, 3)
        for _ in range(1000):
            y, z = g.emit(operator(y)), g.emit(R.nn.relu(g.emit(R.add(z, z))))
        return [g.q(y, 0.1, 3), z]

    data = np.arange(6).astype(np.uint8)
    outcome = run(model, data, compiled=False)
    np.testing.assert_array_equal(outcome.got[0], outcome.expected[0])
    np.testing.assert_array_equal(outcome.got[1], outcome.expected[1])


def test_deep_network_compiles_layer_by_layer():
    def model(g: Graph, x):
        y = x
        for layer in range(1200):
            y = g.dq(g.q(g.emit(R.nn.relu(g.emit(R.permute_dims(y)))), 0.01 + layer % 2, 3), 0.01, 3)
        return y

    mod = module(model, RNG.normal(size=(2, 3)).astype(np.float32))
    after, notes = qdq_to_integer(mod)
    assert not notes and operators(after)
