"""Softmax of bytes with float32 sums: rows in groups of every size, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext import op
from qnn_ext.op.softmax import SOFTMAX
from qnn_ext.topi_int8.generic.softmax_rows import rows_together
from tests.cpus import TARGETS

from ..passes.modules import compile_and_run, module


@pytest.mark.parametrize(
    ("shape", "together"),
    [((2, 3, 9, 37), 3), ((1, 2, 16, 50), 8), ((7, 100), 7), ((10, 2), 5), ((11, 20), 1), ((4, 2000), 4), ((40,), 1)],
)
def test_equals_the_reference(shape, together, rng):
    assert rows_together(shape) == together
    for number, target in enumerate(TARGETS):
        dtype = ("uint8", "int8")[number % 2]
        info = np.iinfo(dtype)
        rounding = ("ONNXRUNTIME", "TONEAREST", "UPWARD")[number % 3]
        scale, attributes = 0.07, {"axis": -1, "rounding": rounding, "out_dtype": dtype}
        mod = module([(shape, dtype)], lambda emit, x, a=attributes: emit(op.softmax(x, 0.07, 0, 1 / 256, 3, **a)))
        for data in (rng.integers(info.min, info.max + 1, shape), np.full(shape, info.max)):
            x = data.astype(dtype)
            parameters = (np.float32(scale), np.int32(0), np.float32(1 / 256), np.int32(3))
            expected = SOFTMAX.reference(x, *parameters, beta=1.0, **attributes)
            assert np.array_equal(compile_and_run(mod, target, [x])[0], expected)
