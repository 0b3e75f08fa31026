"""Maximum pooling: of integers, exact at every edge and without a padded copy; of floats, with −∞ beyond the edges."""

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


FLOAT_CASES = {
    "plain": dict(pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),
    "uneven padding": dict(pool_size=(3, 2), strides=(1, 3), padding=(1, 0, 2, 1)),
    "beyond the end": dict(pool_size=(3, 3), strides=(2, 2), ceil_mode=True),
    "rows left over": dict(pool_size=(2, 2), strides=(3, 3)),
    "over padding alone": dict(pool_size=(2, 2), strides=(3, 3), padding=(1, 1, 5, 5), dilation=(8, 8)),
}


def _floats(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """With regions of −∞, a NaN and zeros of both signs."""
    x = rng.standard_normal(shape).astype(np.float32)
    x[0, ..., :5, :] = -np.inf
    x[-1, ..., 2, 3] = np.nan
    x[-1, ..., 5:, :] = np.where(x[-1, ..., 5:, :] > 0, np.float32(0), np.float32(-0.0))
    return x


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("case", FLOAT_CASES)
def test_floats(rng, case, layout):
    torch = pytest.importorskip("torch")
    attributes = FLOAT_CASES[case]
    x = _floats(rng, (2, 3, 8, 9))
    last = layout == "NHWC"

    def body(emit, x):
        return emit(relax.op.nn.max_pool2d(x, layout=layout, **attributes))

    given = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x
    mod = module([(given.shape, "float32")], body)
    (found,), (expected,) = compile_and_run(mod, "native", [given]), interpret(mod, [given])
    assert found.tobytes() == expected.tobytes()

    top, left, bottom, right = attributes.get("padding", (0, 0, 0, 0))
    padded = torch.nn.functional.pad(torch.from_numpy(x), (left, right, top, bottom), value=-np.inf)
    geometry = (attributes["pool_size"], attributes["strides"], 0, attributes.get("dilation", 1))
    pooled = torch.nn.functional.max_pool2d(padded, *geometry, ceil_mode=attributes.get("ceil_mode", False)).numpy()
    np.testing.assert_array_equal(found.transpose(0, 3, 1, 2) if last else found, pooled)


@pytest.mark.parametrize("rank", [1, 3])
def test_floats_of_other_ranks(rng, rank):
    x = _floats(rng, (2, 3, *(7, 6, 8, 9)[-rank:])) if rank > 1 else _floats(rng, (2, 6, 9))
    operator = {1: relax.op.nn.max_pool1d, 3: relax.op.nn.max_pool3d}[rank]
    mod = module([(x.shape, "float32")], lambda emit, x: emit(operator(x, (3,) * rank, (2,) * rank, (1,) * 2 * rank)))
    (found,), (expected,) = compile_and_run(mod, "native", [x]), interpret(mod, [x])
    assert found.tobytes() == expected.tobytes()
    assert np.isneginf(found).any()
