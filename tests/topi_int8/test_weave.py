"""Long epilogues are computed among the next tile's dot products, with the same results on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from tvm import relax, tirx

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.numerics.annotations import WEAVE
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8.cpu.microkernel import MOST_WOVEN_STEPS
from tests.cpus import TARGETS

from ..passes.modules import compile_and_run, inputs_of, module


def _with_sum(emit, acc, other, channels: int):
    """Bias, requantization and ONNX Runtime's sum with a second tensor."""
    rng = np.random.default_rng(channels)
    acc = emit(relax.op.add(acc, constant(rng.integers(-3000, 3000, channels).astype(np.int32))))
    scale = constant(rng.uniform(0.002, 0.01, channels).astype(np.float32))
    out = emit(qnn.requantize(acc, scale, 0, 4.0, 121, axis=-1, out_dtype="uint8"))
    zero = constant(np.int32(0))
    floats = (constant(np.float32(value)) for value in (0.7, 0.61, -3.0))
    return emit(qnn.qlinear_add(out, other, zero, zero, *floats, zero, out_dtype="uint8"))


def _weight(*shape: int):
    return constant(np.random.default_rng(1).integers(-128, 128, shape).astype(np.int8))


def _conv(shape: tuple[int, ...], channels: int, stride: int = 1):
    batch, height, width, depth = shape
    out = (batch, -(-height // stride), -(-width // stride), channels)

    def body(emit, x, other):
        layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
        weight = _weight(channels, 1, 1, depth)
        acc = emit(qnn.conv2d(x, weight, 3, 0, 0.05, 0.01, strides=(stride, stride), **layouts))
        return _with_sum(emit, acc, other, channels)

    return module([(shape, "uint8"), (out, "uint8")], body)


def _dense(rows: int, depth: int, channels: int):
    def body(emit, x, other):
        return _with_sum(emit, emit(qnn.dense(x, _weight(channels, depth), 3, 0, 0.05, 0.01)), other, channels)

    return module([((rows, depth), "uint8"), ((rows, channels), "uint8")], body)


def _marked(function: tirx.PrimFunc) -> bool:
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(function.body, (tirx.For, found.append))
    return any(WEAVE in loop.annotations for loop in found)


CASES = {
    "a row of pixels": lambda: _conv((1, 14, 14, 64), 256),
    "several images": lambda: _conv((3, 7, 7, 128), 96),
    "a stride": lambda: _conv((1, 15, 13, 64), 64, stride=2),
    "a single tile": lambda: _conv((1, 2, 2, 64), 32),
    "the most steps": lambda: _dense(28, 192, 128),
    "a remainder of steps": lambda: _dense(35, 92, 64),
    "a remainder of rows": lambda: _dense(37, 128, 64),
    "fewer steps than parts": lambda: _dense(35, 4, 64),
    "channels that end in a block": lambda: _dense(28, 128, 72),
}


@pytest.mark.sampled("target", whole="native")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_interpreter(case, target):
    mod = CASES[case]()
    inputs = inputs_of(np.random.default_rng(0), mod)
    assert np.array_equal(compile_and_run(mod, target, inputs)[0], interpret(mod, inputs)[0])


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_equals_the_interpreter_as_a_program(num_threads):
    mod = _conv((2, 28, 28, 64), 256)
    inputs = inputs_of(np.random.default_rng(0), mod)
    specs = [TensorSpec(f"x{i}", array.shape, "uint8", None) for i, array in enumerate([*inputs, inputs[1]])]
    engine = qnn_ext.build(QnnModule(mod, tuple(specs[:2]), (specs[2],)), num_threads=num_threads)
    assert np.array_equal(engine(*inputs), interpret(mod, inputs)[0])


def test_only_long_epilogues_behind_short_sums_are_marked():
    def marked(mod) -> bool:
        functions = lower_module(mod, make_target("avx512_vnni", num_threads=1)).functions.values()
        return any(_marked(function) for function in functions if isinstance(function, tirx.PrimFunc))

    def short(emit, x):
        acc = emit(qnn.dense(x, _weight(64, 128), 3, 0, 0.05, 0.01))
        return emit(qnn.requantize(acc, 0.0005, 0, 0.1, 3, out_dtype="uint8"))

    def function(emit, x):
        acc = emit(qnn.dense(x, _weight(64, 128), 3, 0, 0.05, 0.01))
        return emit(relax.op.sigmoid(emit(qnn.dequantize(acc, 0.0005, 0, out_dtype="float32"))))

    assert marked(_dense(28, 128, 64))
    assert not marked(_dense(28, 4 * MOST_WOVEN_STEPS + 4, 64))
    assert not marked(module([((28, 128), "uint8")], function))
    assert not marked(module([((28, 128), "uint8")], short))
    assert not marked(_dense(28, 4, 16))
