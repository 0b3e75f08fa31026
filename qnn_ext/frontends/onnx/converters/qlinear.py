"""QLinearConv and QLinearMatMul: products of integers with int32 accumulators, requantized as in ONNX Runtime."""

from __future__ import annotations

from tvm import relax

from ....op import compound
from ....op.base import shape_of
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import along_rows, is_scalar, matmul, plus, requantize, scalar, times
from .geometry import window


def convolve(
    node: Node, data: relax.Expr, weight: relax.Expr, data_zero_point: relax.Expr, weight_zero_point: relax.Expr
) -> relax.Expr:
    """The int32 accumulator of a convolution of data (N, C, spatial…) with weights (O, C / group, kernel…)."""
    shape, kernel = shape_of(data), shape_of(weight)
    if len(shape) not in (3, 4, 5):
        raise node.unsupported(f"data of shape {shape}; supported: 1, 2 and 3 spatial dimensions")
    if len(kernel) != len(shape):
        raise node.malformed(f"data of shape {shape} and weights of shape {kernel} differ in rank")
    geometry = window(node, shape[2:], kernel[2:])
    return compound.convolution(
        data,
        weight,
        scalar(node, data_zero_point, "the zero point of the data"),
        weight_zero_point,
        strides=geometry.strides,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=node.attribute("group", 1),
        emit=node.emit,
    )


@converter("QLinearConv", since=10)
@converter("QLinearConv", domain=MICROSOFT)
def qlinear_conv(node: Node) -> relax.Expr:
    """q = saturate(rint(f32(acc + bias) · f32(f32(s_x·s_w) / s_y)) + z_y), padded with zero points (real zero).

    Bit-exact with ONNX Runtime's integer kernels on any operand dtypes.
    """
    data, channels_last = node.input(0), node.attribute("channels_last", 0)
    rank = len(node.shape(0))
    if channels_last:
        data = compound.permute(data, [0, rank - 1, *range(1, rank - 1)], node.emit)
    acc = convolve(node, data, node.input(3), node.zero_point(2), node.zero_point(5))
    if node.has_input(8):
        bias = compound.reshape(node.input(8), (-1,) + (1,) * (rank - 2), node.emit)
        acc = plus(node, acc, bias)
    output_scale = scalar(node, node.scale(6), "the scale of the result")
    scale = times(node, scalar(node, node.scale(1), "the scale of the data"), node.scale(4))
    result = requantize(node, acc, scale, output_scale, node.zero_point(7), node.dtype(7), axis=1)
    if channels_last:
        return relax.op.permute_dims(node.emit(result), [0, *range(2, rank), 1])
    return result


@converter("QLinearMatMul", since=10)
def qlinear_matmul(node: Node) -> relax.Expr:
    """q = saturate(rint(f32(acc) · f32(f32(s_a·s_b) / s_y)) + z_y); bit-exact with ONNX Runtime.

    Operands of any rank, constant or not; scales and zero points per tensor, per row of a, per column of b.
    """
    acc = matmul(node, node.input(0), node.input(3), node.zero_point(2), node.zero_point(5))
    a_scale, y_scale, y_zero_point = node.scale(1), node.scale(6), node.zero_point(7)
    scale = times(node, along_rows(node, a_scale), _flat(node, node.scale(4)))
    if not is_scalar(y_scale) or not is_scalar(y_zero_point):
        y_scale, y_zero_point = along_rows(node, y_scale), along_rows(node, y_zero_point)
    return requantize(node, acc, scale, y_scale, y_zero_point, node.dtype(7))


def _flat(node: Node, value: relax.Expr) -> relax.Expr:
    """Per-column scales (1, …, 1, N) as a vector, so that `requantize` takes its vector path."""
    shape = shape_of(value)
    return compound.reshape(value, shape[-1:], node.emit) if shape[:-1] == (1,) * (len(shape) - 1) and shape else value
