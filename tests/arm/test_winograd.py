"""Integer convolutions by Winograd's algorithm on emulated ARM CPUs without dot products: exact."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext import op
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from qnn_ext.targets.names import make_target
from tests.arm.engines import emulated
from tests.compiling.program.small import small_module


@pytest.mark.parametrize("target", ["rpi4", "armv7"])
def test_convolution(target, rng):
    """Tiles beyond the result, padding that is no zero, and values at the ends of their range."""
    x = rng.choice(np.array([-128, 127], np.int8), (1, 13, 15, 32))
    w = rng.choice(np.array([-127, 127], np.int8), (32, 3, 3, 32))

    def build(builder, params):
        return [builder.emit(op.conv2d_accumulate(params[0], constant(w), padding=(1, 1, 1, 1), pad_value=-7))]

    module = small_module(build, [(x.shape, "int8")])
    engine = qnn_ext.build(module, make_target(target), num_threads=1)
    assert any("winograd" in kernel.operators for kernel in engine.kernels)
    (expected,) = interpret(module.ir, [x])
    np.testing.assert_array_equal(emulated(engine)(x), expected)
