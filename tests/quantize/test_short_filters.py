"""Convolutions of short filters: which become several, that results stay, and how much is multiplied."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import relax

from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from qnn_ext.op.macs import macs_of
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize import QConfig, quantize
from qnn_ext.quantize.short_filters import short_filters

from .networks import float_module

LENGTH = 64


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(8)


def bank(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Filters (O, I, …) that get shorter from channel to channel along every spatial axis, around 0 outside."""
    weight = rng.normal(size=shape)
    for axis, length in enumerate(shape[2:], 2):
        place = np.linspace(-1, 1, length).reshape([-1 if one == axis else 1 for one in range(len(shape))])
        width = np.linspace(1, 0.05, shape[0]).reshape([-1] + [1] * (len(shape) - 1))
        weight *= np.exp(-np.square(6 * place / width))
    return weight.astype(np.float32)


def products(ir) -> list:
    return [binding.value for binding in bindings_of(ir["main"]) if op_name(binding.value).startswith("nn.conv")]


CASES = {
    "conv1d": ((1, 1, 300), (40, 1, LENGTH), relax.op.nn.conv1d, {"strides": 16}),
    "padded": ((1, 2, 200), (24, 2, LENGTH), relax.op.nn.conv1d, {"strides": 4, "padding": (31, 20)}),
    "padded a little": ((1, 2, 200), (24, 2, LENGTH), relax.op.nn.conv1d, {"padding": (3, 0)}),
    "dilated": ((1, 2, 200), (20, 2, 33), relax.op.nn.conv1d, {"dilation": 3, "padding": (48, 48)}),
    "one block": ((1, 2, 90), (8, 2, LENGTH), relax.op.nn.conv1d, {}),
    "conv2d": ((2, 1, 40, 30), (24, 1, 17, 9), relax.op.nn.conv2d, {"strides": (2, 1), "padding": (8, 1, 3, 4)}),
    "channels last": (
        (1, 50, 1, 3),
        (24, 3, LENGTH // 2, 1),
        relax.op.nn.conv2d,
        {"data_layout": "NHWC", "padding": (4, 0, 16, 0)},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results_stay(name, rng):
    shape, kernel, function, attributes = CASES[name]
    weight = bank(rng, *kernel)
    if name == "one block":  # all of them are short
        weight *= np.exp(-np.square(np.linspace(-30, 30, LENGTH))).astype(np.float32)
    module = float_module(shape, lambda emit, x: emit(function(x, constant(weight), **attributes)))
    short = short_filters(module.ir)
    before, after = ([macs_of(call) for call in products(ir)] for ir in (module.ir, short))
    assert sum(after) < 0.75 * sum(before)
    assert len(after) == 1 if name == "one block" else len(after) > 1
    x = rng.normal(size=shape).astype(np.float32)
    expected, found = Interpreter(module)(x), Interpreter(replace(module, ir=short))(x)
    bound = np.abs(weight).sum(axis=tuple(range(1, weight.ndim))).max() * np.abs(x).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * bound)


@pytest.mark.parametrize("groups, scale", [(1, 1.0), (2, 0.0)])
def test_others_stay(groups, scale, rng):
    """Filters with taps throughout, and grouped convolutions."""
    weight = bank(rng, 40, 1, LENGTH) + rng.normal(size=(40, 1, LENGTH)).astype(np.float32) * np.float32(1e-5 * scale)
    convolve = relax.op.nn.conv1d
    module = float_module((1, groups, 300), lambda emit, x: emit(convolve(x, constant(weight), groups=groups)))
    assert len(products(short_filters(module.ir))) == 1


def test_empty_filters_have_a_tap(rng):
    """Zeros only: nothing is needed, but a convolution has a tap."""
    weight = np.zeros((16, 1, LENGTH), np.float32)
    module = float_module((1, 1, 300), lambda emit, x: emit(relax.op.nn.conv1d(x, constant(weight), padding=(9, 9))))
    short = replace(module, ir=short_filters(module.ir))
    assert [call.args[1].ty.shape[2] for call in products(short.ir)] == [1]
    x = rng.normal(size=(1, 1, 300)).astype(np.float32)
    np.testing.assert_array_equal(Interpreter(short)(x), Interpreter(module)(x))


def test_the_filter_bank_in_front_of_a_logarithm(rng):
    """It stays float, with fewer multiply-accumulates; in 8 bits it stays whole."""
    op, weight, mixing = relax.op, bank(rng, 40, 1, LENGTH), rng.normal(size=(8, 40, 3)).astype(np.float32)

    def body(emit, x):
        power = emit(op.square(emit(op.nn.conv1d(x, constant(weight), strides=4))))
        return emit(op.nn.conv1d(emit(op.log(emit(op.add(power, constant(np.float32(1e-6)))))), constant(mixing)))

    module = float_module((1, 1, 300), body)
    data = rng.normal(size=(3, 1, 300)).astype(np.float32)
    in_float, in_8_bits = (
        quantize(
            module, dataset=list(data[:, None]), config=QConfig(calibrate_mode="minmax", float_functions=functions)
        )
        for functions in (("log",), ())
    )
    assert len(products(in_float.ir)) > 1
    assert not products(in_8_bits.ir)
    found, exact = (Interpreter(one)(data[0][None]) for one in (in_float, module))
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()
