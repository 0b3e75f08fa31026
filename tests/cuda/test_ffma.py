"""Products of float32 on the emulated GPU: fused multiply-adds in order, with tiles in shared memory and registers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.describe import kernels_of
from qnn_ext.op.base import constant
from qnn_ext.passes.low_precision import at_precision
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8.cuda import ffma
from qnn_ext.topi_int8.strategy import tiles_from
from tests.arm.test_float_products import LAYOUTS, ROUNDED, convolved, multiplied
from tests.compiling.program.small import small_module

from .models import run_model

CONVOLUTIONS = {
    "window": ((1, 9, 11, 12), (40, 3, 3, 12), {"padding": [1, 1, 1, 1]}),
    "colours": ((2, 15, 17, 3), (17, 7, 7, 3), {"padding": [3, 3, 3, 3], "strides": [2, 2]}),
    "odd channels": ((1, 12, 12, 5), (40, 2, 3, 5), {}),
    "pointwise": ((2, 7, 5, 20), (24, 1, 1, 20), {}),
    "strided": ((1, 14, 14, 64), (40, 1, 1, 64), {"strides": [2, 2]}),
    "dilated": ((1, 13, 13, 8), (18, 3, 3, 8), {"dilation": [2, 3], "padding": [2, 1, 0, 3]}),
    "groups": ((1, 8, 8, 24), (60, 3, 3, 8), {"groups": 3, "padding": [1, 1, 1, 1]}),
}
MATRICES = {
    "rows": ((40, 50), (50, 33), True),
    "batches of rows": ((2, 20, 24), (24, 40), True),
    "two computed": ((3, 40, 50), (3, 50, 39), False),
    "heads": ((1, 4, 24, 32), (1, 4, 32, 33), False),
}


def run(build, arrays):
    """The result on the emulated GPU, and the implementations of the products."""
    module = small_module(
        lambda builder, params: [build(builder.emit, *params)], [(x.shape, str(x.dtype)) for x in arrays]
    )
    kernels = kernels_of(lower_module(module.ir, make_target("sm_80")))
    names = [kernel.implementation for kernel in kernels if kernel.macs]
    return run_model(module, "sm_80", arrays)[0], names


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name, rng):
    """With a bias, an activation and a residual in the same kernel."""
    shape, weight_shape, attributes = CONVOLUTIONS[name]
    x, w, bias = (rng.standard_normal(size).astype(np.float32) for size in (shape, weight_shape, weight_shape[:1]))
    total = convolved(x, w, **attributes)
    residual = rng.standard_normal(total.shape).astype(np.float32)

    def build(emit, x, other):
        biased = emit(relax.op.add(emit(relax.op.nn.conv2d(x, constant(w), **attributes, **LAYOUTS)), constant(bias)))
        return emit(relax.op.add(emit(relax.op.nn.relu(biased)), other))

    found, names = run(build, [x, residual])
    assert names == ["conv2d_ffma.cuda"]
    np.testing.assert_array_equal(found, np.maximum(total + bias, 0) + residual)


@pytest.mark.parametrize("name", MATRICES)
def test_matrices(name, rng):
    *shapes, is_constant = MATRICES[name]
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    build = lambda emit, x, *more: emit(relax.op.matmul(x, *(more or [constant(y)])))  # noqa: E731
    found, names = run(build, [x] if is_constant else [x, y])
    assert len(names) == 1 and "_ffma." in names[0]
    np.testing.assert_array_equal(found, multiplied(x, y))


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_rounded_operands(precision, rng):
    """Operands of 16 bits are multiplied as float32 without the tensor cores of sm_80."""
    *shapes, _ = MATRICES["rows"]
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    module = small_module(lambda _, params: [relax.op.matmul(*params, constant(y))], [(x.shape, "float32")])
    rounded = qnn_ext.QnnModule(at_precision(module.ir, precision), module.inputs, module.outputs)
    (found,) = run_model(rounded, "sm_75", [x])
    np.testing.assert_array_equal(found, multiplied(*map(ROUNDED[precision], (x, y))))


def test_one_row_is_left(rng):
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 50), (50, 33)))
    found, names = run(lambda emit, x: emit(relax.op.matmul(x, constant(y))), [x])
    assert not names
    np.testing.assert_allclose(found, x @ y, rtol=1e-5, atol=1e-5)


def test_infinities_stay_where_they_are(rng):
    """What pads k is zero in both operands."""
    shape, weight_shape, attributes = CONVOLUTIONS["window"]
    x, w = (rng.standard_normal(size).astype(np.float32) for size in (shape, weight_shape))
    x[0, 4:, 5, 6] = np.inf
    with np.errstate(invalid="ignore"):
        expected = convolved(x, w, **attributes)
    found, _ = run(lambda emit, x: emit(relax.op.nn.conv2d(x, constant(w), **attributes, **LAYOUTS)), [x])
    np.testing.assert_array_equal(found, expected)


def test_loads_of_a_thread(rng):
    """64 threads copy 64 rows and 64 columns of sixteen k by eight vectors each, 512 loads in place of the two for each
    of 65536 products."""
    tile = next(tile for tile in ffma.TILES if (tile.rows, tile.columns, tile.threads) == (64, 64, 64))
    w = rng.standard_normal((64, 64)).astype(np.float32)
    module = small_module(lambda _, params: [relax.op.matmul(*params, constant(w))], [((64, 64), "float32")])
    with tiles_from(lambda *_: tile):
        engine = qnn_ext.build(module, make_target("sm_80"))
    code = engine.source("cuda")
    from_memory = re.findall(r"= \*\(float4\*\)\((?:x0|const0)_ptr \+", code)
    assert not re.search(r"(?:x0|const0)_ptr\[", code), "every load from memory is a vector"
    assert len(from_memory) == 8 and "__fmaf_rn" in code


def test_tiles_fit_every_gpu():
    """48 KiB of shared memory and 256 threads, which have 255 registers each on every architecture."""
    for tile in ffma.TILES:
        assert 64 <= tile.threads <= 256
        assert (tile.rows + tile.columns) * tile.depth * 4 <= 48 << 10
        assert tile.thread_rows * tile.thread_columns + tile.thread_rows + tile.thread_columns < 128
