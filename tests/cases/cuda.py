"""Convolutions and kernels for GPUs."""

from __future__ import annotations

from dataclasses import replace

from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import Conv2dWorkload, Implementation, candidates
from qnn_ext.topi_int8.workload import Workload

TARGET = make_target("sm_61")


def kernel(workload: Workload, name: str = "dp4a") -> Implementation:
    return next(item for item in candidates(workload, TARGET) if f"_{name}." in item.name)


def conv(batch, height, width, ins, outs, kernel=3, stride=1, dilation=1, groups=1, padding=None) -> Conv2dWorkload:
    edge = dilation * (kernel - 1) // 2
    return Conv2dWorkload(
        batch=batch,
        height=height,
        width=width,
        in_channels=ins,
        out_channels=outs,
        kernel=(kernel, kernel),
        strides=(stride, stride),
        padding=padding or (edge, edge, edge, edge),
        dilation=(dilation, dilation),
        groups=groups,
        data_dtype="int8",
        weight_dtype="int8",
    )


CONVOLUTIONS = {
    "whole vectors": conv(1, 9, 7, 16, 24),
    "first layer": conv(2, 11, 12, 3, 20, kernel=7, stride=2),
    "1x1": conv(1, 6, 6, 32, 32, kernel=1),
    "1x1 strided": conv(1, 8, 8, 8, 9, kernel=1, stride=2),
    "dilation": conv(2, 5, 6, 12, 9, dilation=2),
    "groups": conv(1, 8, 8, 32, 48, groups=4),
    "odd groups": conv(1, 7, 7, 6, 10, groups=2),
    "uneven": replace(conv(1, 6, 6, 16, 16), kernel=(2, 3), strides=(1, 2), padding=(0, 1, 1, 0)),
    "larger": conv(1, 14, 14, 64, 96, padding=(0, 0, 1, 1)),
}
