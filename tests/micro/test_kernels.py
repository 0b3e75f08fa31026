"""Kernels on emulated microcontrollers equal the oracle on awkward shapes, and where their tensors share memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from tests.cases.convolutions import SHAPES
from tests.compiling.program.small import small_module
from tests.micro import boards

CORES = ("m4", "m55", "m0plus", "m3")
TOGETHER = 8  # convolutions in a program
SMALL = [shape for shape in SHAPES if shape.macs < 1_000_000]
DEPTHWISE = [  # (height, width, channels), kernel, strides, padding, dilation
    ((7, 9, 12), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    ((7, 9, 7), (3, 3), (2, 2), (1, 0, 0, 1), (1, 1)),
    ((6, 5, 4), (5, 3), (1, 2), (2, 1, 2, 1), (1, 1)),
    ((5, 1, 16), (3, 1), (1, 1), (1, 0, 1, 0), (1, 1)),
    ((4, 6, 3), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    ((9, 8, 20), (2, 2), (3, 3), (0, 0, 0, 0), (1, 1)),
    ((6, 11, 5), (2, 5), (1, 1), (0, 2, 1, 2), (2, 1)),
    ((3, 9, 300), (2, 3), (1, 2), (1, 2, 0, 0), (1, 2)),
]


def quantized(builder, acc, rng, channels, residual=None):
    """A product with a bias, requantized to int8, and a residual sum behind it."""
    bias = constant(rng.integers(-(2**16), 2**16, channels).astype(np.int32))
    scale = (2.0 ** rng.uniform(-12, -7, channels)).astype(np.float32)
    biased = builder.emit(relax.op.add(builder.emit(acc), bias))
    result = op.requantize(biased, scale, 0, 1.0, -5, -1, out_dtype="int8", rounding="TFLITE")
    if residual is None:
        return result
    scales = np.float32([0.5, 0.25, 0.5])
    parameters = scales[0], -5, scales[1], 3, scales[2], 1
    return op.add(builder.emit(result), residual, *parameters, out_dtype="int8", rounding="TFLITE")


def check(module: qnn_ext.QnnModule, board: str, rng: np.random.Generator) -> None:
    """A module's results on an emulated board."""
    boards.require()
    ranges = [(spec, np.iinfo(spec.dtype)) for spec in module.inputs]
    inputs = [rng.integers(limits.min, limits.max + 1, spec.shape).astype(spec.dtype) for spec, limits in ranges]
    inputs[-1][..., 0:-1:2] = ranges[-1][1].min  # sums of products of extremes
    with boards.scratch() as folder:
        found = boards.firmware(module, boards.BOARDS[board], Path(folder)).run(*inputs)
    for output, expected in zip(found, interpret(module.ir, inputs), strict=True):
        np.testing.assert_array_equal(output, expected)


def int8(rng, *shape):
    return rng.integers(-127, 128, shape).astype(np.int8)


