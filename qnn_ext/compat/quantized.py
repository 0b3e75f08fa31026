"""relay.qnn.op.*: signatures, layouts and defaults of Relay over the operators of `qnn_ext.op`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from .. import op as qnn
from ..errors import ShapeError
from ..op.base import shape_of
from ..op.simulated import dtype_code
from ..op.table import function_table
from ..qparams import QParams
from .arrays import array_of
from .expressions import Call, Constant, Expr, Op, as_expr, const
from .geometry import output_channels_first, pair, window_padding
from .lowering import OPERATORS, Context, operator
from .requantization import UNSET

__all__ = [
    "abs",
    "add",
    "avg_pool2d",
    "batch_matmul",
    "concatenate",
    "contrib_dense_pack",
    "conv2d",
    "conv2d_transpose",
    "dense",
    "dequantize",
    "erf",
    "exp",
    "hardswish",
    "leaky_relu",
    "log",
    "mul",
    "quantize",
    "requantize",
    "rsqrt",
    "sigmoid",
    "simulated_dequantize",
    "simulated_quantize",
    "softmax",
    "sqrt",
    "subtract",
    "tanh",
]

ROUNDING = "TONEAREST"  # of Relay's tir.round, which quantize and the tables use: midpoints away from zero


# ---- between real values and integers ----------------------------------------------------------------------------


@operator("qnn.quantize", operands=3)
def quantize(
    c: Context, data: Any, output_scale: Any, output_zero_point: Any, axis: int = -1, out_dtype: str = "int8"
) -> Any:
    """q = saturate(round(data / scale) + zero_point), midpoints away from zero."""
    return qnn.quantize(data, output_scale, output_zero_point, axis=axis, out_dtype=out_dtype, rounding=ROUNDING)


@operator("qnn.dequantize", operands=3)
def dequantize(
    c: Context, data: Any, input_scale: Any, input_zero_point: Any, axis: int = -1, out_dtype: str = "float32"
) -> Any:
    """x = (data − zero_point) · scale."""
    return qnn.dequantize(data, input_scale, input_zero_point, axis=axis, out_dtype=out_dtype)


@operator("qnn.requantize", operands=5)
def requantize(
    c: Context,
    data: Any,
    input_scale: Any,
    input_zero_point: Any,
    output_scale: Any,
    output_zero_point: Any,
    axis: int = -1,
    rounding: str = UNSET,
    compute_dtype: str = UNSET,
    out_dtype: str = "int8",
) -> Any:
    """From one scale and zero point to another; what rounding and arithmetic leave open, `requantize_config` says."""
    arithmetic = c.rounding(rounding, compute_dtype)
    return qnn.requantize(
        data,
        input_scale,
        input_zero_point,
        output_scale,
        output_zero_point,
        axis=axis,
        out_dtype=out_dtype,
        **arithmetic,
    )


def _simulated(name: str, function: Callable[..., Any]) -> Callable[..., Call]:
    OPERATORS[name] = lambda c, data, dtype, scale, zero_point, axis: function(data, dtype, scale, zero_point, axis)

    def build(data: Any, scale: Any, zero_point: Any, axis: int, dtype: Any) -> Call:
        if isinstance(dtype, str):
            dtype = const(dtype_code(None if dtype == "disable" else dtype), "int32")
        return Call(Op(name), [data, dtype, scale, zero_point], axis=axis)

    return build


_simulated_quantize = _simulated("qnn.simulated_quantize", qnn.simulated_quantize)
_simulated_dequantize = _simulated("qnn.simulated_dequantize", qnn.simulated_dequantize)


def simulated_quantize(
    data: Any, output_scale: Any, output_zero_point: Any, axis: int = -1, out_dtype: Any = "int8"
) -> Call:
    """quantize in float32; out_dtype: "int8", "uint8", "int32", "disable", or an expression of SQNN_DTYPE_TO_CODE."""
    return _simulated_quantize(data, output_scale, output_zero_point, axis, out_dtype)


def simulated_dequantize(
    data: Any, input_scale: Any, input_zero_point: Any, axis: int = -1, in_dtype: Any = "int8"
) -> Call:
    """dequantize in float32; in_dtype as in `simulated_quantize`."""
    return _simulated_dequantize(data, input_scale, input_zero_point, axis, in_dtype)


# ---- products ----------------------------------------------------------------------------------------------------


@operator("qnn.conv2d", operands=6)
def conv2d(
    c: Context,
    data: Any,
    kernel: Any,
    input_zero_point: Any,
    kernel_zero_point: Any,
    input_scale: Any,
    kernel_scale: Any,
    kernel_size: Any,
    channels: int | None = None,
    strides: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "int32",
) -> Any:
    """Σ (pad(data) − input_zero_point) · (kernel − kernel_zero_point); depthwise kernels with a multiplier M are
    (C, M, H, W) in OIHW, (H, W, C, M) in HWOI."""
    _check_out_layout(out_layout, data_layout)
    _check_kernel(kernel, kernel_layout, kernel_size)
    in_channels = shape_of(data)[data_layout.index("C")]
    weight, layout, multiplier = output_channels_first(kernel, kernel_layout, groups, in_channels, c.emit)
    zero_point = kernel_zero_point
    if multiplier > 1 and shape_of(zero_point) == (groups,):  # one for each input channel
        zero_point = c.emit(relax.op.repeat(zero_point, multiplier, 0))
    return qnn.conv2d(
        data,
        weight,
        input_zero_point,
        zero_point,
        input_scale,
        kernel_scale,
        strides=pair(strides),
        padding=window_padding(padding),
        dilation=pair(dilation),
        groups=groups,
        data_layout=data_layout,
        kernel_layout=layout,
        out_dtype=out_dtype,
    )


@operator("qnn.conv2d_transpose", operands=6)
def conv2d_transpose(
    c: Context,
    data: Any,
    weight: Any,
    input_zero_point: Any,
    kernel_zero_point: Any,
    input_scale: Any,
    kernel_scale: Any,
    strides: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: Any = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str = "",
    output_padding: Any = (0, 0),
    out_dtype: str = "int32",
) -> Any:
    """The transposed convolution of (data − input_zero_point) and (weight − kernel_zero_point); weight IOHW or HWIO,
    where, as in Relay, I are the input's channels."""
    _check_out_layout(out_layout, data_layout)
    _check_kernel(weight, kernel_layout, kernel_size)
    return qnn.conv2d_transpose(
        data,
        weight,
        input_zero_point,
        kernel_zero_point,
        input_scale,
        kernel_scale,
        strides=pair(strides),
        padding=window_padding(padding),
        output_padding=pair(output_padding),
        dilation=pair(dilation),
        groups=groups,
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        out_dtype=out_dtype,
    )


