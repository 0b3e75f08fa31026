"""Products of float16 and bfloat16 on tensor cores, on the emulated GPU: sums of float32 of exact products."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.describe import kernels_of
from qnn_ext.op.base import constant
from qnn_ext.passes.low_precision import at_precision
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8.cuda.tensor_core import WIDE_TILES
from qnn_ext.topi_int8.strategy import tiles_from
from tests.arm.test_float_products import LAYOUTS, ROUNDED, exact
from tests.compiling.program.small import small_module

from .instructions import ptx
from .models import run_model
from .test_ffma import CONVOLUTIONS, MATRICES

PRECISIONS = ("bfloat16", "float16")


def at(precision, build, arrays):
    """The module of build(emit, *variables) at a precision."""
    inputs = [(x.shape, str(x.dtype)) for x in arrays]
    module = small_module(lambda builder, params: [build(builder.emit, *params)], inputs)
    return qnn_ext.QnnModule(at_precision(module.ir, precision), module.inputs, module.outputs)


def products(module, architecture):
    kernels = kernels_of(lower_module(module.ir, make_target(architecture)))
    return [kernel.implementation for kernel in kernels if kernel.macs]


def close(found, expected, magnitudes, terms):
    """Each of the sums of sixteen products, and what comes behind them, may be rounded by an ulp."""
    return (np.abs(found - expected) <= (terms / 16 + 4) * 2.0**-23 * magnitudes).all()


@pytest.mark.sampled("precision")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name, precision, rng):
    """With a bias, an activation and a residual in the same kernel."""
    shape, weight_shape, attributes = CONVOLUTIONS[name]
    x, w, bias = (rng.standard_normal(size).astype(np.float32) for size in (shape, weight_shape, weight_shape[:1]))
    rounded = [ROUNDED[precision](value).astype(np.float64) for value in (x, w)]
    total, magnitudes = exact(*rounded, **attributes), exact(*map(np.abs, rounded), **attributes)
    residual = rng.standard_normal(total.shape).astype(np.float32)

    def build(emit, x, other):
        biased = emit(relax.op.add(emit(relax.op.nn.conv2d(x, constant(w), **attributes, **LAYOUTS)), constant(bias)))
        return emit(relax.op.add(emit(relax.op.nn.relu(biased)), other))

    module = at(precision, build, [x, residual])
    assert products(module, "sm_80") == [f"conv2d_mma_{precision}.cuda"]
    (found,) = run_model(module, "sm_80", [x, residual])
    magnitudes = magnitudes + np.abs(bias) + np.abs(residual)
    assert close(found, np.maximum(total + bias, 0) + residual, magnitudes, w[0].size)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MATRICES)
def test_matrices(name, precision, rng):
    *shapes, is_constant = MATRICES[name]
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    arrays = [x] if is_constant else [x, y]
    module = at(precision, lambda emit, x, *more: emit(relax.op.matmul(x, *(more or [constant(y)]))), arrays)
    (name_,) = products(module, "sm_80")
    assert f"_mma_{precision}." in name_
    (found,) = run_model(module, "sm_80", arrays)
    a, b = (ROUNDED[precision](value).astype(np.float64) for value in (x, y))
    assert close(found, a @ b, np.abs(a) @ np.abs(b), x.shape[-1])


@pytest.mark.one_in(4)
@pytest.mark.parametrize("tile", WIDE_TILES[:: len(WIDE_TILES) // 12], ids=str)
def test_other_tiles(tile, rng):
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 96), (96, 50)))
    module = at("bfloat16", lambda emit, x: emit(relax.op.matmul(x, constant(y))), [x])
    with tiles_from(lambda *_: tile):
        (found,) = run_model(module, "sm_80", [x])
    a, b = (ROUNDED["bfloat16"](value).astype(np.float64) for value in (x, y))
    assert close(found, a @ b, np.abs(a) @ np.abs(b), 96)


def test_turing_multiplies_float32(rng):
    """Its tensor cores have other shapes, and none for bfloat16."""
    y = rng.standard_normal((50, 33)).astype(np.float32)
    x = np.zeros((40, 50), np.float32)
    for precision in PRECISIONS:
        module = at(precision, lambda emit, x: emit(relax.op.matmul(x, constant(y))), [x])
        assert products(module, "sm_75") == ["dense_ffma.cuda"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_code(precision, rng):
    """One instruction for 16 × 8 × 16 products; copies of whole vectors, which overlap them."""
    y = rng.standard_normal((512, 64)).astype(np.float32)
    module = at(precision, lambda emit, x: emit(relax.op.matmul(x, constant(y))), [np.zeros((64, 512), np.float32)])
    engine = qnn_ext.build(module, make_target("sm_80"))
    source, kind = engine.source("cuda"), "bf16" if precision == "bfloat16" else "f16"
    assert f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32" in source
    assert "qnn_copy_16(" in source and "ldmatrix" in source
    assert f"f32.{kind}.{kind}.f32" in ptx(source, "sm_80")