@pytest.mark.sampled("board")
@pytest.mark.parametrize("board", CORES)
@pytest.mark.parametrize("first", range(0, len(SMALL), TOGETHER))
def test_convolutions(first, board, rng):
    shapes = SMALL[first : first + TOGETHER]

    def build(builder, params):
        results = []
        for data, one in zip(params, shapes, strict=True):
            weight = int8(rng, one.out_channels, *one.kernel, one.in_channels // one.groups)
            geometry = {"strides": one.strides, "padding": one.padding, "dilation": one.dilation, "groups": one.groups}
            results.append(
                quantized(builder, op.conv2d(data, weight, 3, 0, 1.0, 1.0, **geometry), rng, one.out_channels)
            )
        return results

    sizes = [((one.batch, one.height, one.width, one.in_channels), "int8") for one in shapes]
    check(small_module(build, sizes), board, rng)


@pytest.mark.parametrize("board", CORES)
def test_depthwise(board, rng):
    def build(builder, params):
        results = []
        for data, ((*_, channels), kernel, strides, padding, dilation) in zip(params, DEPTHWISE, strict=True):
            geometry = {"strides": strides, "padding": padding, "dilation": dilation, "groups": channels}
            acc = op.conv2d(data, int8(rng, channels, *kernel, 1), -7, 0, 1.0, 1.0, **geometry)
            results.append(quantized(builder, acc, rng, channels))
        return results

    check(small_module(build, [((1, *shape), "int8") for shape, *_ in DEPTHWISE]), board, rng)


@pytest.mark.sampled("board")
@pytest.mark.parametrize("board", CORES)
@pytest.mark.parametrize("size", [(6, 7), (5, 5)])  # tiles that divide the pixels, and not
def test_shared_memory(size, board, rng):
    """Layers that overwrite what they read, one of them an operand of a sum; some have more results than operands."""
    shape = (1, *size, 18)

    def build(builder, params):
        (x,) = params

        def layer(data, channels, inputs, kernel=1, groups=1, residual=None):
            weight = int8(rng, channels, kernel, kernel, inputs // groups)
            acc = op.conv2d(data, weight, 1, 0, 1.0, 1.0, padding=(kernel // 2,) * 4, groups=groups)
            return builder.emit(quantized(builder, acc, rng, channels, residual))

        wide = layer(x, 40, 18)
        filtered = layer(layer(wide, 40, 40, 3, groups=40, residual=wide), 40, 40, residual=wide)
        narrow = layer(filtered, 18, 40, residual=x)
        return [layer(layer(narrow, 18, 18, 3), 18, 18, residual=narrow)]

    check(small_module(build, [(shape, "int8")]), board, rng)


@pytest.mark.sampled("board")
@pytest.mark.parametrize("board", CORES)
def test_dense(board, rng):
    """Rows of lengths that are whole words, whole registers, and neither; one row and several."""
    sizes = [(1, 64, 12), (1, 33, 5), (1, 20, 3), (3, 48, 9), (5, 7, 10), (1, 16, 1), (2, 12, 2)]

    def build(builder, params):
        products = []
        for data, (_, depth, units) in zip(params, sizes, strict=True):
            acc = op.dense(data, int8(rng, units, depth), 9, 0, 1.0, 1.0, out_dtype="int32")
            products.append(quantized(builder, acc, rng, units))
        return products

    check(small_module(build, [((rows, depth), "int8") for rows, depth, _ in sizes]), board, rng)


@pytest.mark.sampled("board")
@pytest.mark.parametrize("board", ["m4", "m55", "m3"])
def test_int16(board, rng):
    """Activations of 16 bits: sums of 64, in parts that fit 32; in place, as pairs and one by one."""
    convolutions = [
        ((1, 6, 7, 8), 10, (3, 3), (1, 1, 1, 1)),
        ((1, 5, 5, 3), 6, (2, 3), (0, 1, 1, 1)),
        ((1, 3, 3, 120), 4, (3, 3), (0, 0, 0, 0)),  # 1080 values: two whole parts and a rest
        ((1, 4, 3, 127), 3, (2, 2), (0, 0, 0, 0)),  # exactly one part
    ]
    dense = [((1, 64), 12), ((1, 33), 5), ((3, 1016), 9), ((1, 1300), 7)]
    shapes = [shape for shape, *_ in (*convolutions, *dense)]

    def build(builder, params):
        results = []
        for data, (shape, channels, kernel, padding) in zip(params, convolutions, strict=False):
            weight = int8(rng, channels, *kernel, shape[-1])
            results.append(op.conv2d(data, weight, 0, 0, 1.0, 1.0, padding=padding, out_dtype="int64"))
        for data, ((_, depth), units) in zip(params[len(convolutions) :], dense, strict=True):
            weight = np.full((units, depth), -128, np.int8) if depth == 1300 else int8(rng, units, depth)
            results.append(op.dense(data, weight, 0, 0, 1.0, 1.0, out_dtype="int64"))
        return results

    check(small_module(build, [(shape, "int16") for shape in shapes]), board, rng)
