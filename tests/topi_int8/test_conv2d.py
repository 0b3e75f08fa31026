"""conv2d kernels against int64 NumPy: every instruction, odd shapes, extreme data, fused epilogues."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te, tirx

from qnn_ext.topi_int8 import Conv2dWorkload, candidates, select

from .kernels import CPUS, check, conv2d_reference, cpu_target, execute, integers, placeholder


def conv(shape, channels, kernel, strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1, **dtypes):
    """A workload on an input of shape (n, h, w, c)."""
    dtypes = {"data_dtype": "uint8", "weight_dtype": "int8"} | dtypes
    return Conv2dWorkload(*shape, channels, kernel, strides, padding, dilation, groups, **dtypes)


# fmt: off
SHAPES = [
    conv((1, 8, 8, 16), 16, (1, 1)),
    conv((3, 7, 5, 64), 64, (1, 1)),                                      # a batch is one row of pixels
    conv((1, 19, 19, 16), 17, (1, 1)),                                    # 361 pixels: no handy divisor
    conv((1, 13, 1, 5), 10, (1, 1)),
    conv((1, 1, 1, 64), 100, (1, 1)),                                     # one pixel
    conv((3, 9, 9, 17), 100, (1, 1), strides=(2, 2)),
    conv((1, 14, 14, 64), 64, (3, 3), padding=(1, 1, 1, 1)),
    conv((1, 7, 7, 64), 100, (3, 3), padding=(1, 1, 1, 1)),
    conv((3, 19, 23, 16), 17, (3, 3), padding=(1, 1, 1, 1)),
    conv((1, 17, 13, 1), 16, (3, 3), strides=(2, 2), padding=(0, 0, 1, 1)),
    conv((1, 31, 29, 3), 64, (5, 5), strides=(2, 2), padding=(1, 2, 2, 1)),   # a first layer
    conv((1, 35, 70, 3), 64, (7, 7), strides=(2, 2), padding=(3, 3, 3, 3)),   # its window as one run of memory
    conv((2, 11, 131, 3), 24, (3, 3), strides=(2, 1), padding=(0, 2, 1, 1)),
    conv((1, 27, 40, 2), 64, (5, 3), padding=(4, 0, 4, 2), dilation=(2, 1)),
    conv((1, 31, 31, 3), 16, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),   # 16 columns that no tile divides
    conv((1, 37, 75, 3), 16, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1)),   # 19 rows, 38 columns
    conv((3, 9, 11, 4), 10, (3, 3), strides=(1, 3), padding=(2, 0, 1, 3)),
    conv((1, 12, 12, 5), 16, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)),
    conv((1, 12, 12, 64), 17, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2)),
    conv((1, 5, 23, 17), 64, (1, 7), padding=(0, 3, 0, 3)),
    conv((1, 23, 5, 16), 1, (7, 1), padding=(3, 0, 3, 0)),
    conv((1, 5, 5, 64), 1, (5, 5)),                                       # the window is the image
    conv((1, 4, 4, 3), 1, (3, 3), padding=(1, 1, 1, 1)),
    conv((1, 9, 13, 57), 5, (1, 2), strides=(1, 2), padding=(1, 1, 2, 1)),    # nothing read behind a line
    conv((1, 9, 10, 16), 32, (3, 3), padding=(1, 1, 1, 1), groups=2),     # groups that fill lanes
    conv((1, 9, 10, 16), 64, (3, 3), strides=(2, 2), groups=4),
    conv((3, 6, 7, 12), 20, (3, 3), padding=(0, 1, 2, 3), groups=4),      # groups that do not
    conv((1, 8, 8, 10), 100, (1, 1), groups=2),
    conv((1, 8, 8, 64), 64, (3, 3), padding=(1, 1, 1, 1), groups=16),
    conv((2, 6, 5, 24), 336, (1, 1), groups=3),                           # seven blocks a group
    conv((1, 9, 10, 120), 120, (3, 3), padding=(1, 1, 1, 1), groups=2),   # a group's last block is not full
    conv((2, 7, 9, 180), 84, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1), groups=3),
    conv((2, 6, 7, 88), 88, (1, 1), groups=2),                            # the same, images as rows of pixels
    conv((3, 1, 11, 56), 88, (1, 1), groups=2),
    conv((1, 12, 9, 45), 63, (3, 3), padding=(2, 2, 2, 2), dilation=(2, 2), groups=3),  # odd channels, in and out
    conv((2, 8, 7, 35), 185, (3, 3), padding=(1, 1, 1, 1), groups=5),
    conv((1, 6, 7, 128), 416, (1, 1), groups=2),                          # 13 blocks a group
    conv((1, 7, 6, 21), 7, (3, 3), padding=(1, 1, 1, 1), groups=7),       # an output channel a group
    conv((1, 9, 9, 90), 90, (1, 3), strides=(1, 2), groups=3),            # groups read past the last channel
]
# fmt: on


def describe(workload: Conv2dWorkload) -> str:
    n, h, w, c = workload.batch, workload.height, workload.width, workload.in_channels
    text = f"{n}x{h}x{w}x{c}-{workload.out_channels}-k{workload.kernel[0]}x{workload.kernel[1]}"
    return text + f"-s{workload.strides}-p{workload.padding}-d{workload.dilation}-g{workload.groups}".replace(" ", "")


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


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("fill", [("max", "min"), ("max", "max"), ("min", "min")], ids="-".join)
@pytest.mark.parametrize("data_dtype", ["uint8", "int8"])
def test_extremes_do_not_saturate(cpu, fill, data_dtype):
    workload = conv((1, 6, 9, 64), 32, (3, 3), padding=(1, 1, 1, 1), data_dtype=data_dtype)
    check(workload, cpu_target(cpu), epilogue="none", fill=fill)


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
