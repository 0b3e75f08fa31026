"""Which addressing mode a convolution takes, and how much of the input its copies hold."""

from __future__ import annotations

import pytest

from qnn_ext.topi_int8 import Conv2dWorkload
from qnn_ext.topi_int8.arm_cpu import smmla_conv2d
from qnn_ext.topi_int8.cpu import conv2d
from qnn_ext.topi_int8.x86.intrin import INSTRUCTIONS

VNNI = next(instruction for instruction in INSTRUCTIONS if instruction.name == "vpdpbusd_512")


def workload(
    size: int, channels: int, kernel: int, stride: int = 1, pad: int = 0, data: str = "uint8"
) -> Conv2dWorkload:
    return Conv2dWorkload(
        1, size, size, channels, 32, (kernel, kernel), (stride, stride), (pad,) * 4, (1, 1), 1, data, "int8"
    )


@pytest.mark.parametrize(
    ("mode", "shape"),
    [
        ("Flat", (14, 64, 1)),
        ("Spatial", (14, 64, 3, 1, 1)),
        ("Rows", (14, 3, 1)),
        ("Window", (64, 3, 3, 1, 1)),
    ],
)
def test_mode_of_dot_products(mode, shape):
    assert type(conv2d.plan(workload(*shape), VNNI).mode).__name__ == mode


@pytest.mark.parametrize(
    ("mode", "shape"),
    [
        ("Flat", (14, 64, 1, 2)),
        ("Spatial", (14, 64, 3, 1, 1)),
        ("Rows", (14, 12, 3, 1, 1)),
        ("Window", (64, 3, 3, 2, 1)),
    ],
)
def test_mode_of_smmla(mode, shape):
    assert type(smmla_conv2d.plan(workload(*shape, data="int8")).mode).__name__ == mode


def test_a_copy_holds_what_the_last_tap_reads():
    """Padded to whole tiles, with a step of four channels more than there are."""
    layout = conv2d.plan(workload(9, 6, 5, 2, 2), VNNI)
    height, width = layout.mode.reach(layout.rows, layout.columns)
    assert layout.staged
    assert height == (layout.rows - 1) * 2 + 5
    assert width == (layout.columns - 1) * 2 + 5