def _check_out_layout(out_layout: str, data_layout: str) -> None:
    if out_layout not in ("", data_layout):
        raise ShapeError(
            f"out_layout must be that of the data, {data_layout}, found {out_layout}: transpose the result"
        )


def _check_kernel(kernel: Any, layout: str, size: Any) -> None:
    """Relay took the window from `kernel_size`; ours is the kernel's own."""
    shape = shape_of(kernel)
    if size is not None and len(shape) == 4 and "H" in layout and "W" in layout:
        found = shape[layout.index("H")], shape[layout.index("W")]
        if tuple(pair(size)) != found:
            raise ShapeError(f"kernel_size {tuple(pair(size))} is not that of the kernel, {found} in {layout}")


@operator("qnn.dense", operands=6)
def dense(
    c: Context,
    data: Any,
    weight: Any,
    input_zero_point: Any,
    kernel_zero_point: Any,
    input_scale: Any,
    kernel_scale: Any,
    units: int | None = None,
    out_dtype: str = "int32",
) -> Any:
    """Σ_k (data[m, k] − input_zero_point) · (weight[n, k] − kernel_zero_point)."""
    return qnn.dense(
        data, weight, input_zero_point, kernel_zero_point, input_scale, kernel_scale, out_dtype=out_dtype or "int32"
    )


@operator("qnn.contrib_dense_pack", operands=6)
def contrib_dense_pack(
    c: Context,
    data: Any,
    weight: Any,
    input_zero_point: Any,
    kernel_zero_point: Any,
    input_scale: Any,
    kernel_scale: Any,
    kernel_layout: str = "NC",
    units: int | None = None,
    out_dtype: str = "int32",
) -> Any:
    """`dense` with a packed weight."""
    return qnn.contrib_dense_pack(
        data,
        weight,
        input_zero_point,
        kernel_zero_point,
        input_scale,
        kernel_scale,
        kernel_layout=kernel_layout,
        out_dtype=out_dtype,
    )


@operator("qnn.batch_matmul", operands=6)
def batch_matmul(
    c: Context,
    x: Any,
    y: Any,
    x_zero_point: Any,
    y_zero_point: Any,
    x_scale: Any,
    y_scale: Any,
    out_dtype: str = "int32",
) -> Any:
    """Σ_k (x[b, m, k] − x_zero_point) · (y[b, n, k] − y_zero_point)."""
    return qnn.batch_matmul(x, y, x_zero_point, y_zero_point, x_scale, y_scale, out_dtype=out_dtype)


# ---- several operands --------------------------------------------------------------------------------------------


