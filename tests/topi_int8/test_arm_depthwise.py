"""Depthwise kernels of ARM against int64 NumPy, under emulation; shapes are those of test_depthwise_conv2d."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qnn_ext.topi_int8 import select

from .kernels import check, cpu_target
from .test_depthwise_conv2d import NINE_BITS, PAD, SHAPES, depthwise, describe

CPUS = ("asimd", "dotprod", "armv7")
SIGNED = {"data_dtype": "int8"}
WEIGHTS = {
    "pairable": {"pairable_weights": True},
    "int8": {},
    "nine_bits": NINE_BITS,
}
ENDS = [("max", "min"), ("max", "max"), ("min", "min"), ("min", "max")]


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("workload", SHAPES, ids=describe)
def test_shapes(workload, weights, cpu):
    workload = replace(workload, **SIGNED, **WEIGHTS[weights])
    target = cpu_target(cpu)
    assert select(workload, target).name.endswith(".arm_cpu")
    check(workload, target)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("fill", ENDS, ids="-".join)
def test_extremes_do_not_saturate(fill, weights, cpu):
    """Products of -128 with -128 and with -127 are just within 16 bits together; two with -128 are not."""
    workload = depthwise((1, 6, 9, 32), (5, 5), padding=(2, 2, 2, 2), **SIGNED, **WEIGHTS[weights])
    check(workload, cpu_target(cpu), epilogue="none", fill=fill, pad_value=-128)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("weight_dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("data_dtype", ["int8", "uint8"])
def test_dtypes(data_dtype, weight_dtype, cpu):
    workload = depthwise((1, 9, 9, 24), padding=PAD, data_dtype=data_dtype, weight_dtype=weight_dtype)
    check(workload, cpu_target(cpu), epilogue="none", pad_value=3)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("weight_dtype", ["int8", "int16"])
def test_int16_activations(weight_dtype, cpu):
    """In int32; one tap of 2^30 fits, nine do not."""
    kernel = (1, 1) if weight_dtype == "int16" else (3, 3)
    workload = depthwise((1, 6, 6, 20), kernel, data_dtype="int16", weight_dtype=weight_dtype)
    check(workload, cpu_target(cpu), epilogue="none", fill=("min", "min"), pad_value=-5)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("epilogue", ["none", "requantize", "residual", "fixed_point"])
@pytest.mark.parametrize("channels", [48, 20])
def test_epilogues(channels, epilogue, cpu):
    workload = depthwise((1, 14, 13, channels), padding=PAD, **SIGNED, **WEIGHTS["pairable"])
    check(workload, cpu_target(cpu), epilogue=epilogue)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("height", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 9])
def test_every_window(width, height, cpu):
    """Odd and even numbers of taps, unrolled and not, with strides, dilation, a multiplier and one-sided padding."""
    rng = np.random.default_rng([height, width])
    strides, dilation = (tuple(int(step) for step in rng.integers(1, high, 2)) for high in (4, 3))
    reach = [(size - 1) * step + 1 for size, step in zip((height, width), dilation, strict=True)]
    shape = (1, *(int(rng.integers(size, size + 9)) for size in reach), int(rng.integers(2, 40)))
    padding = tuple(int(size) for size in rng.integers(0, 3, 4))
    geometry = {"multiplier": int(rng.integers(1, 3)), "strides": strides, "padding": padding, "dilation": dilation}
    weights = WEIGHTS[str(rng.choice(["pairable", "int8"]))]
    check(depthwise(shape, (height, width), **geometry, **SIGNED, **weights), cpu_target(cpu))
