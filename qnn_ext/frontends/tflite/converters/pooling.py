"""AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D over NHWC windows; padding is never counted."""

from __future__ import annotations

from tvm import relax

from .... import op as qnn
from ..node import Node
from ..registry import converter
from .convolution import check_rank4, strides_and_dilation, window_padding
from .window_means import window_mean


def _window(node: Node) -> dict:
    """The window as keyword arguments for the pooling operators, Relax's and our own."""
    check_rank4(node, 0)
    pool_size = (node.options["filter_height"], node.options["filter_width"])
    if min(pool_size) < 1:
        raise node.malformed(f"the window {pool_size} must be positive")
    strides, _ = strides_and_dilation(node)
    padding = window_padding(node, node.shape(0)[1:3], pool_size, strides, (1, 1))
    return {"pool_size": pool_size, "strides": strides, "padding": padding, "layout": "NHWC"}


@converter("AVERAGE_POOL_2D", max_version=3)
def convert_average_pool2d(node: Node) -> relax.Expr:
    """The mean of the integers themselves by TFLite's rule, in either numerics. Input and output share one scale;
    TFLite ignores a file that says otherwise. Floats are summed in XNNPACK's order, where it takes them."""
    window = _window(node)
    if not node.is_quantized(0):
        _check_float(node)
        places = (window["pool_size"], window["strides"], window["padding"])
        mean = window_mean(node, *places) if node.follows_xnnpack else None
        if mean is None:
            mean = relax.op.nn.avg_pool2d(node.input(0), count_include_pad=False, **window)
        return node.activate(mean)
    target = node.output_qparams()
    qparams = (target.scale, target.zero_point, target.scale, target.zero_point)
    return node.activate(qnn.avg_pool2d(node.input(0), *qparams, rounding="TFLITE", out_dtype=target.dtype, **window))


@converter("MAX_POOL_2D", max_version=3)
def convert_max_pool2d(node: Node) -> relax.Expr:
    """The largest integer is the largest real value, so this works on the integers directly."""
    if not node.is_quantized(0):
        _check_float(node)
    return node.activate(relax.op.nn.max_pool2d(node.input(0), **_window(node)))


@converter("L2_POOL_2D", max_version=1)
def convert_l2_pool2d(node: Node) -> relax.Expr:
    """√(mean of squares), in float32 only, as in TFLite."""
    _check_float(node)
    data, window = node.input(0), _window(node)
    squares = node.emit(relax.op.multiply(data, data))
    mean = node.emit(relax.op.nn.avg_pool2d(squares, count_include_pad=False, **window))
    return node.activate(relax.op.sqrt(mean))


def _check_float(node: Node) -> None:
    if node.dtype(0) != "float32":
        raise node.unsupported(f"pooling of {node.dtype(0)} without quantization parameters")
