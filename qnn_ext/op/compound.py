"""Products of any rank, and normalizations, in the dialect's operators: what frontends and passes build on.

Everything here is channels first, as ONNX, PyTorch and MXNet write it. Results of products are integer accumulators in
units of (input scale · weight scale).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ShapeError
from .base import as_expr, constant, constant_value, shape_of
from .batch_matmul import batch_matmul
from .conv2d import conv2d
from .conv2d_transpose import conv2d_transpose
from .dense import dense
from .normalize import normalize
from .requantize import quantize, requantize

Emit = Callable[[Any], Any]


def value_ends(x: Any, emit: Emit) -> Any:
    """The least and the greatest value of a tensor, as `range_scale` takes them; a build reads the tensor once."""
    return emit(relax.op.stack([emit(relax.op.min(x)), emit(relax.op.max(x))]))


# ---- moves on expressions that may be constant -------------------------------------------------------------------


def reshape(value: Any, shape: Sequence[int], emit: Emit) -> Any:
    """`value` in another shape; constants are reshaped right away."""
    array = constant_value(value)
    if array is not None:
        return constant(array.reshape(tuple(shape)))
    return value if shape_of(value) == tuple(shape) else emit(relax.op.reshape(value, list(shape)))


def permute(value: Any, axes: Sequence[int], emit: Emit) -> Any:
    """`value` with its axes in another order; constants are permuted right away."""
    array = constant_value(value)
    if array is not None:
        return constant(array.transpose(tuple(axes)))
    return value if list(axes) == sorted(axes) else emit(relax.op.permute_dims(value, list(axes)))


def shifted(value: Any, zero_point: Any, axis: int, emit: Emit) -> Any:
    """value − zero_point as int16, for zero points that the products do not accept."""
    return emit(requantize(value, 1.0, zero_point, 1.0, 0, axis=axis, out_dtype="int16"))


# ---- convolution -------------------------------------------------------------------------------------------------


def convolution(
    data: Any,
    weight: Any,
    input_zero_point: Any,
    weight_zero_point: Any,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    emit: Emit,
    out_dtype: str = "int32",
) -> Any:
    """A convolution over 1, 2 or 3 spatial dimensions: acc = Σ (pad(data) − z_x)(weight − z_w).

    data: (N, C, spatial…), weight: (O, C / groups, kernel…); int8, uint8 or int16
    input_zero_point: scalar; weight_zero_point: scalar or a vector of O
    padding: all beginnings, then all ends, as ONNX writes it; stands for real 0.0

    One dimension is treated as an image of height 1. With three, the taps along the depth become input channels of a
    2-D convolution over all depths. Raises ShapeError.
    """
    rank = len(shape_of(data)) - 2
    _check_geometry(rank, strides, padding, dilation)
    if rank == 1:
        (n, c, w), (o, i, k) = shape_of(data), shape_of(weight)
        acc = convolution(
            reshape(data, (n, c, 1, w), emit),
            reshape(weight, (o, i, 1, k), emit),
            input_zero_point,
            weight_zero_point,
            strides=(1, *strides),
            padding=(0, padding[0], 0, padding[1]),
            dilation=(1, *dilation),
            groups=groups,
            emit=emit,
            out_dtype=out_dtype,
        )
        return reshape(acc, (n, o, shape_of(acc)[3]), emit)
    if rank == 3:
        return _convolution_3d(
            data, weight, input_zero_point, weight_zero_point, strides, padding, dilation, groups, emit, out_dtype
        )
    call = conv2d(
        data,
        weight,
        input_zero_point,
        weight_zero_point,
        1.0,
        1.0,
        strides=tuple(strides),  # type: ignore[arg-type]
        padding=tuple(padding),  # type: ignore[arg-type]
        dilation=tuple(dilation),  # type: ignore[arg-type]
        groups=groups,
        data_layout="NCHW",
        kernel_layout="OIHW",
        out_dtype=out_dtype,
    )
    return emit(call)


def _check_geometry(rank: int, strides: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> None:
    if rank not in (1, 2, 3):
        raise ShapeError(f"convolutions over {rank} spatial dimensions are not supported, only over 1, 2 and 3")
    if len(strides) != rank or len(dilation) != rank or len(padding) != 2 * rank:
        raise ShapeError(
            f"strides {tuple(strides)}, dilation {tuple(dilation)}, padding {tuple(padding)} do not match {rank}-D data"
        )


def _convolution_3d(
    data: Any,
    weight: Any,
    zx: Any,
    zw: Any,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    emit: Emit,
    out_dtype: str,
) -> Any:
    """acc[d] = Σ_t conv2d(x[d·s + t·δ], w[t]): the taps t are laid side by side as channels of one conv2d."""
    o, i, taps, kh, kw = shape_of(weight)
    data, zx = _pad_depth(data, zx, padding[0], padding[3], emit)
    planes, n, count = depth_taps(data, taps, strides[0], dilation[0], emit)
    acc = convolution(
        planes,
        reshape(weight, (o, i * taps, kh, kw), emit),
        zx,
        zw,
        strides=strides[1:],
        padding=(*padding[1:3], *padding[4:6]),
        dilation=dilation[1:],
        groups=groups,
        emit=emit,
        out_dtype=out_dtype,
    )
    return unfold_depth(acc, n, count, emit)


def _pad_depth(data: Any, zero_point: Any, front: int, back: int, emit: Emit) -> tuple[Any, Any]:
    """Data with real zeros (zero points) before and after it along the depth, and its zero point from then on."""
    if not front and not back:
        return data, zero_point
    data, zero_point, zero = _with_known_zero(data, zero_point, emit)
    widths = [0, 0, 0, 0, front, back, 0, 0, 0, 0]
    return emit(relax.op.nn.pad(data, widths, pad_mode="constant", pad_value=zero)), zero_point


def _with_known_zero(data: Any, zero_point: Any, emit: Emit) -> tuple[Any, Any, int]:
    """Data, its zero point, and the zero point as a number: data with a run-time zero point is shifted to 0."""
    zero = constant_value(as_expr(zero_point))
    if zero is None:
        return shifted(data, zero_point, -1, emit), 0, 0
    return data, zero_point, int(zero.reshape(()))


def depth_taps(data: Any, taps: int, stride: int, dilation: int, emit: Emit) -> tuple[Any, int, int]:
    """(N, C, D, H, W) as (N·D_out, C·taps, H, W), the taps of one channel side by side; also N and D_out."""
    n, c, depth, h, w = shape_of(data)
    count = (depth - (taps - 1) * dilation - 1) // stride + 1
    if count < 1:
        raise ShapeError(f"a kernel of depth {taps} does not fit into depth {depth}")
    slices = []
    for tap in range(taps):
        begin = tap * dilation
        end = begin + (count - 1) * stride + 1
        part = emit(relax.op.strided_slice(data, axes=[2], begin=[begin], end=[end], strides=[stride]))
        slices.append(emit(relax.op.expand_dims(part, 2)))
    stacked = slices[0] if taps == 1 else emit(relax.op.concat(slices, 2))  # (N, C, taps, D_out, H, W)
    moved = permute(stacked, [0, 3, 1, 2, 4, 5], emit)
    return reshape(moved, (n * count, c * taps, h, w), emit), n, count


def unfold_depth(acc: Any, n: int, count: int, emit: Emit) -> Any:
    """(N·D_out, O, H, W) -> (N, O, D_out, H, W)."""
    _, o, h, w = shape_of(acc)
    return permute(reshape(acc, (n, count, o, h, w), emit), [0, 2, 1, 3, 4], emit)


# ---- transposed convolution --------------------------------------------------------------------------------------


def transposed_convolution(
    data: Any,
    weight: Any,
    input_zero_point: Any,
    weight_zero_point: Any,
    *,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    emit: Emit,
    out_dtype: str = "int32",
) -> Any:
    """A transposed convolution over 1, 2 or 3 spatial dimensions: the gradient of `convolution`.

    data: (N, C, spatial…), weight: (C, O / groups, kernel…); padding: all beginnings, then all ends, cut off the
    result; output_padding: cells added at the end of the result. Zero points as in `convolution`. Raises ShapeError.
    """
    rank = len(shape_of(data)) - 2
    _check_geometry(rank, strides, padding, dilation)
    if rank == 1:
        (n, c, w), (i, o, k) = shape_of(data), shape_of(weight)
        acc = transposed_convolution(
            reshape(data, (n, c, 1, w), emit),
            reshape(weight, (i, o, 1, k), emit),
            input_zero_point,
            weight_zero_point,
            strides=(1, *strides),
            padding=(0, padding[0], 0, padding[1]),
            output_padding=(0, *output_padding),
            dilation=(1, *dilation),
            groups=groups,
            emit=emit,
            out_dtype=out_dtype,
        )
        return reshape(acc, (n, shape_of(acc)[1], shape_of(acc)[3]), emit)
    if rank == 3:
        return _transposed_3d(
            data,
            weight,
            input_zero_point,
            weight_zero_point,
            strides,
            padding,
            output_padding,
            dilation,
            groups,
            emit,
            out_dtype,
        )
    call = conv2d_transpose(
        data,
        weight,
        input_zero_point,
        weight_zero_point,
        1.0,
        1.0,
        strides=tuple(strides),  # type: ignore[arg-type]
        padding=tuple(padding),  # type: ignore[arg-type]
        output_padding=tuple(output_padding),  # type: ignore[arg-type]
        dilation=tuple(dilation),  # type: ignore[arg-type]
        groups=groups,
        data_layout="NCHW",
        kernel_layout="IOHW",
        out_dtype=out_dtype,
    )
    return emit(call)


def _transposed_3d(
    data: Any,
    weight: Any,
    zx: Any,
    zw: Any,
    strides: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    emit: Emit,
    out_dtype: str,
) -> Any:
    """Along the depth, a convolution with the reversed kernel over data with zeros between its planes:

    y[d] = Σ_u X[d + u·δ] w[taps − 1 − u], where X is x with stride − 1 zeros between and (taps − 1)·δ − pad in front.
    """
    i, o, taps, kh, kw = shape_of(weight)
    reach = (taps - 1) * dilation[0]
    size = (shape_of(data)[2] - 1) * strides[0] - padding[0] - padding[3] + reach + 1 + output_padding[0]
    if size < 1:
        raise ShapeError(f"a transposed convolution with a result of depth {size}")
    data, zx = _zeros_between_planes(data, zx, strides[0], emit)
    front = reach - padding[0]
    back = size + reach - front - shape_of(data)[2]
    data = _crop_depth(data, max(-front, 0), max(-back, 0), emit)
    data, zx = _pad_depth(data, zx, max(front, 0), max(back, 0), emit)
    planes, n, count = depth_taps(data, taps, 1, dilation[0], emit)
    turned = constant_value(weight)
    flipped = constant(turned[:, :, ::-1]) if turned is not None else emit(relax.op.flip(weight, 2))
    kernel = reshape(permute(flipped, [0, 2, 1, 3, 4], emit), (i * taps, o, kh, kw), emit)
    acc = transposed_convolution(
        planes,
        kernel,
        zx,
        zw,
        strides=strides[1:],
        padding=(*padding[1:3], *padding[4:6]),
        output_padding=output_padding[1:],
        dilation=dilation[1:],
        groups=groups,
        emit=emit,
        out_dtype=out_dtype,
    )
    return unfold_depth(acc, n, count, emit)


def _zeros_between_planes(data: Any, zero_point: Any, stride: int, emit: Emit) -> tuple[Any, Any]:
    if stride == 1:
        return data, zero_point
    data, zero_point, zero = _with_known_zero(data, zero_point, emit)
    n, c, depth, h, w = shape_of(data)
    filler = np.full((n, c, depth, stride - 1, h, w), zero, str(data.ty.dtype))
    paired = emit(relax.op.concat([emit(relax.op.expand_dims(data, 3)), constant(filler)], 3))
    flat = reshape(paired, (n, c, depth * stride, h, w), emit)
    return _crop_depth(flat, 0, stride - 1, emit), zero_point


def _crop_depth(data: Any, front: int, back: int, emit: Emit) -> Any:
    if not front and not back:
        return data
    depth = shape_of(data)[2]
    return emit(relax.op.strided_slice(data, axes=[2], begin=[front], end=[depth - back]))


# ---- matrix product ----------------------------------------------------------------------------------------------


def matmul(x: Any, y: Any, x_zero_point: Any, y_zero_point: Any, *, emit: Emit, out_dtype: str = "int32") -> Any:
    """NumPy's matmul of integers: acc[…,m,n] = Σ_k (x[…,m,k] − z_x)(y[…,k,n] − z_y[n]).

    x: (…, M, K), y: (…, K, N), int8, uint8 or int16; leading dimensions broadcast, and one-dimensional operands count
    as a row and a column, as in NumPy. x_zero_point: scalar; y_zero_point: scalar or a vector of N.
    A constant matrix y becomes qnn.dense, anything else qnn.batch_matmul. Raises ShapeError.
    """
    x_shape, y_shape = shape_of(x), shape_of(y)
    if not x_shape or not y_shape:
        raise ShapeError(f"matmul of scalars: shapes {x_shape} and {y_shape}")
    if len(x_shape) == 1:
        return _without_axis(
            matmul(reshape(x, (1, *x_shape), emit), y, x_zero_point, y_zero_point, emit=emit, out_dtype=out_dtype),
            -1 if len(y_shape) == 1 else -2,
            emit,
        )
    if len(y_shape) == 1:
        column = reshape(y, (*y_shape, 1), emit)
        return _without_axis(matmul(x, column, x_zero_point, y_zero_point, emit=emit, out_dtype=out_dtype), -1, emit)
    if x_shape[-1] != y_shape[-2]:
        raise ShapeError(
            f"matmul of shapes {x_shape} and {y_shape}: {x_shape[-1]} columns do not match {y_shape[-2]} rows"
        )
    if len(y_shape) == 2:
        return _matrix_product(x, y, x_zero_point, y_zero_point, emit, out_dtype)
    return _batched_product(x, y, x_zero_point, y_zero_point, emit, out_dtype)


def _without_axis(value: Any, axis: int, emit: Emit) -> Any:
    shape = list(shape_of(value))
    del shape[axis]
    return reshape(value, shape, emit)


def _matrix_product(x: Any, y: Any, zx: Any, zy: Any, emit: Emit, out_dtype: str) -> Any:
    """One matrix y for all rows of x, whatever their leading dimensions."""
    *lead, k = shape_of(x)
    rows, n = math.prod(lead), shape_of(y)[1]
    flat, columns = reshape(x, (rows, k), emit), permute(y, [1, 0], emit)
    if constant_value(columns) is not None:
        acc = emit(dense(flat, columns, zx, zy, 1.0, 1.0, out_dtype=out_dtype))
    else:
        columns, zy = _per_tensor(columns, zy, 0, emit)
        args = reshape(flat, (1, rows, k), emit), reshape(columns, (1, n, k), emit), zx, zy
        acc = emit(batch_matmul(*args, 1.0, 1.0, out_dtype=out_dtype))
    return reshape(acc, (*lead, n), emit)


def _batched_product(x: Any, y: Any, zx: Any, zy: Any, emit: Emit, out_dtype: str) -> Any:
    (*x_lead, m, k), (*y_lead, _, n) = shape_of(x), shape_of(y)
    try:
        lead = np.broadcast_shapes(tuple(x_lead), tuple(y_lead))
    except ValueError:
        raise ShapeError(f"matmul: leading dimensions {tuple(x_lead)} and {tuple(y_lead)} do not broadcast") from None
    rank = len(y_lead)
    columns = permute(y, [*range(rank), rank + 1, rank], emit)
    columns, zy = _per_tensor(columns, zy, rank, emit)
    left = reshape(_leading(x, lead, emit), (math.prod(_lead_of(x, lead)), m, k), emit)
    right = reshape(_leading(columns, lead, emit), (math.prod(_lead_of(columns, lead)), n, k), emit)
    acc = emit(batch_matmul(left, right, zx, zy, 1.0, 1.0, out_dtype=out_dtype))
    return reshape(acc, (*lead, m, n), emit)


def _lead_of(value: Any, lead: Sequence[int]) -> Sequence[int]:
    """The leading dimensions for `_leading`: all ones stay, since qnn.batch_matmul broadcasts a batch of 1."""
    own = shape_of(value)[:-2]
    return (1,) if math.prod(own) == 1 else lead


def _leading(value: Any, lead: Sequence[int], emit: Emit) -> Any:
    own, matrix = shape_of(value)[:-2], shape_of(value)[-2:]
    if math.prod(own) == 1 or tuple(own) == tuple(lead):
        return value
    return emit(relax.op.broadcast_to(value, [*lead, *matrix]))


def _per_tensor(columns: Any, zero_point: Any, axis: int, emit: Emit) -> tuple[Any, Any]:
    """Operand and zero point for qnn.batch_matmul, which takes a single zero point for all columns."""
    expr = as_expr(zero_point)
    if math.prod(shape_of(expr)) == 1:
        return columns, reshape(expr, (), emit)
    known = constant_value(expr)
    if known is not None and (known == known.flat[0]).all():
        return columns, constant(known.flat[0])
    return shifted(columns, zero_point, axis, emit), 0


# ---- rows --------------------------------------------------------------------------------------------------------


def integer_rows(x: Any, emit: Emit) -> tuple[Any, Any]:
    """The rows (N, D) of x (…, D) float32 as int8, and the scale (N,) of each: max |x| / 127, 1 for a row of zeros."""
    shape = shape_of(x)
    rows = reshape(x, (math.prod(shape[:-1]), shape[-1]), emit)
    largest = emit(relax.op.max(emit(relax.op.abs(rows)), -1))
    zero = emit(relax.op.equal(largest, as_expr(np.float32(0))))
    divided = emit(relax.op.divide(largest, as_expr(np.float32(127))))
    scale = emit(relax.op.where(zero, as_expr(np.float32(1)), divided))
    return emit(quantize(rows, scale, as_expr(np.int32(0)), axis=0, out_dtype="int8")), scale


# ---- normalizations ----------------------------------------------------------------------------------------------


def normalized_rows(
    data: Any, scale: Any, zero_point: Any, rows: Sequence[int], epsilon: float, centered: bool, emit: Emit
) -> Any:
    """The data, viewed as `rows` × everything else, with mean 0 and variance 1: real values in the data's shape."""
    shape = shape_of(data)
    flat = reshape(data, (*rows, math.prod(shape) // math.prod(rows)), emit)
    return reshape(emit(normalize(flat, scale, zero_point, epsilon=epsilon, centered=centered)), shape, emit)


def affine(real: Any, weight: Any, bias: Any, shape: Sequence[int], emit: Emit) -> Any:
    """real · weight + bias, both in `shape` each left out if it is None or neutral."""
    if weight is not None and not _is_all(weight, 1.0):
        real = emit(relax.op.multiply(real, reshape(weight, shape, emit)))
    if bias is not None and not _is_all(bias, 0.0):
        real = emit(relax.op.add(real, reshape(bias, shape, emit)))
    return real


def _is_all(expr: Any, value: float) -> bool:
    array = constant_value(expr)
    return array is not None and bool((array == value).all())