def _binary(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def rule(
        c: Context,
        lhs: Any,
        rhs: Any,
        lhs_scale: Any,
        lhs_zero_point: Any,
        rhs_scale: Any,
        rhs_zero_point: Any,
        output_scale: Any,
        output_zero_point: Any,
        lhs_axis: int = -1,
        rhs_axis: int = -1,
    ) -> Any:
        qparams = (lhs_scale, lhs_zero_point, rhs_scale, rhs_zero_point, output_scale, output_zero_point)
        axes = {"lhs_axis": lhs_axis, "rhs_axis": rhs_axis}
        return function(lhs, rhs, *qparams, **axes, out_dtype=str(lhs.ty.dtype), **c.rounding())

    rule.__name__ = name
    rule.__doc__ = f"Quantized {name}; the result has the dtype of lhs."
    return operator(f"qnn.{name}", operands=8)(rule)


add, subtract, mul = _binary("add", qnn.add), _binary("subtract", qnn.subtract), _binary("mul", qnn.mul)


@operator("qnn.concatenate", operands=5)
def concatenate(
    c: Context,
    data: Any,
    input_scales: Any,
    input_zero_points: Any,
    output_scale: Any,
    output_zero_point: Any,
    axis: int,
) -> Any:
    """The tensors of a tuple, each requantized to the output's scale and zero point, one after the other."""
    dtype = str(data[0].ty.dtype)
    qparams = (input_scales, input_zero_points, output_scale, output_zero_point)
    return qnn.concatenate(data, *qparams, axis=axis, out_dtype=dtype, **c.rounding())


# ---- one operand -------------------------------------------------------------------------------------------------


def _unary(name: str) -> Callable[..., Any]:
    function = getattr(qnn, name)

    def rule(c: Context, x: Any, scale: Any, zero_point: Any, output_scale: Any, output_zero_point: Any) -> Any:
        return function(x, scale, zero_point, output_scale, output_zero_point, rounding=ROUNDING)

    rule.__name__ = name
    rule.__doc__ = f"Quantized {name} of 8-bit data, as a table; midpoints away from zero."
    return operator(f"qnn.{name}", operands=5)(rule)


UNARY = ("tanh", "exp", "sqrt", "rsqrt", "erf", "abs", "sigmoid", "hardswish", "log")
tanh, exp, sqrt, rsqrt, erf, abs, sigmoid, hardswish, log = map(_unary, UNARY)


def leaky_relu(
    x: Any, alpha: float, input_scale: Any, input_zero_point: Any, output_scale: Any, output_zero_point: Any
) -> Call:
    """Quantized leaky ReLU."""
    args = [x, input_scale, input_zero_point, output_scale, output_zero_point]
    return Call(Op("qnn.leaky_relu"), args, alpha=float(alpha))


OPERATORS["qnn.leaky_relu"] = lambda c, *args, alpha: qnn.leaky_relu(*args, alpha=alpha, rounding=ROUNDING)


@operator("qnn.softmax", operands=5)
def softmax(
    c: Context, x: Any, scale: Any, zero_point: Any, output_scale: Any, output_zero_point: Any, axis: int = -1
) -> Any:
    """Quantized softmax, with float32 accuracy where Relay's was an approximation by shifts."""
    dtype = str(x.ty.dtype)
    return qnn.softmax(x, scale, zero_point, output_scale, output_zero_point, axis=axis, out_dtype=dtype)


@operator("qnn.avg_pool2d", operands=5)
def avg_pool2d(
    c: Context,
    data: Any,
    input_scale: Any,
    input_zero_point: Any,
    output_scale: Any,
    output_zero_point: Any,
    pool_size: Any,
    strides: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    layout: str = "NHWC",
    out_layout: str = "",
) -> Any:
    """Averages over windows, rounded once; Relay rounded before it averaged, and truncated after."""
    _check_out_layout(out_layout, layout)
    return qnn.avg_pool2d(
        data,
        input_scale,
        input_zero_point,
        output_scale,
        output_zero_point,
        pool_size=pair(pool_size),
        strides=pair(strides),
        padding=window_padding(padding),
        dilation=pair(dilation),
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
        layout=layout,
        out_dtype=str(data.ty.dtype),
        **c.rounding(),  # type: ignore[arg-type]
    )


# ---- tables ------------------------------------------------------------------------------------------------------


@operator("qnn.lookup", operands=2)
def lookup(c: Context, data: Any, table: Any) -> Any:
    """table[data − lowest value of data's dtype]."""
    return qnn.table(data, table)


def create_integer_lookup_op(
    input_arg: Expr,
    floating_point_func: Callable[[np.ndarray], np.ndarray],
    in_scale: Any,
    in_zero_point: Any,
    out_scale: Any,
    out_zero_point: Any,
    in_axis: int = -1,
    out_axis: int = -1,
    in_dtype: str = "uint8",
    out_dtype: str = "uint8",
) -> Call:
    """relay.qnn.op.canonicalizations: a float function of 8-bit data as a table."""
    source = QParams(_value(in_scale), _value(in_zero_point), in_dtype)
    target = QParams(_value(out_scale), _value(out_zero_point), out_dtype)
    return lookup(input_arg, Constant(function_table(floating_point_func, source, target, ROUNDING)))


def _value(expr: Any) -> np.ndarray:
    expr = as_expr(expr)
    if not isinstance(expr, Constant):
        raise ShapeError("a table needs constant scales and zero points")
    return array_of(expr.data).reshape(())


def hardswish_func(x: np.ndarray) -> np.ndarray:
    """relay.qnn.op.legalizations: x · clip(x + 3, 0, 6) / 6."""
    return x * np.clip(x + 3.0, 0.0, 6.0) / 6.0
