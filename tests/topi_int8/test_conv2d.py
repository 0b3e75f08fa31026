"""conv2d kernels against int64 NumPy: every instruction, odd shapes, extreme data, fused epilogues."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx

from qnn_ext.topi_int8 import Conv2dWorkload, candidates, select
from tests.cases.convolutions import SHAPES, conv, describe

from .kernels import CPUS, check, conv2d_reference, cpu_target, execute, integers, placeholder


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("workload", SHAPES, ids=describe)
def test_shapes(workload, cpu):
    check(workload, cpu_target(cpu))


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_prime_number_of_rows_that_leaves_l2(kernel):
    check(conv((1, 257 + kernel[0] - 1, 1024, 5), 8, kernel), cpu_target("native"))


@pytest.mark.parametrize("workload", SHAPES, ids=describe)
def test_generic_fallback(workload):
    target = cpu_target("native")
    check(workload, target, candidates(workload, target)[-1])


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("fill", [("max", "min"), ("max", "max"), ("min", "min")], ids="-".join)
@pytest.mark.parametrize("data_dtype", ["uint8", "int8"])
def test_extremes_do_not_saturate(cpu, fill, data_dtype):
    workload = conv((1, 6, 9, 64), 32, (3, 3), padding=(1, 1, 1, 1), data_dtype=data_dtype)
    check(workload, cpu_target(cpu), epilogue="none", fill=fill)


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("weight_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("data_dtype", ["int8", "uint8", "int16"])
def test_dtypes(cpu, data_dtype, weight_dtype):
    workload = conv((1, 9, 9, 8), 24, (3, 3), padding=(1, 1, 1, 1), data_dtype=data_dtype, weight_dtype=weight_dtype)
    check(workload, cpu_target(cpu), epilogue="none", pad_value=3)


def test_int64_accumulator():
    workload = conv(
        (1, 6, 6, 32), 16, (3, 3), padding=(1, 1, 1, 1), data_dtype="int16", weight_dtype="int16", out_dtype="int64"
    )
    check(workload, cpu_target("native"), epilogue="none", fill=("min", "min"), pad_value=-32768)


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("channels", [10, 17, 32, 100])
@pytest.mark.parametrize("epilogue", ["none", "residual", "fixed_point"])
def test_epilogues(cpu, channels, epilogue):
    check(conv((1, 9, 11, 16), channels, (3, 3), padding=(1, 1, 1, 1)), cpu_target(cpu), epilogue=epilogue)
    check(conv((1, 19, 19, 16), channels, (1, 1)), cpu_target(cpu), epilogue=epilogue)


def window_sum(workload: Conv2dWorkload, x: te.Tensor, pad_value: int) -> te.Tensor:
    """Sum of the input over each window and group: (N, OH, OW, groups)."""
    in_group = workload.in_channels // workload.groups
    r, s = te.reduce_axis((0, workload.kernel[0])), te.reduce_axis((0, workload.kernel[1]))
    c = te.reduce_axis((0, in_group))
    top, left = workload.padding[:2]

    def value(n, y, column, g):
        y = y * workload.strides[0] + r * workload.dilation[0] - top
        column = column * workload.strides[1] + s * workload.dilation[1] - left
        inside = tirx.all(y >= 0, y < workload.height, column >= 0, column < workload.width)
        loaded = tirx.if_then_else(inside, x[n, y, column, g * in_group + c].astype("int32"), pad_value)
        return te.sum(loaded, axis=[r, s, c])

    shape = (workload.batch, workload.out_height, workload.out_width, workload.groups)
    return te.compute(shape, value, name="window_sum")


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", [*CPUS, "generic"])
@pytest.mark.parametrize(
    "workload",
    [
        conv((1, 12, 12, 16), 32, (3, 3), padding=(1, 1, 1, 1)),
        conv((3, 19, 19, 64), 17, (1, 1)),
        conv((1, 9, 9, 32), 64, (3, 3), strides=(2, 2), padding=(0, 0, 1, 1), groups=2),
    ],
    ids=describe,
)
def test_window_sums_in_the_same_function(workload, cpu):
    rng, pad_value = np.random.default_rng(5), 11
    target = cpu_target("native" if cpu == "generic" else cpu)
    implementation = candidates(workload, target)[-1 if cpu == "generic" else 0]
    x = integers(rng, (workload.batch, workload.height, workload.width, workload.in_channels), "uint8", "random")
    weight_shape = (workload.out_channels, *workload.kernel, workload.in_channels // workload.groups)
    w = integers(rng, weight_shape, "int8", "random")
    zero_point = rng.integers(-20, 20, workload.out_channels, dtype=np.int32)
    packed = implementation.pack_weight(workload, w)

    tensors = [placeholder(name, array) for name, array in (("x", x), ("w", packed), ("zero_point", zero_point))]
    acc = implementation.compute(workload, *tensors[:2], pad_value)
    sums = window_sum(workload, tensors[0], pad_value)
    out_group = workload.out_channels // workload.groups
    corrected = te.compute(
        acc.shape, lambda n, y, x, c: acc[n, y, x, c] - sums[n, y, x, c // out_group] * tensors[2][c], name="corrected"
    )
    got = execute(workload, target, implementation, tensors, corrected, (x, packed, zero_point))
    shifted = w.astype(np.int64) - zero_point[:, None, None, None]
    np.testing.assert_array_equal(got, conv2d_reference(workload, x, shifted, pad_value))


def test_selection():
    workload = conv((1, 8, 8, 16), 16, (3, 3))
    names = {cpu: select(workload, cpu_target(cpu)).name for cpu in ("vnni_256", "avx512", "avx2", "x86-64")}
    assert names == {
        "vnni_256": "conv2d_nhwc_vpdpbusd_256.x86",
        "avx512": "conv2d_nhwc_vpmaddwd_512.x86",
        "avx2": "conv2d_nhwc_vpmaddwd_256.x86",
        "x86-64": "conv2d_nhwc_pmaddwd_128.x86",
    }
    wide = conv((1, 8, 8, 16), 16, (3, 3), data_dtype="int16", out_dtype="int64")
    assert select(wide, cpu_target("x86-64")).name == "conv2d_nhwc.generic"
