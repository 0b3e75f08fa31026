"""Float convolutions over one dimension, and transposed ones, as ordinary convolutions over two.

    nn.conv1d            → nn.conv2d of one row
    nn.conv#d_transpose  → nn.conv2d of the phases of the output, as channels, interleaved: see numerics/phases.py

Nothing is multiplied that the model does not multiply, 0 · ∞ being NaN: where the stride does not divide the kernel,
the phases have different numbers of taps, and each is a convolution of its own. Sums are added in another order than
the model's, so their last bits may differ. Weights must be constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..numerics.phases import phase_weight
from ..op.arguments import factors_of
from ..op.base import constant, constant_value, shape_of
from .layout.forms import static_shape
from .rewrite import Emit, op_name, rewrite

Pair = tuple[int, int]

DTYPES = ("float32", "float16")
NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


def plain_convolutions(mod: IRModule) -> IRModule:
    """`mod` with float convolutions over one dimension, and transposed ones, as nn.conv2d."""

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        name = op_name(expr)
        if name not in _RULES or not _is_float(expr):
            return None
        layouts = tuple(str(expr.attrs[attribute]) for attribute in ("data_layout", "kernel_layout", "out_layout"))
        return _RULES[name](expr, emit) if layouts in _CHANNELS_FIRST else None

    return rewrite(mod, rule)


_CHANNELS_FIRST = {(f"NC{axes}", kernel + axes, f"NC{axes}") for axes in ("W", "HW") for kernel in ("OI", "IO")}


def _is_float(call: relax.Call) -> bool:
    """Whether it is a product of floats, by constant weights, of static shapes without empty axes."""
    data, weight = factors_of(call)
    shapes = [static_shape(value) for value in (data, weight, call)]
    filled = all(shape is not None and 0 not in shape for shape in shapes)
    return filled and str(data.ty.dtype) in DTYPES and constant_value(weight) is not None


def _conv1d(call: relax.Call, emit: Emit) -> relax.Expr:
    """(N, C, W) as (N, C, 1, W)."""
    attrs, (data, weight) = call.attrs, factors_of(call)
    before, after = map(int, attrs.padding)
    result = relax.op.nn.conv2d(
        *_as_rows(data, weight, emit),
        strides=(1, int(attrs.strides[0])),
        padding=(0, before, 0, after),
        dilation=(1, int(attrs.dilation[0])),
        groups=int(attrs.groups),
        out_dtype=attrs.out_dtype or None,
    )
    return _without_rows(emit(result))


def _as_rows(data: relax.Expr, weight: relax.Expr, emit: Emit) -> tuple[relax.Expr, relax.Expr]:
    """Data and constant weights over one dimension, with an axis of rows before it."""
    n, c, width = shape_of(data)
    known = constant_value(weight)
    assert known is not None  # _is_float
    return emit(relax.op.reshape(data, [n, c, 1, width])), constant(known[:, :, None])


def _without_rows(result: relax.Expr) -> relax.Call:
    n, c, _, width = shape_of(result)
    return relax.op.reshape(result, [n, c, width])


# ---- transposed convolutions -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Transposed:
    """A transposed convolution over two dimensions: weights OHWI of each group, and its attributes.

    offset: rows and columns cut off the beginning; size: of the result
    """

    weights: list[np.ndarray]
    strides: Pair
    dilation: Pair
    offset: Pair
    size: Pair
    out_dtype: Any

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


def _conv1d_transpose(call: relax.Call, emit: Emit) -> relax.Expr | None:
    attrs, (data, weight) = call.attrs, factors_of(call)
    rows, kernel = _as_rows(data, weight, emit)
    found = _transposed(
        call,
        np.asarray(constant_value(kernel)),
        strides=(1, int(attrs.strides[0])),
        dilation=(1, int(attrs.dilation[0])),
        offset=(0, int(attrs.padding[0])),
        size=(1, shape_of(call)[2]),
    )
    result = None if found is None else _by_phases(rows, found, emit)
    return None if result is None else _without_rows(emit(result))


def _conv2d_transpose(call: relax.Call, emit: Emit) -> relax.Expr | None:
    attrs, (data, weight) = call.attrs, factors_of(call)
    strides, dilation, offset = (
        (int(values[0]), int(values[1])) for values in (attrs.strides, attrs.dilation, attrs.padding)
    )
    _, _, height, width = shape_of(call)
    found = _transposed(call, np.asarray(constant_value(weight)), strides, dilation, offset, (height, width))
    return None if found is None else _by_phases(data, found, emit)


def _transposed(
    call: relax.Call, weight: np.ndarray, strides: Pair, dilation: Pair, offset: Pair, size: Pair
) -> _Transposed | None:
    """What to compute; None where a phase would have no taps, or only some of those between dilated ones."""
    without_taps = any(extent < step for extent, step in zip(weight.shape[2:], strides, strict=True))
    if without_taps or (strides != (1, 1) and dilation != (1, 1)):
        return None
    parts = np.split(weight.transpose(1, 2, 3, 0), int(call.attrs.groups), axis=3)
    return _Transposed(parts, strides, dilation, offset, size, call.attrs.out_dtype or None)


def _by_phases(data: relax.Expr, one: _Transposed, emit: Emit) -> relax.Expr:
    """(N, C, H, W) → (N, O, H', W') through NHWC."""
    nhwc = emit(relax.op.permute_dims(data, [0, 2, 3, 1]))
    kept = [min(extent, limit) for extent, limit in zip(shape_of(nhwc)[1:3], one.rows, strict=True)]
    nhwc = _crop(nhwc, (0, 0), (kept[0], kept[1]), emit)
    if any(extent % step for extent, step in zip(one.kernel, one.strides, strict=True)):
        phases = [
            emit(
                _convolution(
                    nhwc, [weight[:, row :: one.strides[0], column :: one.strides[1]] for weight in one.weights], one
                )
            )
            for row, column in product(*map(range, one.strides))
        ]
        result = _interleaved(emit(relax.op.concat(phases, 3)), one, True, emit)
    else:
        result = _interleaved(emit(_convolution(nhwc, one.weights, one, one.strides)), one, False, emit)
    return relax.op.permute_dims(_crop(result, one.offset, one.size, emit), [0, 3, 1, 2])


def _convolution(data: relax.Expr, weights: list[np.ndarray], one: _Transposed, phases: Pair = (1, 1)) -> relax.Call:
    """The convolution that computes phases from these weights: channels (group, phase, channel)."""
    phased = np.concatenate([phase_weight(weight, phases) for weight in weights])
    _, height, width, _ = shape_of(data)
    reach = [(taps - 1) * step for taps, step in zip(phased.shape[1:3], one.dilation, strict=True)]
    return relax.op.nn.conv2d(
        data,
        constant(np.ascontiguousarray(phased)),
        padding=(*reach, one.rows[0] - height, one.rows[1] - width),
        dilation=one.dilation,
        groups=len(weights),
        out_dtype=one.out_dtype,
        **NHWC,
    )


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
