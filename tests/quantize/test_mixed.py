"""Products in float16: operands rounded, sums in float32."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant, constant_value
from qnn_ext.passes.rewrite import bindings_of, op_name, rewrite
from qnn_ext.quantize.mixed import in_float16

from .networks import float_module

RNG = np.random.default_rng(4)
WEIGHTS = {
    "matmul": RNG.normal(size=(6, 5)).astype(np.float32),
    "nn.conv2d": RNG.normal(size=(5, 6, 3, 3)).astype(np.float32),
}


def in_half(name: str):
    """A float module with one product and the same with it in float16."""
    shape = (3, 6) if name == "matmul" else (1, 6, 7, 7)
    operator = relax.op.matmul if name == "matmul" else relax.op.nn.conv2d
    module = float_module(shape, lambda emit, x: emit(operator(x, constant(WEIGHTS[name]))))
    rule = lambda value, emit: in_float16(value, emit) if op_name(value) == name else None  # noqa: E731
    return module, qnn_ext.QnnModule(rewrite(module.ir, rule), module.inputs, module.outputs)


@pytest.mark.parametrize("name", WEIGHTS)
def test_operands_are_rounded_and_sums_are_not(name):
    module, half = in_half(name)
    x = RNG.normal(size=module.inputs[0].shape).astype(np.float32)
    weight = WEIGHTS[name].astype(np.float16).astype(np.float32)
    exact = float_module(x.shape, lambda emit, v: emit(_like(module, v, weight)))
    expected = Interpreter(exact)(x.astype(np.float16).astype(np.float32))
    for found in (Interpreter(half)(x), qnn_ext.build(half, num_threads=1)(x)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert np.abs(expected - Interpreter(module)(x)).max() > 1e-4


def _like(module, x, weight):
    call = bindings_of(module.ir["main"])[0].value
    return relax.Call(call.op, [x, constant(weight)], call.attrs, call.ty_args)


def test_weights_are_stored_in_float16():
    _, half = in_half("matmul")
    (call,) = (b.value for b in bindings_of(half.ir["main"]) if op_name(b.value) == "matmul")
    assert constant_value(call.args[1]).dtype == np.float16


def test_values_beyond_float16_become_its_largest():
    _, half = in_half("matmul")
    x = np.full((3, 6), 1e6, np.float32)
    expected = np.full((3, 6), 65504, np.float32) @ WEIGHTS["matmul"].astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(Interpreter(half)(x), expected, rtol=1e-5)
