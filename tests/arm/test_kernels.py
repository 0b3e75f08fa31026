"""Kernels of ARM as models build them, on emulated CPUs: with a bias, with tables."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from tests.arm.engines import emulated
from tests.cases.tables import DTYPES, every_byte, table
from tests.compiling.program.small import small_module
from tests.cpus import cpu_target

CPUS = ("asimd", "dotprod", "armv7")


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("rounding", ["TFLITE", "TONEAREST_EVEN"])
@pytest.mark.parametrize("channels", [16, 20, 3])
def test_depthwise_with_bias(channels, rounding, cpu, rng):
    """The accumulators start at the bias, also in channels that fill up a vector; scales shift both ways."""
    weight, bias = rng.integers(-127, 128, (channels, 3, 3, 1)).astype(np.int8), rng.integers(-(2**20), 2**20, channels)
    scale = (2.0 ** rng.uniform(-14, 2, channels)).astype(np.float32)

    def build(builder, params):
        acc = op.conv2d(*params, weight, -3, 0, 1.0, 1.0, padding=(1, 0, 1, 2), groups=channels)
        biased = builder.emit(relax.op.add(builder.emit(acc), constant(bias.astype(np.int32))))
        return [op.requantize(biased, scale, 0, 1.0, 7, -1, out_dtype="int8", rounding=rounding)]

    module = small_module(build, [((2, 7, 9, channels), "int8")])
    x = rng.integers(-128, 128, (2, 7, 9, channels)).astype(np.int8)
    engine = emulated(qnn_ext.build(module, cpu_target(cpu, 1)))
    np.testing.assert_array_equal(engine(x), interpret(module.ir, [x])[0])


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("rounding", ["TFLITE", "UPWARD"])
@pytest.mark.parametrize("channels", [16, 20, 3])
def test_sums_and_slopes(channels, rounding, cpu, rng):
    """A product, two residual sums and a PReLU in one kernel."""
    route = {"rounding": rounding}
    weight = rng.integers(-127, 128, (channels, 1, 1, 8)).astype(np.int8)
    slopes = rng.integers(-128, 128, (1, 1, channels)).astype(np.int8)

    def build(builder, params):
        x, other = params
        total = builder.emit(op.conv2d(x, weight, 3, 0, 0.1, 0.02))
        total = builder.emit(op.requantize(total, 0.002, 0, 0.3, 1, out_dtype="int8", **route))
        for zero_point in (1, 2):
            total = builder.emit(op.add(total, other, 0.3, zero_point, 0.21, -5, 0.3, zero_point + 1, **route))
        return [op.prelu(total, constant(slopes), 0.3, 3, 0.004, 3, 0.3, 1, **route)]

    shapes = (2, 5, 7, 8), (2, 5, 7, channels)
    module = small_module(build, [(shape, "int8") for shape in shapes])
    inputs = [rng.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    engine = emulated(qnn_ext.build(module, cpu_target(cpu, 1)))
    np.testing.assert_array_equal(engine(*inputs), interpret(module.ir, inputs)[0])


@pytest.mark.parametrize("shape", [(4, 64), (2, 8, 48), (3, 24), (3, 21)])
@pytest.mark.parametrize(("source", "result"), DTYPES)
def test_table(source, result, shape):
    """Tables of 64-bit CPUs, in registers where vectors fit the shape."""
    module = small_module(lambda builder, params: [op.table(*params, table(result))], [(shape, source)])
    x = every_byte(shape, source)
    engine = emulated(qnn_ext.build(module, cpu_target("asimd", 1)))
    np.testing.assert_array_equal(engine(x), interpret(module.ir, [x])[0])
