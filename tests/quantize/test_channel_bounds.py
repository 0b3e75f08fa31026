"""Factors behind clipped products move in front of the clip: the same function, with bounds for each channel."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize import QConfig, quantize
from qnn_ext.quantize.channel_bounds import with_channel_bounds

from .networks import float_module

RNG = np.random.default_rng(31)
CHANNELS = 8
DATA = RNG.normal(size=(16, 3, 12, 12)).astype(np.float32)
FACTORS = np.exp(RNG.normal(size=(CHANNELS, 1, 1))).astype(np.float32)
CLIPS = {
    "relu6": lambda x: relax.op.clip(x, 0, 6),
    "hardtanh": lambda x: relax.op.clip(x, -0.5, 0.75),
    "above": lambda x: relax.op.clip(x, 0.25, float("inf")),
    "relu": relax.op.nn.relu,
}


def conv(emit, x, channels, size=3, **attrs):
    depth = int(x.ty.shape[1]) // attrs.get("groups", 1)
    weight = constant(RNG.normal(size=(channels, depth, size, size)).astype(np.float32))
    bias = constant(RNG.normal(size=(channels, 1, 1)).astype(np.float32))
    return emit(relax.op.add(emit(relax.op.nn.conv2d(x, weight, padding=size // 2, **attrs)), bias))


def module_of(clip, factors=FACTORS, read_twice=False):
    def body(emit, x):
        clipped = emit(clip(conv(emit, x, CHANNELS)))
        y = conv(emit, emit(relax.op.multiply(clipped, constant(factors)), "scaled"), 4)
        return emit(relax.op.add(y, conv(emit, clipped, 4))) if read_twice else y

    return float_module((1, 3, 12, 12), body)


def names(module):
    return [op_name(binding.value) for binding in bindings_of(module.ir["main"])]


@pytest.mark.parametrize("clip", CLIPS)
def test_same_function_without_factors(clip):
    module = module_of(CLIPS[clip])
    moved = with_channel_bounds(module)
    assert "multiply" not in names(moved)
    assert "scaled" in [str(binding.var.name) for binding in bindings_of(moved.ir["main"])]
    for image in DATA[:4]:
        (expected,), (found,) = (Interpreter(one).run([image[None]]).values() for one in (module, moved))
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    "module",
    [
        module_of(CLIPS["relu6"], read_twice=True),
        module_of(CLIPS["relu6"], factors=-FACTORS),
        module_of(relax.op.tanh),
    ],
    ids=["another reader", "negative factors", "no clip"],
)
def test_other_factors_stay(module):
    assert with_channel_bounds(module) is module


def test_products_compare_integers_with_bounds():
    """No kernel computes in float between the model's ends, and none loses accuracy."""
    spread = np.exp(RNG.normal(size=16) * 1.5).reshape(-1, 1, 1, 1)

    def body(emit, x):
        y = emit(relax.op.clip(emit(relax.op.nn.conv2d(x, weight(16, 3, 3, 3, of=spread), padding=1)), 0, 60))
        y = emit(relax.op.nn.conv2d(y, weight(16, 1, 3, 3, of=1 / spread), padding=1, groups=16))
        return emit(relax.op.nn.conv2d(emit(relax.op.clip(y, 0, 60)), weight(5, 16, 1, 1)))

    def weight(*shape, of=1.0):
        return constant((RNG.normal(size=shape) * of).astype(np.float32))

    config = QConfig(target="x86-64", balance=True, equalize=False, smooth=None)
    integers = quantize(float_module((1, 3, 12, 12), body), dataset=[image[None] for image in DATA], config=config)
    kernels = qnn_ext.build(integers, target="x86-64").kernels
    assert any("requantize+minimum" in kernel.operators for kernel in kernels)
    assert not any("multiply" in kernel.operators for kernel in kernels)
