"""Bilinear interpolation of images in two kernels: along the width, then along the height."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from ..op.arguments import data_of
from ..op.base import dims_of
from ..topi_int8.generic.operands import Expr
from .legalize_moves import OPAQUE, note

_MODES = ("half_pixel", "align_corners")
_ENLARGED = 2
"""How many rows of the result read a row of the data, at least, for an image between the two kernels to be worth it."""


def is_enlarged(call: relax.Call) -> bool:
    """Whether a call is an interpolation that `bilinear` computes faster than TVM's kernel."""
    attributes, data = call.attrs, data_of(call)
    if str(attributes.method) != "linear" or str(attributes.coordinate_transformation_mode) not in _MODES:
        return False
    if str(attributes.layout) not in ("NCHW", "NHWC") or str(call.ty.dtype) != "float32":
        return False
    rows, columns = (str(attributes.layout).index(axis) for axis in "HW")
    before, after = dims_of(data.ty), dims_of(call.ty)
    sizes = (before[rows], before[columns], after[rows], after[columns])
    if str(data.ty.dtype) != "float32" or not all(isinstance(size, int | tirx.IntImm) for size in sizes):
        return False
    return int(after[columns]) > 1 and int(after[rows]) >= _ENLARGED * int(before[rows])


def bilinear(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """The sums of TVM's kernel, which interpolates two rows along the width for each row of the result: here each row
    of the data once. What follows is fused with the second kernel, but not with the first, which would be repeated."""
    rows, columns = (str(call.attrs.layout).index(axis) for axis in "HW")
    mode, new = str(call.attrs.coordinate_transformation_mode), dims_of(call.ty)
    wide = builder.call_te(_along, data_of(call), columns, int(new[columns]), mode, primfunc_name_hint="resize_width")
    wide = builder.emit(wide)
    note(builder, builder.lookup_binding(wide), {"op_pattern": OPAQUE})
    return builder.call_te(_along, wide, rows, int(new[rows]), mode, primfunc_name_hint="resize2d")


def _along(x: te.Tensor, axis: int, new: int, mode: str) -> te.Tensor:
    """a·(1 − t) + b·t of the elements a and b around each place, of which the one behind an end is the one at it."""
    length = int(x.shape[axis])
    place = _places(length, new, mode)

    def value(*indices: Expr) -> Any:
        at = place(indices[axis])
        below = tirx.floor(at).astype("int32")
        share = at - below.astype("float32")

        def element(position: Expr) -> Expr:
            inside = tirx.max(tirx.min(position, length - 1), 0)
            return x(*indices[:axis], inside, *indices[axis + 1 :])

        return element(below) * (tirx.const(1.0, "float32") - share) + element(below + 1) * share

    shape = [new if number == axis else size for number, size in enumerate(x.shape)]
    return te.compute(shape, value, name="resize")


def _places(length: int, new: int, mode: str) -> Callable[[Expr], Expr]:
    """Where in the data an element of the result is, in float32."""
    half = tirx.const(0.5, "float32")
    if mode == "align_corners":
        step = tirx.const(float(np.float32(length - 1) / np.float32(new - 1)), "float32")
        return lambda index: step * index.astype("float32")
    step = tirx.const(float(np.float32(length) / np.float32(new)), "float32")
    return lambda index: (index.astype("float32") + half) * step - half
