"""Depthwise kernels on the emulated GPU: every output equals the NumPy reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tvm import te

from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import candidates
from qnn_ext.topi_int8.cuda import depthwise
from tests.cases.cuda import TARGET, conv
from tests.topi_int8.kernels import check, conv2d_reference, execute, integers, operand_shapes, placeholder

from .instructions import kernel_source

WORKLOADS = {
    "3x3": conv(1, 9, 11, 32, 32, groups=32),
    "strided": conv(2, 9, 10, 16, 16, stride=2, groups=16),
    "dilated": conv(1, 9, 9, 8, 8, dilation=2, groups=8),
    "5x5": conv(1, 7, 7, 24, 24, kernel=5, groups=24),
    "no padding": conv(2, 6, 7, 12, 12, groups=12, padding=(0, 0, 0, 0)),
    "uneven padding": conv(1, 8, 8, 8, 8, stride=2, groups=8, padding=(0, 0, 1, 1)),
    "odd channels": conv(1, 6, 6, 5, 5, groups=5),
    "two channels a thread": conv(1, 6, 6, 6, 6, groups=6),
    "multiplier 2": conv(1, 6, 6, 8, 16, groups=8),
    "multiplier 3": conv(1, 6, 6, 4, 12, groups=4),
    "multiplier 8": conv(1, 5, 5, 3, 24, stride=2, groups=3),
    "many taps": conv(1, 10, 10, 4, 4, kernel=9, groups=4),
    "uneven kernel": replace(conv(1, 6, 9, 8, 8, groups=8), kernel=(1, 5), padding=(0, 2, 0, 2)),
    "unsigned": replace(conv(1, 6, 6, 8, 8, groups=8), data_dtype="uint8"),
}
WIDE = {"weight_dtype": "int16"}
NINE_BITS = {**WIDE, "nine_bit_weights": True}  # what uint8 models have


def kernel(workload):
    return next(item for item in candidates(workload, TARGET) if item.name == "depthwise_conv2d_nhwc.cuda")


@pytest.mark.sampled("epilogue")
@pytest.mark.parametrize("epilogue", ["requantize", "residual", "none"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_depthwise(name, epilogue):
    check(WORKLOADS[name], TARGET, kernel(WORKLOADS[name]), epilogue=epilogue)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WORKLOADS)
def test_nine_bit_weights(name):
    workload = replace(WORKLOADS[name], **NINE_BITS)
    check(workload, TARGET, kernel(workload), epilogue="none")


@pytest.mark.sampled("epilogue")
@pytest.mark.parametrize("epilogue", ["requantize", "residual"])
@pytest.mark.parametrize("name", ["3x3", "two channels a thread", "multiplier 3", "many taps"])
def test_int16_weights(name, epilogue):
    """Over their whole range, data of either signedness."""
    workload = replace(WORKLOADS[name], **WIDE)
    check(workload, TARGET, kernel(workload), epilogue=epilogue)
    workload = replace(workload, data_dtype="uint8")
    check(workload, TARGET, kernel(workload), epilogue=epilogue)


@pytest.mark.one_in(2)
@pytest.mark.sampled("weights")
@pytest.mark.parametrize("weights", [{}, NINE_BITS], ids=["int8", "nine bits"])
@pytest.mark.parametrize("tile", depthwise.TILES, ids=str)
def test_all_tiles(tile, weights):
    workload = replace(conv(1, 7, 9, 8, 8, groups=8), **weights)
    check(workload, TARGET, kernel(workload).with_tile(tile))


@pytest.mark.sampled("weights")
@pytest.mark.parametrize("weights", [{}, NINE_BITS, WIDE], ids=["int8", "nine bits", "int16"])
@pytest.mark.parametrize("fill", [("min", "min"), ("min", "max"), ("max", "min"), ("max", "max")], ids="-".join)
def test_extremes(fill, weights):
    workload = replace(conv(1, 5, 5, 8, 8, groups=8), **weights)
    check(workload, TARGET, kernel(workload), epilogue="none", fill=fill, pad_value=-128)


def test_tiles_fit_registers():
    """A window of 9×9 does not: its values come row by row, and only small tiles remain."""
    workload = conv(1, 32, 32, 32, 32, kernel=9, groups=32)
    assert depthwise.tiles(workload)
    assert max(tile.rows * tile.columns for tile in depthwise.tiles(workload)) < 8
    bytes_only = conv(1, 32, 32, 32, 32, groups=32)
    assert depthwise.Tile(4, 4) in depthwise.tiles(bytes_only)
    assert set(depthwise.tiles(replace(bytes_only, **WIDE))) < set(depthwise.tiles(bytes_only))


def test_sums_beside_the_product(rng):
    """As weights with a zero point ask for: a reduction of the data that the epilogue reads."""
    workload = WORKLOADS["3x3"]
    implementation, (x_shape, w_shape) = kernel(workload), operand_shapes(workload)
    x, w = (integers(rng, shape, "int8", "random") for shape in (x_shape, w_shape))
    inputs = [placeholder(name, array) for name, array in (("x", x), ("w", implementation.pack_weight(workload, w)))]
    channel = te.reduce_axis((0, x_shape[-1]))
    acc = implementation.compute(workload, *inputs, 7)
    total = te.compute(acc.shape[:-1], lambda *i: te.sum(inputs[0](*i, channel).astype("int32"), axis=channel))
    out = te.compute(acc.shape, lambda *i: acc[i] - total(*i[:-1]) * 3)
    got = execute(workload, TARGET, implementation, [*inputs], out, (x, implementation.pack_weight(workload, w)))
    np.testing.assert_array_equal(got, conv2d_reference(workload, x, w, 7) - 3 * x.astype(int).sum(-1, keepdims=True))


def test_batches():
    """Image, row and column of a thread's tile are found again, however they divide the threads of a block."""
    for batch, size in ((8, 112), (3, 56), (64, 7)):
        workload = conv(batch, size, size, 96, 96, stride=2, groups=96)
        kernel_source(workload, make_target("sm_90"), kernel(workload))
    check(conv(4, 8, 8, 8, 8, stride=2, groups=8), TARGET, kernel(conv(4, 8, 8, 8, 8, stride=2, groups=8)))
