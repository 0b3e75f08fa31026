"""Float convolutions over one dimension, and transposed ones, as ordinary convolutions over two.

    nn.conv1d            → nn.conv2d of one row
    nn.conv#d_transpose  → nn.conv2d of the phases of the output, as channels, interleaved: see numerics/phases.py

Nothing is multiplied that the model does not multiply, 0 · ∞ being NaN: where the stride does not divide the kernel,
the phases have different numbers of taps, and each is a convolution of its own. Sums are added in another order than
the model's, so their last bits may differ. Weights must be constant, quantized or not.

In quantized ONNX models (see `blocked_sums`) a transposed convolution has the sums of ONNX Runtime, which multiplies
matrices and then adds the results of all taps where they lie in the image (im2col backwards):

    Σ over the taps, from the first on, of Σ over blocks of channels of a convolution with one tap

so that what is quantized afterwards has its bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product as pairs
from math import prod
from typing import Any

import numpy as np
from tvm import IRModule, relax
from tvm.target import Target

from ..numerics.mlas import LINE, block_of_products
from ..numerics.phases import phase_weight
from ..op.arguments import data_of, factors_of
from ..op.base import constant, constant_value, shape_of
from ..op.folding import folded
from .blocked_sums import asks_for_blocks
from .float_weights import TRANSPOSED
from .layout.forms import static_shape
from .rewrite import Emit, bindings_of, op_name, rewrite, total_of

Pair = tuple[int, int]

DTYPES = ("float32", "float16")
TO_NCHW, TO_NHWC = [0, 3, 1, 2], [0, 2, 3, 1]
NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


def plain_convolutions(mod: IRModule, target: Target | None = None) -> IRModule:
    """`mod` with float convolutions over one dimension, and transposed ones, as nn.conv2d.

    target: where sums may have ONNX Runtime's order; None if nowhere
    """
    in_order = target is not None and asks_for_blocks(mod, target)
    values = {binding.var: binding.value for binding in bindings_of(mod["main"])}
    if not any(op_name(value) in _RULES for value in values.values()):
        return mod
    channels_last: dict[Any, relax.Expr] = {}  # NCHW -> NHWC that it is transposed from

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if op_name(expr) == "permute_dims" and [int(axis) for axis in expr.attrs.axes or ()] == TO_NCHW:
            transposed = emit(expr)
            channels_last[transposed] = data_of(expr)
            return transposed
        if op_name(expr) not in _RULES:
            return None
        weight, is_stored = _weight(expr, values)
        layouts = tuple(str(expr.attrs[attribute]) for attribute in ("data_layout", "kernel_layout", "out_layout"))
        if weight is None or not _is_float(expr) or layouts not in _CHANNELS_FIRST:
            return None
        block = _block(expr, is_stored) if in_order else None
        return _RULES[op_name(expr)](_Product(expr, weight, block, channels_last.get(data_of(expr))), emit)

    return rewrite(mod, rule)


@dataclass(frozen=True)
class _Product:
    """A convolution and its constant weights.

    block: of a transposed one, how many products of a tap are added before they are added to others; None if all
    products are one sum
    nhwc: what its data are transposed from, if that is NHWC
    """

    call: relax.Call
    weight: np.ndarray
    block: int | None
    nhwc: relax.Expr | None


def _weight(call: relax.Call, values: Mapping[Any, relax.Expr]) -> tuple[np.ndarray | None, bool]:
    """The constant weights of a convolution, or None, and whether they are dequantized."""
    weight = factors_of(call)[1]
    source = values.get(weight)
    if op_name(source) != "qnn.dequantize":
        return constant_value(weight), False
    known = folded(source)
    return None if known is None else constant_value(known), True


def _block(call: relax.Call, is_stored: bool) -> int | None:
    """As ONNX Runtime's product of the weights, transposed, by an image; those dequantized it transposes on the way."""
    if op_name(call) not in TRANSPOSED:
        return None
    _, depth, *image = shape_of(factors_of(call)[0])
    rows = prod(shape_of(factors_of(call)[1])[1:])
    columns = prod(image)
    return LINE if is_stored else block_of_products(rows, depth // int(call.attrs.groups), columns, packed=False)


_CHANNELS_FIRST = {(f"NC{axes}", kernel + axes, f"NC{axes}") for axes in ("W", "HW") for kernel in ("OI", "IO")}


def _is_float(call: relax.Call) -> bool:
    """Whether it is a product of floats, of static shapes without empty axes."""
    data, weight = factors_of(call)
    shapes = [static_shape(value) for value in (data, weight, call)]
    return all(shape is not None and 0 not in shape for shape in shapes) and str(data.ty.dtype) in DTYPES


def _conv1d(product: _Product, emit: Emit) -> relax.Expr:
    """(N, C, W) as (N, C, 1, W)."""
    attrs = product.call.attrs
    before, after = map(int, attrs.padding)
    result = relax.op.nn.conv2d(
        _as_rows(data_of(product.call), emit),
        constant(product.weight[:, :, None]),
        strides=(1, int(attrs.strides[0])),
        padding=(0, before, 0, after),
        dilation=(1, int(attrs.dilation[0])),
        groups=int(attrs.groups),
        out_dtype=attrs.out_dtype or None,
    )
    return _without_rows(emit(result))


def _as_rows(data: relax.Expr, emit: Emit) -> relax.Expr:
    """Data over one dimension, with an axis of rows before it."""
    n, c, width = shape_of(data)
    return emit(relax.op.reshape(data, [n, c, 1, width]))


def _without_rows(result: relax.Expr) -> relax.Call:
    n, c, _, width = shape_of(result)
    return relax.op.reshape(result, [n, c, width])


# ---- transposed convolutions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Transposed:
    """A transposed convolution over two dimensions: weights OHWI of each group, and its attributes.

    offset: rows and columns cut off the beginning; size: of the result; block: as that of `_Product`
    """

    weights: list[np.ndarray]
    strides: Pair
    dilation: Pair
    offset: Pair
    size: Pair
    out_dtype: Any
    block: int | None

    @property
    def kernel(self) -> Pair:
        return self.weights[0].shape[1], self.weights[0].shape[2]

    @property
    def rows(self) -> Pair:
        """Rows and columns of each phase that the result needs."""
        height, width = (
            (extent - 1 + start) // step + 1
            for extent, start, step in zip(self.size, self.offset, self.strides, strict=True)
        )
        return height, width


def _conv1d_transpose(product: _Product, emit: Emit) -> relax.Expr | None:
    attrs = product.call.attrs
    rows = _as_rows(data_of(product.call), emit)
    found = _transposed(
        replace(product, weight=product.weight[:, :, None]),
        strides=(1, int(attrs.strides[0])),
        dilation=(1, int(attrs.dilation[0])),
        offset=(0, int(attrs.padding[0])),
        size=(1, shape_of(product.call)[2]),
    )
    if found is None:
        return None
    return _without_rows(emit(_by_phases(emit(relax.op.permute_dims(rows, TO_NHWC)), found, emit)))


def _conv2d_transpose(product: _Product, emit: Emit) -> relax.Expr | None:
    attrs = product.call.attrs
    strides, dilation, offset = (
        (int(values[0]), int(values[1])) for values in (attrs.strides, attrs.dilation, attrs.padding)
    )
    _, _, height, width = shape_of(product.call)
    found = _transposed(product, strides, dilation, offset, (height, width))
    if found is None:
        return None
    data = data_of(product.call)
    return _by_phases(emit(relax.op.permute_dims(data, TO_NHWC)) if product.nhwc is None else product.nhwc, found, emit)


def _transposed(product: _Product, strides: Pair, dilation: Pair, offset: Pair, size: Pair) -> _Transposed | None:
    """What to compute; None where a phase would have no taps, or only some of those between dilated ones."""
    call, weight = product.call, product.weight
    without_taps = any(extent < step for extent, step in zip(weight.shape[2:], strides, strict=True))
    if without_taps or (strides != (1, 1) and dilation != (1, 1)):
        return None
    parts = np.split(weight.transpose(1, 2, 3, 0), int(call.attrs.groups), axis=3)
    return _Transposed(parts, strides, dilation, offset, size, call.attrs.out_dtype or None, product.block)


def _by_phases(nhwc: relax.Expr, one: _Transposed, emit: Emit) -> relax.Expr:
    """(N, H, W, C) → (N, O, H', W')."""
    kept = [min(extent, limit) for extent, limit in zip(shape_of(nhwc)[1:3], one.rows, strict=True)]
    nhwc = _crop(nhwc, (0, 0), (kept[0], kept[1]), emit)
    if any(extent % step for extent, step in zip(one.kernel, one.strides, strict=True)):
        phases = [
            _phases(
                nhwc, [weight[:, row :: one.strides[0], column :: one.strides[1]] for weight in one.weights], one, emit
            )
            for row, column in pairs(*map(range, one.strides))
        ]
        result = _interleaved(emit(relax.op.concat(phases, 3)), one, True, emit)
    else:
        result = _interleaved(_phases(nhwc, one.weights, one, emit, one.strides), one, False, emit)
    return relax.op.permute_dims(_crop(result, one.offset, one.size, emit), TO_NCHW)


def _phases(
    data: relax.Expr, weights: list[np.ndarray], one: _Transposed, emit: Emit, phases: Pair = (1, 1)
) -> relax.Expr:
    """The phases that these weights compute: channels (group, phase, channel)."""
    phased = np.concatenate([phase_weight(weight, phases) for weight in weights])
    reach = [(taps - 1) * step for taps, step in zip(phased.shape[1:3], one.dilation, strict=True)]
    if one.block is None:
        return emit(_convolution(data, phased, (reach[0], reach[1]), one))
    blocks = _blocks(data, phased, len(weights), one.block, emit)
    extents = zip(phased.shape[1:3], one.dilation, one.rows, strict=True)
    reaching = [range(min(taps, -(-rows // step))) for taps, step, rows in extents]
    taps = [
        total_of([emit(_convolution(*_at_tap(*block, place, one, emit), one)) for block in blocks], emit)
        for place in pairs(reaching[0], reaching[1])
    ]
    return total_of(taps, emit)


def _convolution(data: relax.Expr, weight: np.ndarray, before: Pair, one: _Transposed) -> relax.Call:
    """The convolution by these weights, with so many rows and columns of zeros before the data, to `one.rows`."""
    shape = shape_of(data)[1:3]
    reach = [(taps - 1) * step for taps, step in zip(weight.shape[1:3], one.dilation, strict=True)]
    after = [rows + taps - size - start for rows, taps, size, start in zip(one.rows, reach, shape, before, strict=True)]
    return relax.op.nn.conv2d(
        data,
        constant(np.ascontiguousarray(weight)),
        padding=(*before, *after),
        dilation=one.dilation,
        groups=len(one.weights),
        out_dtype=one.out_dtype,
        **NHWC,
    )


def _blocks(
    data: relax.Expr, weight: np.ndarray, groups: int, block: int, emit: Emit
) -> list[tuple[relax.Expr, np.ndarray]]:
    """Data and weights of each block of the channels of a group."""
    depth = weight.shape[3]
    if depth <= block:
        return [(data, weight)]
    n, height, width, channels = shape_of(data)
    found = []
    for start in range(0, depth, block):
        stop = min(start + block, depth)
        if groups == 1:
            part = emit(relax.op.strided_slice(data, axes=[3], begin=[start], end=[stop]))
        else:
            grouped = emit(relax.op.reshape(data, [n, height, width, groups, depth]))
            sliced = emit(relax.op.strided_slice(grouped, axes=[4], begin=[start], end=[stop]))
            part = emit(relax.op.reshape(sliced, [n, height, width, channels // depth * (stop - start)]))
        found.append((part, weight[..., start:stop]))
    return found


def _at_tap(
    data: relax.Expr, weight: np.ndarray, place: Pair, one: _Transposed, emit: Emit
) -> tuple[relax.Expr, np.ndarray, Pair]:
    """The data that the weights of one tap are multiplied by, these weights, and the rows and columns before them.

    place: of the tap, in the order in which the model has them, which is that of phases from the last on
    """
    before = (place[0] * one.dilation[0], place[1] * one.dilation[1])
    kept = [min(size, rows - start) for size, rows, start in zip(shape_of(data)[1:3], one.rows, before, strict=True)]
    row, column = (extent - 1 - at for extent, at in zip(weight.shape[1:3], place, strict=True))
    tap = weight[:, row : row + 1, column : column + 1]
    return _crop(data, (0, 0), (kept[0], kept[1]), emit), tap, before


def _interleaved(phased: relax.Expr, one: _Transposed, apart: bool, emit: Emit) -> relax.Expr:
    """The phases, whose channels are (group, row, column, channel), or (row, column, group, channel) if they were
    computed apart, as one image of (group, channel)."""
    if one.strides == (1, 1):
        return phased
    n, height, width, _ = shape_of(phased)
    (sh, sw), groups, out = one.strides, len(one.weights), one.weights[0].shape[0]
    parts, order = ([sh, sw, groups], [3, 4, 5]) if apart else ([groups, sh, sw], [4, 5, 3])
    row, column, group = order
    split = emit(relax.op.reshape(phased, [n, height, width, *parts, out]))
    moved = emit(relax.op.permute_dims(split, [0, 1, row, 2, column, group, 6]))
    return emit(relax.op.reshape(moved, [n, height * sh, width * sw, groups * out]))


def _crop(data: relax.Expr, begin: Pair, size: Pair, emit: Emit) -> relax.Expr:
    """`size` rows and columns from `begin` on."""
    if begin == (0, 0) and size == shape_of(data)[1:3]:
        return data
    end = [start + extent for start, extent in zip(begin, size, strict=True)]
    return emit(relax.op.strided_slice(data, axes=[1, 2], begin=list(begin), end=end))


_RULES = {
    "nn.conv1d": _conv1d,
    "nn.conv1d_transpose": _conv1d_transpose,
    "nn.conv2d_transpose": _conv2d_transpose,
}
