"""conv2d_transpose as an ordinary convolution.

With constant weights: over all output phases at once, see numerics/phases.py. With run-time weights or zero points:
over the data with zeros between its pixels, with the kernel reversed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ... import op as qnn
from ...numerics.phases import dilate_weight, phase_weight, tap_counts
from ...op.base import OPS, call_attributes, constant, constant_value
from ...op.conv2d import permutation
from ...qparams import dtype_range
from ..rewrite import Emit
from .products import canonicalize_conv2d
from .registry import canonical

Pair = tuple[int, int]


@canonical("qnn.conv2d_transpose")
def canonicalize_conv2d_transpose(call: relax.Call, emit: Emit) -> relax.Expr:
    """qnn.conv2d_transpose in any layout as a convolution in NHWC."""
    attributes = call_attributes(call)
    layout = attributes["data_layout"]
    data, *operands = call.args
    if layout != "NHWC":
        data = emit(relax.op.permute_dims(data, list(permutation(layout, "NHWC"))))
    result = OPS["conv2d_transpose"].infer_type(call.args, attributes)
    size = int(result.shape[layout.index("H")]), int(result.shape[layout.index("W")])
    weight, input_zero_point, weight_zero_point, *_ = operands
    known = all(constant_value(arg) is not None for arg in (weight, input_zero_point, weight_zero_point))
    acc = (_by_phases if known else _by_zeros)(data, call, attributes, size, emit)
    if layout != "NHWC":
        acc = relax.op.permute_dims(emit(acc), list(permutation("NHWC", layout)))
    return acc


def _crop(data: relax.Expr, begin: Pair, size: Pair, emit: Emit) -> relax.Expr:
    """`size` rows and columns from `begin` on."""
    if begin == (0, 0) and size == _size(data):
        return data
    end = [start + extent for start, extent in zip(begin, size, strict=True)]
    return emit(relax.op.strided_slice(data, axes=[1, 2], begin=list(begin), end=end))


def _size(data: relax.Expr) -> Pair:
    return int(data.ty.shape[1]), int(data.ty.shape[2])


# ---- constant weights --------------------------------------------------------------------------------------------


def _by_phases(data: relax.Expr, call: relax.Call, attributes: dict[str, Any], size: Pair, emit: Emit) -> relax.Expr:
    _, known_weight, input_zero_point, weight_zero_point, *_ = call.args
    weight, zero_point = (np.asarray(constant_value(arg)) for arg in (known_weight, weight_zero_point))
    groups, phases = attributes["groups"], attributes["strides"]
    weight = weight.transpose(permutation(attributes["kernel_layout"], "OHWI"))
    low, high = dtype_range(str(weight.dtype))
    if zero_point.min() < low or zero_point.max() > high:
        weight = weight.astype(np.int16)
    out = weight.shape[0]
    zero_points = np.broadcast_to(zero_point.reshape(-1), (groups * out,)).reshape(groups, out)
    kernels = [
        dilate_weight(part, attributes["dilation"], zero)
        for part, zero in zip(np.split(weight, groups, axis=3), zero_points, strict=True)
    ]
    phased = [phase_weight(kernel, phases, zero) for kernel, zero in zip(kernels, zero_points, strict=True)]
    repeats = phases[0] * phases[1]

    offset = attributes["padding"][:2]
    taps = tap_counts(kernels[0].shape[1:3], phases)
    rows = tuple((extent - 1 + start) // step + 1 for extent, start, step in zip(size, offset, phases, strict=True))
    height, width = (min(extent, limit) for extent, limit in zip(_size(data), rows, strict=True))
    data = _crop(data, (0, 0), (height, width), emit)
    if zero_point.size > 1:
        zero_point = np.tile(zero_points[:, None], (1, repeats, 1)).reshape(-1)
    convolution = qnn.conv2d(
        data,
        constant(np.concatenate(phased)),
        input_zero_point,
        constant(zero_point.astype(np.int32)),
        1.0,
        1.0,
        padding=(taps[0] - 1, taps[1] - 1, rows[0] - height, rows[1] - width),
        groups=groups,
        out_dtype=attributes["out_dtype"],
    )
    acc = emit(canonicalize_conv2d(convolution, emit))
    return _crop(_interleave(acc, phases, groups, emit), offset, size, emit)


def _interleave(phased: relax.Expr, phases: Pair, groups: int, emit: Emit) -> relax.Expr:
    """(N, Y_h, Y_w, G·s_h·s_w·O) -> (N, s_h·Y_h, s_w·Y_w, G·O)."""
    if phases == (1, 1):
        return phased
    batch, height, width, channels = (int(dim) for dim in phased.ty.shape)
    (sh, sw), out = phases, channels // (groups * phases[0] * phases[1])
    split = emit(relax.op.reshape(phased, (batch, height, width, groups, sh, sw, out)))
    shuffled = emit(relax.op.permute_dims(split, [0, 1, 4, 2, 5, 3, 6]))
    return emit(relax.op.reshape(shuffled, (batch, height * sh, width * sw, groups * out)))


# ---- run-time weights or zero points -----------------------------------------------------------------------------


def _by_zeros(data: relax.Expr, call: relax.Call, attributes: dict[str, Any], size: Pair, emit: Emit) -> relax.Expr:
    _, weight, input_zero_point, weight_zero_point, *_ = call.args
    groups, strides, dilation = (attributes[key] for key in ("groups", "strides", "dilation"))
    weight = emit(relax.op.permute_dims(weight, list(permutation(attributes["kernel_layout"], "OHWI"))))
    out, kh, kw, depth = (int(dim) for dim in weight.ty.shape)
    if groups > 1:  # (O, kh, kw, G·I) -> (G·O, kh, kw, I)
        split = emit(relax.op.reshape(weight, (out, kh, kw, groups, depth // groups)))
        moved = emit(relax.op.permute_dims(split, [3, 0, 1, 2, 4]))
        weight = emit(relax.op.reshape(moved, (groups * out, kh, kw, depth // groups)))
    weight = _shifted(weight, weight_zero_point, 0, emit)
    for axis in (1, 2):
        weight = emit(relax.op.flip(weight, axis))
    data = _shifted(data, input_zero_point, -1, emit)
    for axis, step in zip((1, 2), strides, strict=True):
        data = _zeros_between(data, axis, step, emit)
    top, left = ((k - 1) * step for k, step in zip((kh, kw), dilation, strict=True))
    extra = attributes["output_padding"]
    acc = qnn.conv2d_accumulate(
        data,
        weight,
        padding=(top, left, top + extra[0], left + extra[1]),
        dilation=dilation,
        groups=groups,
        out_dtype=attributes["out_dtype"],
    )
    return _crop(emit(acc), attributes["padding"][:2], size, emit)


def _shifted(data: relax.Expr, zero_point: relax.Expr, axis: int, emit: Emit) -> relax.Expr:
    """int16 data − zero_point."""
    return emit(qnn.requantize(data, 1.0, zero_point, 1.0, 0, axis=axis, out_dtype="int16"))


def _zeros_between(data: relax.Expr, axis: int, step: int, emit: Emit) -> relax.Expr:
    """The data with step − 1 zeros between neighbours along an axis."""
    if step == 1:
        return data
    shape = [int(dim) for dim in data.ty.shape]
    zeros = constant(np.zeros((*shape[: axis + 1], step - 1, *shape[axis + 1 :]), str(data.ty.dtype)))
    paired = emit(relax.op.concat([emit(relax.op.expand_dims(data, axis + 1)), zeros], axis + 1))
    shape[axis] *= step
    flat = emit(relax.op.reshape(paired, shape))
    return emit(relax.op.strided_slice(flat, axes=[axis], begin=[0], end=[shape[axis] - step + 1]))
