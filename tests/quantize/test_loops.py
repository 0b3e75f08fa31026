"""Models with loops: what is around them is quantized, and they stay in float."""

import numpy as np
from tvm import relax

import qnn_ext
from qnn_ext import quantize
from qnn_ext.compiling.coverage import coverage
from qnn_ext.frontends.loops import loop
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from tests.cases.loops import as_model, assembled

R = relax.op


def network(rng):
    """Dense, a recurrence with a product, dense."""
    first, inner, last = (constant(rng.normal(0, 0.3, (8, 8)).astype(np.float32)) for _ in range(3))

    def walk(a, x):
        x = a.emit(R.nn.relu(a.emit(R.matmul(x, first))))
        sequence = a.emit(R.reshape(x, (5, 1, 8)))

        def body(states, slices):
            new = a.emit(R.tanh(a.emit(R.add(slices[0], a.emit(R.matmul(states[0], inner))))))
            return [new], [new]

        _, (outputs,) = loop(a, body, [constant(np.zeros((1, 8), np.float32))], [sequence], 5)
        return [a.emit(R.matmul(a.emit(R.reshape(outputs, (5, 8))), last))]

    return as_model(assembled([("x", (5, 8), "float32")], walk))


def test_a_loop_stays_in_float(rng):
    model = network(rng)
    data = [rng.normal(size=(5, 8)).astype(np.float32) for _ in range(8)]
    quantized = quantize.quantize(model, None, data, quantize.QConfig())
    assert [product.is_integer for product in coverage(quantized).products] == [True, False, True]
    expected, found = Interpreter(model)(data[0]), qnn_ext.build(quantized)(data[0])
    np.testing.assert_array_equal(found, Interpreter(quantized)(data[0]))
    assert 0 < np.abs(found - expected).max() < 0.1
