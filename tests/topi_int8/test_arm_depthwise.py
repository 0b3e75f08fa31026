"""Depthwise kernels of ARM against int64 NumPy, under emulation; shapes are those of test_depthwise_conv2d."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import select
from tests.cases.depthwise import NINE_BITS, PAD, SHAPES, depthwise, describe

from .kernels import ARM_CPUS, check, cpu_target
from .machine_code import assembly, innermost_loops, stored

CPUS = ("asimd", "dotprod", "armv7")
TAPS, PAIRS = "depthwise_conv2d_nhwc_sdot.arm_cpu", "depthwise_conv2d_nhwc.arm_cpu"
SIGNED = {"data_dtype": "int8"}
WEIGHTS = {
    "pairable": {"pairable_weights": True},
    "int8": {},
    "nine_bits": NINE_BITS,
}
ENDS = [("max", "min"), ("max", "max"), ("min", "min"), ("min", "max")]


@pytest.mark.sampled("weights", "cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("workload", SHAPES, ids=describe)
def test_shapes(workload, weights, cpu):
    workload = replace(workload, **SIGNED, **WEIGHTS[weights])
    target = cpu_target(cpu)
    assert select(workload, target).name.endswith(".arm_cpu")
    check(workload, target)


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("fill", ENDS, ids="-".join)
def test_extremes_do_not_saturate(fill, weights, cpu):
    """Products of -128 with -128 and with -127 are just within 16 bits together; two with -128 are not."""
    workload = depthwise((1, 6, 9, 32), (5, 5), padding=(2, 2, 2, 2), **SIGNED, **WEIGHTS[weights])
    check(workload, cpu_target(cpu), epilogue="none", fill=fill, pad_value=-128)


@pytest.mark.sampled("cpu")
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


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("epilogue", ["none", "requantize", "residual", "fixed_point"])
@pytest.mark.parametrize("channels", [48, 20])
def test_epilogues(channels, epilogue, cpu):
    workload = depthwise((1, 14, 13, channels), padding=PAD, **SIGNED, **WEIGHTS["pairable"])
    check(workload, cpu_target(cpu), epilogue=epilogue)


@pytest.mark.one_in(4)
@pytest.mark.sampled("cpu")
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


TAP_WORKLOADS = [
    depthwise((1, 25, 5, 64), padding=PAD, **SIGNED),  # an odd height: the last tile has a row beyond the image
    depthwise((1, 14, 15, 40), (5, 5), padding=(2, 2, 2, 2), **SIGNED),
    depthwise((2, 16, 18, 24), padding=(0, 0, 1, 1), strides=(2, 2), **SIGNED),
    depthwise((1, 12, 20, 32), (4, 2), strides=(1, 3), **SIGNED),
    depthwise((1, 15, 12, 9), padding=(3, 2, 3, 2), dilation=(3, 2), multiplier=2, **SIGNED),
]


@pytest.mark.parametrize("workload", TAP_WORKLOADS, ids=describe)
def test_forced_tiles_over_taps(workload):
    """Every fourth tile, in the order of cost, computes the same."""
    target = cpu_target("dotprod")
    implementation = select(workload, target)
    assert implementation.name == TAPS
    for tile in list(implementation.tiles(workload))[::4]:
        check(workload, target, implementation.with_tile(tile), epilogue="none", pad_value=-128)


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("fill", ENDS, ids="-".join)
@pytest.mark.parametrize("cpu", ["dotprod", "i8mm"])
def test_extremes_over_taps(fill, cpu):
    """128·128 in all taps, beside rows that weights of zero multiply."""
    check(depthwise((1, 9, 7, 24), padding=PAD, **SIGNED), cpu_target(cpu), epilogue="none", fill=fill, pad_value=-128)


def test_selection_of_taps():
    """Four rows at a time where the window has rows to multiply, bytes only, and an instruction for them."""
    window = depthwise((1, 28, 28, 64), padding=PAD, **SIGNED)
    fast, plain = make_target(ARM_CPUS["dotprod"], 1), make_target(ARM_CPUS["asimd"], 1)
    assert select(window, fast).name == TAPS
    for kernel in [(5, 5), (3, 1), (10, 4)]:
        assert select(replace(window, kernel=kernel), fast).name == TAPS
    for other in [{"kernel": (1, 1)}, {"kernel": (1, 9)}, {"data_dtype": "uint8"}, {"weight_dtype": "int16"}]:
        assert select(replace(window, pairable_weights=True, **other), fast).name == PAIRS
    assert select(window, plain).name == PAIRS


@pytest.mark.parametrize(
    "workload",
    [
        depthwise((1, 48, 48, 8), padding=PAD, **SIGNED),
        depthwise((1, 56, 56, 128), padding=(0, 0, 1, 1), strides=(2, 2), **SIGNED),
        depthwise((1, 14, 14, 512), padding=PAD, **SIGNED),
    ],
    ids=describe,
)
def test_tap_loop_spills_nothing(workload):
    """Rows are turned by their store, and the loop over tiles needs no more registers than there are."""
    target = make_target(ARM_CPUS["dotprod"], 1)
    lines = assembly(workload, target, select(workload, target))
    assert any(re.match(r"\s+st4\s", line) for line in lines)
    loops = [loop for loop in innermost_loops(lines) if any(re.match(r"\s+sdot\s", line) for line in loop)]
    assert loops
    for loop in loops:
        assert not any(stored(line) and "[sp" in line for line in loop)
