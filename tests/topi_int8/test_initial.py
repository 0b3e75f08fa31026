"""A bias becomes the initial value of the accumulators, whatever they are padded to, and only where it may."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.targets.names import make_target
from tests.cpus import TARGETS

from ..passes.modules import compile_and_run, inputs_of, module


def _convolution(channels: int, groups: int, bias: np.ndarray, twice: bool = False):
    rng = np.random.default_rng(channels)
    weight = rng.integers(-128, 128, (channels, 3, 3, 24 // groups)).astype(np.int8)

    def body(emit, x):
        acc = qnn.conv2d(
            x, constant(weight), 3, 0, 0.05, 0.01, padding=(1, 1, 1, 1), groups=groups,
            data_layout="NHWC", kernel_layout="OHWI",
        )  # fmt: skip
        acc = emit(acc)
        out = emit(qnn.requantize(emit(relax.op.add(acc, constant(bias))), 0.0005, 0, 0.4, 5, out_dtype="uint8"))
        return emit(relax.op.add(out.astype("int32"), acc)) if twice else out

    return module([((2, 5, 7, 24), "uint8")], body)


def _bias(channels: int, shape: tuple[int, ...] = (-1,)) -> np.ndarray:
    values = np.random.default_rng(1).integers(-(2**31), 2**31, channels).astype(np.int32)
    values[1:] //= 2**16  # the first channel may wrap around
    return values.reshape(shape)


@pytest.mark.sampled("target", whole="native")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("channels", "groups"), [(64, 1), (67, 1), (7, 1), (1, 1), (48, 3), (12, 6)])
def test_convolution(target, channels, groups):
    mod = _convolution(channels, groups, _bias(channels))
    inputs = inputs_of(np.random.default_rng(channels), mod)
    assert np.array_equal(compile_and_run(mod, target, inputs)[0], interpret(mod, inputs)[0])


@pytest.mark.parametrize("shape", [(1, 1, 1, 16), (7, 1), (1, 5, 1, 1), (1,), ()])
def test_other_shapes_of_constants(shape):
    size = int(np.prod(shape))
    mod = _convolution(16, 1, _bias(size, shape))
    inputs = inputs_of(np.random.default_rng(0), mod)
    assert np.array_equal(compile_and_run(mod, "native", inputs)[0], interpret(mod, inputs)[0])


def test_an_accumulator_that_is_read_without_its_bias():
    mod = _convolution(16, 1, _bias(16), twice=True)
    inputs = inputs_of(np.random.default_rng(0), mod)
    assert np.array_equal(compile_and_run(mod, "native", inputs)[0], interpret(mod, inputs)[0])


def test_the_bias_is_no_part_of_the_epilogue():
    target = make_target("avx512_vnni", num_threads=1)
    text = lower_module(_convolution(48, 1, _bias(48)), target).script(show_meta=False)
    assert re.search(r"conv2d\[.*\] = const1\[\w+, \w+\]$", text, re.MULTILINE)
