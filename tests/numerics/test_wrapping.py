"""Integers that overflow wrap, whatever is computed from them: compiled and interpreted alike."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.op.base import constant
from tests.passes.test_checks import module

OPERATIONS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_what_is_computed_from_an_overflow(name, dtype, rng):
    """LLVM may neither widen the sum nor compare the operands instead."""
    info = np.iinfo(dtype)
    x, y = rng.integers(info.min, info.max, (2, 300), dtype, endpoint=True)
    x[:4], y[:4] = (info.min, info.max, info.min, info.max), (info.min, info.max, info.max, info.min)

    def build(builder, a, b):
        result = builder.emit(getattr(relax.op, name)(a, b))
        clipped = relax.op.minimum(result, constant(np.asarray(1, dtype)))
        return [
            result,
            relax.op.maximum(builder.emit(clipped), constant(np.asarray(-1, dtype))),
            relax.op.astype(result, "float64"),
            relax.op.less(result, a),
        ]

    qnn_module = module(build, x, y)
    with np.errstate(over="ignore"):
        raw = OPERATIONS[name](x, y)
    expected = [raw, np.clip(raw, -1, 1), raw.astype(np.float64), raw < x]
    for runner in (qnn_ext.build(qnn_module, num_threads=1), qnn_ext.Interpreter(qnn_module)):
        for found, wanted in zip(runner(x, y), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
