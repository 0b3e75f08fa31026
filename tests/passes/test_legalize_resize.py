"""Bilinear interpolation in two kernels: the bits of TVM's single one, by the interpreter."""

import numpy as np
import pytest
from tvm import relax, tirx

from qnn_ext.compiling.build import lower_module
from qnn_ext.op.evaluate import interpret
from qnn_ext.passes.legalize_float import float_legalizations
from tests.cpus import cpu_target

from .modules import run_lowered

X86 = cpu_target("x86-64", 1)


def kernels_and_results(x, size, layout="NCHW", mode="half_pixel"):
    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with builder.function("main", [data]):
        with builder.dataflow():
            scaled = builder.emit(relax.op.multiply(data, data))
            resized = builder.emit(
                relax.op.image.resize2d(
                    scaled, size, layout=layout, method="linear", coordinate_transformation_mode=mode
                )
            )
            result = builder.emit_output(relax.op.add(resized, resized))
        builder.emit_func_output(result)
    lowered = lower_module(builder.get(), X86)
    names = [var.name_hint for var in lowered.get_global_vars()]
    return names, run_lowered(lowered, [x], X86), interpret(builder.get(), [x])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mode", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("size", [(14, 35), (29, 11), (28, 3)])
def test_equals_one_kernel(rng, layout, mode, size):
    x = rng.standard_normal((2, 3, 7, 5) if layout == "NCHW" else (2, 7, 5, 3)).astype(np.float32)
    x.flat[:4] = np.inf, -np.inf, np.nan, -0.0
    names, (found,), (expected,) = kernels_and_results(x, size, layout, mode)
    np.testing.assert_array_equal(found, expected, strict=True)
    assert any("width" in name for name in names)


@pytest.mark.parametrize(("size", "dtype"), [((9, 10), "float32"), ((14, 10), "float64"), ((14, 1), "float32")])
def test_others_stay_one_kernel(rng, size, dtype):
    names, (found,), (expected,) = kernels_and_results(rng.standard_normal((1, 2, 7, 5)).astype(dtype), size)
    np.testing.assert_array_equal(found, expected, strict=True)
    assert not any("width" in name for name in names)


@pytest.mark.parametrize(("open_axis", "kernels"), [(0, 2), (2, 1)])
def test_open_sizes(open_axis, kernels):
    """Two kernels of images whose number is open, one if their height is."""
    shape = [2, 3, 7, 5]
    shape[open_axis] = tirx.Var("n", "int64")
    data = relax.Var("x", relax.TensorType(shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [data]):
        builder.emit_func_output(builder.emit(relax.op.image.resize2d(data, (14, 10), layout="NCHW", method="linear")))
    legal = relax.transform.LegalizeOps(float_legalizations())(builder.get())
    assert len(legal.get_global_vars()) == 1 + kernels
