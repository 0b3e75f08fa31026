"""A plugin for qnn_ext: deformable convolution of ONNX, and of torchvision in TorchScript and torch.export.

A deformable convolution reads its data at positions that a network computes: for output pixel p and tap k,

    y[p] = Σ_k W_k · m[p, k] · x(p · stride − padding + k · dilation + offset[p, k])

where x(·) interpolates between the four nearest pixels, with zeros around the image. So it is a gather, `columns`, and
an ordinary convolution 1×1 of what was gathered. Only the gather is new; the product gets the kernels that every
product gets, also in integers.

Importing this file registers everything in it. As a module of an installed package it needs no import:

    [project.entry-points."qnn_ext.plugins"]
    deformable = "acme_qnn.deformable"

Sources: ONNX DeformConv, version 19; torchvision.ops.deform_conv2d.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx

from qnn_ext import ShapeError, plugins

# The operator. data: (N, H, W, C), float32 or integers that stand for (q − zero point) · scale. offset: rows and
# columns, (N, OH, OW, D, K, 2), and mask: (N, OH, OW, D, K), for K taps; each of D parts of the channels has its own.
# The result is float32, (N, OH, OW, G, K, C/G): the channels of G groups apart, as a convolution with groups needs
# them.


def columns_type(data, offset, mask, scale, zero_point, *, kernel, stride, padding, dilation, groups):
    """Type rule: what the operator accepts, and the shape and dtype of its result."""
    if (data.ndim, offset.ndim, mask.ndim) != (4, 6, 5) or offset.shape != (*mask.shape, 2):
        raise ShapeError(f"shapes {data.shape}, {offset.shape} and {mask.shape} do not fit together")
    batch, rows, columns, parts, taps = mask.shape
    channels = data.shape[3]
    if batch != data.shape[0] or taps != kernel[0] * kernel[1] or channels % parts or channels % groups:
        raise ShapeError(f"{channels} channels cannot be gathered by {parts} offsets of {taps} taps")
    return (batch, rows, columns, groups, taps, channels // groups), "float32"


def columns_reference(data, offset, mask, scale, zero_point, *, kernel, stride, padding, dilation, groups):
    """NumPy reference: defines every bit of the result, for any offset, in float32."""
    _, height, width, channels = data.shape
    batch, rows, columns, parts, taps = mask.shape
    tap, zero = np.arange(taps), np.float32(0)
    top = (np.arange(rows) * stride[0] - padding[0])[:, None, None, None] + tap // kernel[1] * dilation[0]
    left = (np.arange(columns) * stride[1] - padding[1])[:, None, None] + tap % kernel[1] * dilation[1]
    y, x = top.astype(np.float32) + offset[..., 0], left.astype(np.float32) + offset[..., 1]
    inside = (y > -1) & (y < height) & (x > -1) & (x < width)  # NaN is not
    y, x = np.where(inside, y, zero), np.where(inside, x, zero)
    upper, before = np.floor(y), np.floor(x)
    real = data.astype(np.float32) - zero_point.astype(np.float32)
    image = np.arange(batch)[:, None, None, None, None, None]
    channel = np.arange(channels).reshape(parts, 1, -1)
    terms = []
    for i, vertical in ((0, 1 - (y - upper)), (1, y - upper)):
        for j, horizontal in ((0, 1 - (x - before)), (1, x - before)):
            row, column = upper.astype(np.int32) + i, before.astype(np.int32) + j
            there = inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
            weight = np.where(there, vertical * horizontal, zero)[..., None]
            row, column = np.clip(row, 0, height - 1)[..., None], np.clip(column, 0, width - 1)[..., None]
            terms.append(weight * real[image, row, column, channel])
    total = ((terms[0] + terms[1]) + terms[2]) + terms[3]
    total = total * (mask * scale)[..., None]
    total = total.transpose(0, 1, 2, 4, 3, 5).reshape(batch, rows, columns, taps, groups, channels // groups)
    return total.transpose(0, 1, 2, 4, 3, 5)


def columns_kernel(data, offset, mask, scale, zero_point, *, kernel, stride, padding, dilation, groups):
    """The kernel, as three TE stages: the corners of each position, their weights, and the gather."""
    _, height, width, channels = (int(dim) for dim in data.shape)
    batch, rows, columns, parts, taps = (int(dim) for dim in mask.shape)
    zero = tirx.const(0.0, "float32")

    def one(parameter):  # of shape () or (1,)
        return parameter(*(0 for _ in parameter.shape))

    def position(n, oy, ox, d, k):
        top = oy * stride[0] - padding[0] + k // kernel[1] * dilation[0]
        left = ox * stride[1] - padding[1] + k % kernel[1] * dilation[1]
        y = top.astype("float32") + offset(n, oy, ox, d, k, 0)
        x = left.astype("float32") + offset(n, oy, ox, d, k, 1)
        inside = tirx.all(y > -1.0, y < float(height), x > -1.0, x < float(width))
        return tirx.Select(inside, y, zero), tirx.Select(inside, x, zero), inside

    def corner(n, oy, ox, d, k, axis):
        y, x, _ = position(n, oy, ox, d, k)
        return tirx.floor(tirx.Select(axis == 0, y, x)).astype("int32")

    corners = te.compute((batch, rows, columns, parts, taps, 2), corner, name="corners")

    def weight(n, oy, ox, d, k, which):
        y, x, inside = position(n, oy, ox, d, k)
        row, column = corners(n, oy, ox, d, k, 0), corners(n, oy, ox, d, k, 1)
        down, across = y - row.astype("float32"), x - column.astype("float32")
        row, column = row + which // 2, column + which % 2
        there = tirx.all(inside, row >= 0, row < height, column >= 0, column < width)
        vertical, horizontal = (
            tirx.Select(which // 2 == 0, 1.0 - down, down),
            tirx.Select(which % 2 == 0, 1.0 - across, across),
        )
        return tirx.Select(there, vertical * horizontal, zero)

    weights = te.compute((batch, rows, columns, parts, taps, 4), weight, name="weights")

    def gathered(n, oy, ox, g, k, c):
        channel = g * (channels // groups) + c
        d = channel // (channels // parts)
        total = None
        for which in range(4):
            row = tirx.max(tirx.min(corners(n, oy, ox, d, k, 0) + which // 2, height - 1), 0)
            column = tirx.max(tirx.min(corners(n, oy, ox, d, k, 1) + which % 2, width - 1), 0)
            real = data(n, row, column, channel).astype("float32") - one(zero_point).astype("float32")
            term = plugins.fence(weights(n, oy, ox, d, k, which) * real)  # rounded before it is added, as in NumPy
            total = term if total is None else total + term
        return total * (mask(n, oy, ox, d, k) * one(scale))

    return te.compute((batch, rows, columns, groups, taps, channels // groups), gathered, name="columns")


# `quantize` makes the data 8-bit integers, with whatever else reads them; offsets and masks stay float32.
columns = plugins.operator(
    "acme_columns",
    "data offset mask scale zero_point",
    infer=columns_type,
    reference=columns_reference,
    kernel=columns_kernel,
    annotate=lambda call: {"data": None},
    doc="what the taps of a deformable convolution read",
)


@plugins.integer_rule(columns)
def _columns_of_integers(call, context):
    """Between quantize and dequantize the kernel reads integers: a quarter of the bytes."""
    data = context.quantized(call.args[0])
    if data is None or not data.per_tensor:
        return context.refuse("its data has no single scale")
    offset, mask = (context.value(argument) for argument in call.args[1:3])
    attributes = {name: call.attrs[name] for name in ("kernel", "stride", "padding", "dilation", "groups")}
    return context.emit(columns.call(data.data, offset, mask, data.scale, data.zero_point, **attributes))


def deformable_convolution(emit, x, weight, offset, mask, bias, stride, padding, dilation, groups, parts):
    """The whole operator, (N, C, H, W), from the gather and operators that exist; `emit` binds an expression."""
    out, depth, *kernel = plugins.shape_of(weight)
    (batch, _, rows, width), taps = plugins.shape_of(offset), kernel[0] * kernel[1]
    offset = emit(relax.op.reshape(offset, (batch, parts, taps, 2, rows, width)))
    offset = emit(relax.op.permute_dims(offset, [0, 4, 5, 1, 2, 3]))
    if mask is None:
        mask = plugins.constant(np.ones((batch, rows, width, parts, taps), np.float32))
    else:
        mask = emit(relax.op.reshape(mask, (batch, parts, taps, rows, width)))
        mask = emit(relax.op.permute_dims(mask, [0, 3, 4, 1, 2]))
    x = emit(relax.op.permute_dims(x, [0, 2, 3, 1]))
    zero, one = np.int32(0), np.float32(1)
    geometry = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    read = emit(columns.call(x, offset, mask, one, zero, **geometry))
    read = emit(relax.op.reshape(read, (batch, rows, width, groups * taps * depth)))
    read = emit(relax.op.permute_dims(read, [0, 3, 1, 2]))
    weight = emit(relax.op.permute_dims(weight, [0, 2, 3, 1]))
    weight = emit(relax.op.reshape(weight, (out, taps * depth, 1, 1)))
    result = emit(relax.op.nn.conv2d(read, weight, groups=groups))
    return result if bias is None else relax.op.add(result, emit(relax.op.reshape(bias, (1, out, 1, 1))))


@plugins.onnx_converter("DeformConv", since=19)
def _from_onnx(node):
    pads, kernel = node.attribute("pads", [0, 0, 0, 0]), list(node.shape(1)[2:])
    if list(node.attribute("kernel_shape", kernel)) != kernel or len(kernel) != 2:
        raise node.malformed(f"kernel_shape does not fit weights of shape {node.shape(1)}")
    x, weight, offset = node.input(0), node.input(1), node.input(2)
    bias, mask = (node.input(i) if node.has_input(i) else None for i in (3, 4))
    stride, dilation = (node.attribute(name, [1, 1]) for name in ("strides", "dilations"))
    groups, parts = node.attribute("group", 1), node.attribute("offset_group", 1)
    return deformable_convolution(node.emit, x, weight, offset, mask, bias, stride, pads[:2], dilation, groups, parts)


@plugins.torchscript_converter("torchvision::deform_conv2d")
def _from_torchscript(node):
    x, weight, offset, bias = (node.expr(name) for name in ("input", "weight", "offset", "bias"))
    pairs = ([node[f"{name}_h"], node[f"{name}_w"]] for name in ("stride", "pad", "dilation"))
    mask = node.expr("mask") if node["use_mask"] else None
    return deformable_convolution(
        node.emit, x, weight, offset, mask, bias, *pairs, node["groups"], node["offset_groups"]
    )


@plugins.torch_export_converter("torchvision.deform_conv2d.default")
def _from_program(importer, x, weight, offset, mask, bias, *numbers):
    *geometry, groups, parts, use_mask = numbers
    pairs = (list(geometry[i : i + 2]) for i in (0, 2, 4))
    return deformable_convolution(
        importer.emit, x, weight, offset, mask if use_mask else None, bias, *pairs, groups, parts
    )
