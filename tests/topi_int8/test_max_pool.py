"""Maximum pooling of integers: exact at every edge, and without a padded copy."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from qnn_ext.compiling.build import lower_module
from qnn_ext.op.evaluate import interpret
from qnn_ext.targets.names import make_target
from tests.cpus import TARGETS

from ..passes.modules import compile_and_run, inputs_of, module


def _pool(size: tuple[int, int], channels: int, dtype: str, **attributes):
    def body(emit, x):
        return emit(relax.op.nn.max_pool2d(x, layout="NHWC", **attributes))

    return module([((2, *size, channels), dtype)], body)


CASES = {
    "a network's": dict(size=(14, 14), pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
    "no padding": dict(size=(8, 9), pool_size=(2, 2), strides=(2, 2)),
    "odd sizes": dict(size=(7, 11), pool_size=(3, 2), strides=(1, 3), padding=(1, 0, 2, 1)),
    "all of it": dict(size=(3, 5), pool_size=(3, 5), strides=(1, 1), padding=(2, 4, 2, 4)),
    "beyond the end": dict(size=(6, 6), pool_size=(3, 3), strides=(2, 2), ceil_mode=True),
    "a large window": dict(size=(9, 9), pool_size=(7, 7), strides=(1, 1), padding=(3, 3, 3, 3)),
    "dilated": dict(size=(9, 9), pool_size=(3, 3), strides=(1, 1), padding=(2, 2, 2, 2), dilation=(2, 2)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "channels"), [("uint8", 64), ("int8", 5), ("int32", 16)])
def test_equals_the_interpreter(case, dtype, channels):
    mod = _pool(channels=channels, dtype=dtype, **CASES[case])
    inputs = inputs_of(np.random.default_rng(0), mod)
    assert np.array_equal(compile_and_run(mod, "native", inputs)[0], interpret(mod, inputs)[0])


@pytest.mark.parametrize("target", TARGETS)
def test_every_instruction_set(target):
    mod = _pool(channels=24, dtype="int8", **CASES["a network's"])
    inputs = inputs_of(np.random.default_rng(0), mod)
    assert np.array_equal(compile_and_run(mod, target, inputs)[0], interpret(mod, inputs)[0])


def test_no_copy_is_padded():
    mod = lower_module(_pool(channels=64, dtype="uint8", **CASES["a network's"]), make_target("native", num_threads=1))
    kernels = [str(function) for function in mod.functions.values() if isinstance(function, tirx.PrimFunc)]
    assert len(kernels) == 1
    assert "pad_temp" not in kernels[0]
