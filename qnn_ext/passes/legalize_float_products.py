"""Float matrix products and convolutions (NHWC) legalized for vectors, whose lanes are columns or output channels.

Constant operands are packed here, at compile time. The terms of every sum stay in the order of TVM's legalization.
"""

from __future__ import annotations

import numpy as np
from tvm import relax, te, tirx

from ..op.arguments import factors_of
from ..op.base import constant, constant_value, shape_of

LANES = 16  # float32 values in the widest vector
ATTRIBUTES = {"op_pattern": 4}  # relax.TVMOpPattern.kOutEWiseFusable: elementwise operators may follow in one kernel
MIN_ROWS = 8  # rows of a product from which packing its other operand at run time pays


def _padded(size: int) -> int:
    return -(-size // LANES) * LANES


def _all_float32(call: relax.Call) -> bool:
    return all(str(value.ty.dtype) == "float32" for value in (*call.args, call))


# ---- matrix products ---------------------------------------------------------------------------------------------


def is_by_lanes(call: relax.Call) -> bool:
    """Whether the columns of a product are arranged for vectors: those of a constant matrix that several rows share;
    others if they do not fill whole vectors, and enough rows share them."""
    x, y = factors_of(call)
    lhs, rhs = shape_of(x), shape_of(y)
    if len(rhs) < 2 or len(lhs) < 2 or not _all_float32(call):
        return False
    if _packs(x, y):
        return True
    if rhs[-1] % LANES == 0:
        return False
    one_matrix = len(rhs) == 2 or lhs[:-2] == rhs[:-2]
    return one_matrix and (lhs[-2] >= MIN_ROWS or constant_value(y) is not None)


def _packs(x: relax.Expr, y: relax.Expr) -> bool:
    """Whether a strip of columns of a constant matrix serves several rows; for one, many strips are summed at once."""
    return len(shape_of(y)) == 2 and constant_value(y) is not None and shape_of(x)[-2] >= MIN_ROWS


def matmul(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """The product with its columns padded with zeros, cut back to the columns of the result. A constant matrix (k, n)
    is packed to (n / LANES, k, LANES), of which a strip of columns is contiguous, as in `conv2d`."""
    x, y = factors_of(call)
    columns, known = shape_of(y)[-1], constant_value(y)
    if known is not None and _packs(x, y):
        blocks = _with_zeros(known).reshape(len(known), -1, LANES)
        packed = constant(np.ascontiguousarray(blocks.transpose(1, 0, 2)))
        return builder.call_te(
            _product_of_strips, x, packed, columns, primfunc_name_hint="matmul", primfunc_attrs=ATTRIBUTES
        )
    if known is not None:
        padded = constant(_with_zeros(known))
    else:
        padded = builder.emit(builder.call_te(_pad_columns, y, primfunc_name_hint="pad_columns"))
    return builder.call_te(
        _first_columns_of_product, x, padded, columns, primfunc_name_hint="matmul", primfunc_attrs=ATTRIBUTES
    )


def _with_zeros(array: np.ndarray) -> np.ndarray:
    """The array with its last axis padded with zeros to a multiple of LANES."""
    columns = array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, _padded(columns) - columns)])


def _pad_columns(x: te.Tensor) -> te.Tensor:
    *outer, columns = (int(size) for size in x.shape)

    def padded(*i: tirx.Var) -> tirx.Expr:
        return tirx.if_then_else(i[-1] < columns, x(*i), tirx.const(0.0, x.dtype))

    return te.compute((*outer, _padded(columns)), padded, name="pad_columns")


