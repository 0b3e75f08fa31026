"""Depthwise kernels against int64 NumPy: instruction sets, channel counts, multipliers, windows and epilogues."""

from __future__ import annotations

import numpy as np
import pytest

from qnn_ext.topi_int8 import candidates, select
from qnn_ext.topi_int8.cpu import depthwise_conv2d
from tests.cases.depthwise import NINE_BITS, PAD, SHAPES, depthwise, describe

from .kernels import CPUS, check, cpu_target


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("workload", SHAPES, ids=describe)
def test_shapes(workload, cpu):
    check(workload, cpu_target(cpu))


@pytest.mark.parametrize("workload", SHAPES, ids=describe)
def test_generic_fallback(workload):
    target = cpu_target("native")
    check(workload, target, candidates(workload, target)[-1])


@pytest.mark.parametrize("channels", [2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 40, 63, 65, 72, 100, 127, 130])
def test_every_number_of_channels(channels):
    check(depthwise((1, 6, 5, channels), padding=PAD), cpu_target("native"), pad_value=200)


@pytest.mark.parametrize("width", range(1, 20))
def test_every_width(width):
    check(depthwise((1, 3, width, 16), padding=PAD), cpu_target("native"))


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("fill", [("max", "min"), ("max", "max"), ("min", "min")], ids="-".join)
@pytest.mark.parametrize("data_dtype", ["uint8", "int8"])
def test_extremes_do_not_saturate(cpu, fill, data_dtype):
    workload = depthwise((1, 6, 9, 32), (5, 5), padding=(2, 2, 2, 2), data_dtype=data_dtype)
    check(workload, cpu_target(cpu), epilogue="none", fill=fill)


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("weight_dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("data_dtype", ["int8", "uint8"])
def test_dtypes(cpu, data_dtype, weight_dtype):
    workload = depthwise((1, 9, 9, 24), padding=PAD, data_dtype=data_dtype, weight_dtype=weight_dtype)
    check(workload, cpu_target(cpu), epilogue="none", pad_value=3)


@pytest.mark.one_in(2)
@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("fill", [("random", "random"), ("max", "max"), ("max", "min")], ids="-".join)
@pytest.mark.parametrize(
    "workload",
    [
        depthwise((1, 9, 9, 40), padding=PAD, **NINE_BITS),
        depthwise((1, 8, 17, 8), padding=PAD, **NINE_BITS),
        depthwise((2, 7, 7, 33), (5, 5), padding=(2, 2, 2, 2), **NINE_BITS),
        depthwise((1, 12, 14, 8), padding=PAD, strides=(2, 2), **NINE_BITS),
        depthwise((1, 13, 9, 20), padding=(2, 2, 2, 2), multiplier=2, dilation=(2, 2), **NINE_BITS),
    ],
    ids=describe,
)
def test_nine_bit_weights(workload, cpu, fill):
    check(workload, cpu_target(cpu), epilogue="none", fill=fill, pad_value=130)


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("fill", [("random", "random"), ("min", "max"), ("min", "min")], ids="-".join)
def test_int16_activations_in_int32(cpu, fill):
    """255·32768·9 fits int32; with int16 weights at their minimum, nine products of 2³⁰ would not: one tap then."""
    kernel = (1, 1) if fill == ("min", "min") else (3, 3)
    weight_dtype = "int16" if fill == ("min", "min") else "int8"
    workload = depthwise((1, 6, 6, 20), kernel, data_dtype="int16", weight_dtype=weight_dtype)
    check(workload, cpu_target(cpu), epilogue="none", fill=fill, pad_value=-5)


@pytest.mark.parametrize("epilogue", ["none", "requantize", "residual", "fixed_point"])
@pytest.mark.parametrize("channels", [48, 20])
def test_epilogues(epilogue, channels):
    check(depthwise((1, 14, 13, channels), padding=PAD), cpu_target("native"), epilogue=epilogue)


@pytest.mark.parametrize("seed", range(20))
def test_random_workloads(seed):
    rng = np.random.default_rng(seed)
    kernel = tuple(int(size) for size in rng.integers(1, 6, 2))
    dilation = tuple(int(size) for size in rng.integers(1, 3, 2))
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilation, strict=True)]
    height, width = (int(rng.integers(size, size + 12)) for size in reach)
    workload = depthwise(
        (int(rng.integers(1, 3)), height, width, int(rng.integers(2, 50))),
        kernel,
        multiplier=int(rng.integers(1, 4)),
        strides=tuple(int(size) for size in rng.integers(1, 4, 2)),
        padding=tuple(int(size) for size in rng.integers(0, 3, 4)),
        dilation=dilation,
        data_dtype=str(rng.choice(["uint8", "int8"])),
    )
    check(workload, cpu_target("native"), pad_value=int(rng.integers(0, 100)), seed=seed)


def test_selection():
    target = cpu_target("native")
    assert select(depthwise((1, 8, 8, 16), data_dtype="int16"), target).name == "depthwise_conv2d_nhwc.x86"
    assert select(depthwise((1, 8, 8, 16), out_dtype="int64"), target).name == "conv2d_nhwc.generic"


def test_wide_accumulators():
    """int16 activations into int64 go to the generic kernel."""
    workload = depthwise((1, 6, 6, 20), padding=PAD, data_dtype="int16", weight_dtype="int8", out_dtype="int64")
    check(workload, cpu_target("native"), epilogue="none")


def test_weights_keep_their_size():
    """Packing adds nothing to weights whose channels fill whole vectors."""
    workload = depthwise((1, 8, 8, 32), padding=PAD)
    weight = np.arange(32 * 9, dtype=np.int64).astype("int8").reshape(32, 3, 3, 1)
    packed = depthwise_conv2d.pack_weight(workload, weight, depthwise_conv2d.Registers(lanes=16, columns=(4,)))
    assert packed.nbytes == weight.nbytes and packed.shape == (3, 3, 32)
    np.testing.assert_array_equal(packed[1, 2], weight[:, 1, 2, 0])
