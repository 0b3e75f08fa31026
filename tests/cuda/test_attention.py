"""Products of attention over a batch, with heads split from rows of all: tensor cores take them, and are exact."""

from __future__ import annotations

import numpy as np
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.describe import kernels_of
from qnn_ext.interpreter import interpret
from qnn_ext.op.base import constant
from qnn_ext.targets.names import make_target
from tests.passes.modules import module

from .models import run_lowered

BATCH, LENGTH, HEADS, WIDTH = 2, 32, 3, 32


def scalar(value, dtype):
    return constant(np.asarray(value, dtype))


def test_zero_points_of_both_operands():
    """The sums of rows that zero points multiply read the operands too, which are moved in memory before."""
    shape = (BATCH * LENGTH, HEADS * WIDTH)

    def heads(emit, rows):
        split = emit(relax.op.reshape(rows, (BATCH, LENGTH, HEADS, WIDTH)))
        moved = emit(relax.op.permute_dims(split, [0, 2, 1, 3]))
        return emit(relax.op.reshape(moved, (BATCH * HEADS, LENGTH, WIDTH)))

    def body(emit, x, y):
        zeros = scalar(3, "int32"), scalar(-5, "int32")
        scales = scalar(0.5, "float32"), scalar(0.25, "float32")
        return qnn.batch_matmul(heads(emit, x), heads(emit, y), *zeros, *scales)

    mod = module([(shape, "int8"), (shape, "int8")], body)
    target = make_target("sm_80")
    lowered = lower_module(mod, target)
    assert "batch_matmul_mma.cuda" in [kernel.implementation for kernel in kernels_of(lowered)]
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-128, 128, shape).astype(np.int8) for _ in range(2)]
    np.testing.assert_array_equal(run_lowered(lowered, "sm_80", inputs)[0], interpret(mod, inputs)[0])
