"""Scales and zero points of ranges found at run time: compiled code has the bits of the NumPy reference."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from qnn_ext import ShapeError
from qnn_ext import op as qnn
from qnn_ext.interpreter import interpret
from tests.passes.modules import compile_and_run, module

AVX2 = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"}
LARGEST = np.finfo(np.float32).max
ENDS = np.float32([np.nan, -np.inf, -LARGEST, -3.7, -1e-3, -1e-45, -0.0, 0.0, 1e-45, 0.25, 255.0, LARGEST, np.inf])
RANGES = np.float32([pair for pair in itertools.product(ENDS, ENDS) if not pair[0] > pair[1]])


@pytest.mark.parametrize("target", ["native", AVX2], ids=["native", "avx2"])
@pytest.mark.parametrize(
    "start, dtype, steps", [(0, "uint8", 255), (-128, "int8", 255), (-7, "int8", 14), (0, "uint16", 65535)]
)
def test_equals_the_reference(start, dtype, steps, target):
    """Of usual ranges and of those with NaN, infinities, zeros of both signs and subnormal numbers."""

    def parameters(emit, ends):
        scale = emit(qnn.range_scale(ends, steps))
        return [scale, emit(qnn.range_zero_point(ends, scale, start, dtype))]

    usual = np.sort(np.random.default_rng(steps).normal(size=(500, 2)).astype(np.float32), axis=1)
    ranges = np.concatenate([RANGES, usual])
    mod = module([(ranges.shape, "float32")], parameters)
    expected = interpret(mod, [ranges])
    for found, other in zip(compile_and_run(mod, target, [ranges]), expected, strict=True):
        np.testing.assert_array_equal(found, other)
    scale, zero_point = (one[len(RANGES) :] for one in expected)
    low, high = np.minimum(usual[:, 0], 0), np.maximum(usual[:, 1], 0)
    np.testing.assert_array_equal(scale, (high - low) / np.float32(steps))
    limits = np.iinfo(dtype)
    np.testing.assert_array_equal(zero_point, np.clip(np.rint(start - low / scale), limits.min, limits.max))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda emit, ends, scale: qnn.range_scale(scale, 255), "ends must have a last axis of two"),
        (lambda emit, ends, scale: qnn.range_scale(ends, 0), "steps must be positive"),
        (lambda emit, ends, scale: qnn.range_zero_point(ends, ends, 0, "int8"), "scale must have shape"),
        (lambda emit, ends, scale: qnn.range_zero_point(ends, scale, 200, "int8"), "start must be a number of int8"),
        (lambda emit, ends, scale: qnn.range_zero_point(ends, scale, 0, "int32"), "int32"),
    ],
)
def test_what_does_not_fit(call, message):
    with pytest.raises(ShapeError, match=message):
        module([((3, 2), "float32"), ((3,), "float32")], lambda emit, *values: [emit(call(emit, *values))])
