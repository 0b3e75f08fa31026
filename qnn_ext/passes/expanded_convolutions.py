"""Float convolutions in quantized ONNX models that ONNX Runtime's MLAS expands to products of matrices: those over one
dimension, and those whose channels it does not move into blocks (see `blocked_convolutions`).

    conv(x, w)  →  conv(c₁, w₁) + conv(c₂, w₂) + …

with kernels of one element over the columns c: for each channel, the data under each element of the kernel. The blocks
are those of its products; within one, each sum is one chain of fused multiply-adds. A group of one result is a row
times a matrix: its products are rounded and added by fours (see `blocked_sums`).
"""

from __future__ import annotations

from itertools import product as places_of
from math import prod

import numpy as np
from tvm import relax

from ..numerics.mlas import block_of_products
from ..op.arguments import factors_of
from ..op.base import constant, constant_value, shape_of
from .blocked_sums import by_fours
from .layout.forms import static_shape
from .rewrite import Emit, op_name, total_of

_CONVOLUTIONS = {"nn.conv1d": ("NCW", "OIW"), "nn.conv2d": ("NCHW", "OIHW")}  # layouts of data and kernel


def is_expanded(call: relax.Expr) -> bool:
    """Whether it is a convolution by constant weights that MLAS expands, if its channels are not in blocks."""
    expected = _CONVOLUTIONS.get(op_name(call))
    if expected is None:
        return False
    data, weight = factors_of(call)
    attrs, known, shape = call.attrs, constant_value(weight), static_shape(data)
    if (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)) != (*expected, expected[0]):
        return False
    if known is None or shape is None or 0 in shape or 0 in known.shape or 0 in shape_of(call):
        return False
    is_vector = prod(shape_of(call)[2:]) == 1  # whose sums MLAS adds in other orders
    return {str(one.ty.dtype) for one in (data, weight, call)} == {"float32"} and not is_vector


def expanded(call: relax.Call, emit: Emit) -> relax.Expr:
    """The same result, of the columns."""
    data, weight = factors_of(call)
    known, groups = constant_value(weight), int(call.attrs.groups)
    assert known is not None
    kernel, size = known.shape[2:], shape_of(call)[2:]
    columns = _columns(call, kernel, size, emit)
    n, results, terms = shape_of(data)[0], known.shape[0], prod(known.shape[1:])
    split = emit(relax.op.reshape(columns, (n, groups, terms, 1, prod(size))))
    weights = known.reshape(groups, results // groups, terms)
    if results == groups:
        products = emit(relax.op.multiply(split, constant(weights.transpose(0, 2, 1)[:, :, :, None])))
        return relax.op.reshape(by_fours(products, 2, terms, emit), shape_of(call))
    block = block_of_products(results // groups, terms, prod(size), packed=False)
    parts = []
    for start in range(0, terms, block):
        stop = min(start + block, terms)
        part = emit(relax.op.strided_slice(split, [2], [start], [stop])) if block < terms else split
        image = emit(relax.op.reshape(part, (n, groups * (stop - start), 1, prod(size))))
        kernels = weights[:, :, start:stop].reshape(results, stop - start, 1, 1)
        parts.append(emit(relax.op.nn.conv2d(image, constant(np.ascontiguousarray(kernels)), groups=groups)))
    return relax.op.reshape(total_of(parts, emit), shape_of(call))


def _columns(call: relax.Call, kernel: tuple[int, ...], size: tuple[int, ...], emit: Emit) -> relax.Expr:
    """(N, C, elements of the kernel, …): the data under each of them."""
    data, attrs, rank = factors_of(call)[0], call.attrs, len(kernel)
    padding, strides, dilation = (list(map(int, one)) for one in (attrs.padding, attrs.strides, attrs.dilation))
    low, high = padding[:rank], padding[-rank:]
    if any(padding):
        widths = [width for pair in zip(low, high, strict=True) for width in pair]
        data = emit(relax.op.nn.pad(data, [0, 0, 0, 0, *widths]))
    axes, (n, channels) = list(range(2, 2 + rank)), shape_of(data)[:2]
    found = []
    for place in places_of(*map(range, kernel)):
        begin = [at * step for at, step in zip(place, dilation, strict=True)]
        end = [first + (count - 1) * step + 1 for first, count, step in zip(begin, size, strides, strict=True)]
        part = emit(relax.op.strided_slice(data, axes, begin, end, strides))
        found.append(emit(relax.op.reshape(part, (n, channels, 1, *size))))
    return found[0] if len(found) == 1 else emit(relax.op.concat(found, 2))
