"""conv2d for any integer dtypes, groups and CPU: plain loops over NHWC activations and HWIO weights.

The fallback below every tensorized kernel (priority 0); out_dtype int64 serves int16 activations.
"""

from __future__ import annotations

import numpy as np
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target import Target

from ...numerics.annotations import OPERAND
from ...targets.families import CPU_BACKENDS
from ..schedule_util import inline_epilogue, schedule_contraction, schedule_root_blocks
from ..strategy import Implementation, register
from ..workload import Conv2dWorkload


def pack_weight(workload: Conv2dWorkload, weight: np.ndarray) -> np.ndarray:
    """OHWI weights to HWIO: neighbouring output channels become neighbours in memory."""
    return np.ascontiguousarray(weight.transpose(1, 2, 3, 0))


def compute(workload: Conv2dWorkload, x: te.Tensor, w: te.Tensor, pad_value: int) -> te.Tensor:
    """The accumulator, (N, OH, OW, OC) in the workload's out_dtype."""
    in_group = workload.in_channels // workload.groups
    out_group = workload.out_channels // workload.groups
    kh = te.reduce_axis((0, workload.kernel[0]), "kh")
    kw = te.reduce_axis((0, workload.kernel[1]), "kw")
    ci = te.reduce_axis((0, in_group), "ci")
    data = _pad(workload, x, pad_value)

    def conv2d(n, y, column, o):
        row = y * workload.strides[0] + kh * workload.dilation[0]
        column = column * workload.strides[1] + kw * workload.dilation[1]
        channel = o // out_group * in_group + ci if workload.groups > 1 else ci
        value = data[n, row, column, channel].astype(workload.out_dtype)
        return te.sum(value * w[kh, kw, ci, o].astype(workload.out_dtype), axis=[kh, kw, ci])

    shape = (workload.batch, workload.out_height, workload.out_width, workload.out_channels)
    return te.compute(shape, conv2d, name="conv2d")


def _pad(workload: Conv2dWorkload, x: te.Tensor, pad_value: int) -> te.Tensor:
    if not any(workload.padding):
        return x
    top, left, bottom, right = workload.padding
    height, width = workload.height, workload.width

    def padded(n, y, column, c):
        inside = tirx.all(y >= top, y < top + height, column >= left, column < left + width)
        return tirx.if_then_else(inside, x[n, y - top, column - left, c], tirx.const(pad_value, x.dtype))

    shape = (workload.batch, height + top + bottom, width + left + right, workload.in_channels)
    return te.compute(shape, padded, name="pad", attrs={OPERAND: True})


def schedule(sch: Schedule, workload: Conv2dWorkload, target: Target) -> None:
    """Fuse the epilogue after each strip of output channels, run rows in parallel."""
    accumulator = sch.get_sblock("conv2d")
    output = inline_epilogue(sch, accumulator)
    schedule_root_blocks(sch, [accumulator, output], target)
    schedule_contraction(sch, accumulator, output, workload.macs, target, vectorize=workload.groups == 1)


register(
    Conv2dWorkload,
    Implementation(
        name="conv2d_nhwc.generic",
        priority=0,
        backends=CPU_BACKENDS,
        compute=compute,
        schedule=schedule,
        pack_weight=pack_weight,
    ),
)