def _product_of_strips(x: te.Tensor, y: te.Tensor, columns: int) -> te.Tensor:
    """x · y for y packed to (n / LANES, k, LANES): strip by strip of columns, which stays in the cache for all rows."""
    k = te.reduce_axis((0, int(x.shape[-1])), "k")
    product = te.compute(
        (y.shape[0], *x.shape[:-1], LANES), lambda *i: te.sum(x(*i[1:-1], k) * y(i[0], k, i[-1]), axis=k), name="matmul"
    )
    return te.compute(
        (*x.shape[:-1], columns), lambda *i: product(i[-1] // LANES, *i[:-1], i[-1] % LANES), name="columns"
    )


def _first_columns_of_product(x: te.Tensor, y: te.Tensor, columns: int) -> te.Tensor:
    """(x · y)[…, :columns]; y may lack the batch axes."""
    k = te.reduce_axis((0, int(x.shape[-1])), "k")
    batched = len(y.shape) > 2
    product = te.compute(
        (*x.shape[:-1], y.shape[-1]),
        lambda *i: te.sum(x(*i[:-1], k) * y(*(i[:-2] if batched else ()), k, i[-1]), axis=k),
        name="matmul",
    )
    return te.compute((*x.shape[:-1], columns), lambda *i: product(*i), name="columns")


# ---- convolutions ------------------------------------------------------------------------------------------------


def is_plain_nhwc(call: relax.Call) -> bool:
    """Whether it is a float convolution of NHWC data with constant weights, either without groups or depthwise with one
    output per channel."""
    attrs = call.attrs
    if attrs.data_layout != "NHWC" or attrs.out_layout != "NHWC" or set(attrs.kernel_layout) != set("OHWI"):
        return False
    data, weight = factors_of(call)
    groups, channels = int(attrs.groups), shape_of(data)[3]
    depthwise = groups == channels == shape_of(call)[3]
    return _all_float32(call) and constant_value(weight) is not None and (groups == 1 or depthwise)


def conv2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Σ over (kh, kw, ci) with weights packed to (co / LANES, kh, kw, ci, LANES), depthwise to (kh, kw, c).

    A strip of output channels then reads its weights contiguously; in rows of all channels they would often be a power
    of two apart and fall into the same few sets of the cache.
    """
    attrs, shape = call.attrs, shape_of(call)
    data, weight = factors_of(call)
    known = constant_value(weight)
    assert known is not None  # is_plain_nhwc
    hwio = known.transpose([str(attrs.kernel_layout).index(axis) for axis in "HWIO"])
    if int(attrs.groups) > 1:
        compute, packed = _depthwise_conv2d, np.ascontiguousarray(hwio[:, :, 0])
    else:
        blocks = _with_zeros(hwio).reshape(*hwio.shape[:3], -1, LANES)
        compute, packed = _conv2d, np.ascontiguousarray(blocks.transpose(3, 0, 1, 2, 4))
    geometry = [tuple(int(v) for v in values) for values in (attrs.strides, attrs.padding, attrs.dilation)]
    return builder.call_te(
        compute,
        data,
        constant(packed),
        shape,
        *geometry,
        primfunc_name_hint="conv2d",
        primfunc_attrs=ATTRIBUTES,
    )


Pair = tuple[int, int]


def _conv2d(
    x: te.Tensor, w: te.Tensor, shape: tuple[int, ...], strides: Pair, padding: tuple[int, ...], dilation: Pair
) -> te.Tensor:
    kh, kw, ci = (te.reduce_axis((0, int(w.shape[axis])), name) for axis, name in enumerate(("kh", "kw", "ci"), 1))
    data = _pad(x, padding)

    def element(n: tirx.Var, row: tirx.Var, column: tirx.Var, o: tirx.Var) -> tirx.Expr:
        y, x = row * strides[0] + kh * dilation[0], column * strides[1] + kw * dilation[1]
        return te.sum(data(n, y, x, ci) * w(o // LANES, kh, kw, ci, o % LANES), axis=[kh, kw, ci])

    return _first_channels(te.compute((*shape[:3], int(w.shape[0]) * LANES), element, name="conv2d"), shape)


def _depthwise_conv2d(
    x: te.Tensor, w: te.Tensor, shape: tuple[int, ...], strides: Pair, padding: tuple[int, ...], dilation: Pair
) -> te.Tensor:
    kh, kw = (te.reduce_axis((0, int(w.shape[axis])), name) for axis, name in enumerate(("kh", "kw")))
    data = _pad(x, padding)

    def element(n: tirx.Var, row: tirx.Var, column: tirx.Var, c: tirx.Var) -> tirx.Expr:
        y, x = row * strides[0] + kh * dilation[0], column * strides[1] + kw * dilation[1]
        return te.sum(data(n, y, x, c) * w(kh, kw, c), axis=[kh, kw])

    return te.compute(shape, element, name="conv2d")


def _pad(x: te.Tensor, padding: tuple[int, ...]) -> te.Tensor:
    if not any(padding):
        return x
    top, left, bottom, right = padding
    n, height, width, channels = (int(size) for size in x.shape)

    def padded(b: tirx.Var, row: tirx.Var, column: tirx.Var, c: tirx.Var) -> tirx.Expr:
        inside = tirx.all(row >= top, row < top + height, column >= left, column < left + width)
        return tirx.if_then_else(inside, x(b, row - top, column - left, c), tirx.const(0.0, x.dtype))

    return te.compute((n, height + top + bottom, width + left + right, channels), padded, name="pad")


def _first_channels(x: te.Tensor, shape: tuple[int, ...]) -> te.Tensor:
    if int(x.shape[-1]) == shape[-1]:
        return x
    return te.compute(shape, lambda *i: x(*i), name="channels")
