"""Which nodes XNNPACK computes in LiteRT with its default delegate; TFLite's own kernels compute the others.

The conditions are those of LiteRT's xnnpack_delegate.cc (the functions Visit…Node), of a node by itself, for the
operators whose rounding depends on who computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...numerics.packed import WIDTHS
from .reader import Operator, Tensor
from .tensors import NEGLIGIBLE_SCALE

BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class _Node:
    """A node as the file describes it; absent inputs are None."""

    options: dict[str, Any]
    inputs: tuple[Tensor | None, ...]
    output: Tensor

    def input(self, index: int) -> Tensor | None:
        return self.inputs[index] if index < len(self.inputs) else None


Rule = Callable[[_Node], bool]


def takes(operator: Operator, tensors: tuple[Tensor, ...]) -> bool:
    """Whether XNNPACK computes this operator on 8-bit tensors, on float32 ones with int8 weights, or on floats alone
    where its bits differ from those of TFLite's kernels; `tensors` are those of its subgraph."""
    rule = RULES.get(operator.name)
    if rule is None or not operator.outputs:
        return False
    inputs = tuple(tensors[index] if index >= 0 else None for index in operator.inputs)
    return rule(_Node(operator.options, inputs, tensors[operator.outputs[0]]))


def _is_byte(tensor: Tensor | None) -> bool:
    """An 8-bit tensor with one scale. The dimension of the channels, meaningless here, must be 0 nevertheless."""
    if tensor is None or tensor.qparams is None or not _normal(tensor):
        return False
    return tensor.dtype in BYTES and not tensor.qparams.per_channel and tensor.channel_dimension == 0


def _normal(tensor: Tensor) -> bool:
    """Whether the scales in the file are normal float32 numbers, the only ones that XNNPACK takes."""
    scale = tensor.qparams.scale if tensor.qparams is not None else np.float32(1)
    return bool(((scale >= np.finfo(np.float32).tiny) & (scale != NEGLIGIBLE_SCALE)).all())


def _is_constant(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.is_constant


def _bytes(node: _Node, *indices: int) -> bool:
    """Whether these inputs and the output are 8-bit tensors of one dtype, as XNNPACK takes them."""
    inputs = [node.input(index) for index in indices]
    return _is_byte(node.output) and all(_is_byte(x) and x is not None and x.dtype == node.output.dtype for x in inputs)


def _floats(node: _Node, *indices: int) -> bool:
    """Whether these inputs and the output are of float32."""
    return all(tensor is not None and tensor.dtype == "float32" for tensor in (*map(node.input, indices), node.output))


def _ratio(node: _Node, *indices: int) -> float:
    """The product of these inputs' scales over the output's, in float32."""
    scales = [x.qparams.scale for x in (*map(node.input, indices), node.output) if x is not None and x.qparams]
    *factors, result = (np.float32(scale.reshape(())) for scale in scales)
    with np.errstate(over="ignore", under="ignore"):
        return float(np.prod(factors, dtype=np.float32) / result)


# ---- the rules -----------------------------------------------------------------------------------------------------


def _sum(node: _Node) -> bool:
    return _bytes(node, 0, 1) and all(2.0**-10 <= _ratio(node, index) < 2.0**8 for index in (0, 1))


def _product(node: _Node) -> bool:
    return _bytes(node, 0, 1) and 2.0**-16 <= _ratio(node, 0, 1) < 2.0**8


def _is_covered(node: _Node) -> bool:
    """Whether windows leave no gaps."""
    options = node.options
    strides, window = ("stride_h", "stride_w"), ("filter_height", "filter_width")
    return all(options[s] <= options[size] for s, size in zip(strides, window, strict=True))


def _average_pool(node: _Node) -> bool:
    return _floats(node, 0) and _is_covered(node)


def _max_pool(node: _Node) -> bool:
    return _bytes(node, 0) and _is_covered(node)


def _leaky_relu(node: _Node) -> bool:
    alpha = np.float32(node.options["alpha"])
    if not _bytes(node, 0) or not np.isfinite(alpha) or abs(alpha) < np.finfo(np.float32).tiny:
        return False
    positive = _ratio(node, 0)
    negative = float(np.float32(positive) * alpha)
    return 2.0**-8 <= positive <= 2.0**7 and abs(negative) >= 2.0**-8 and -127.99609375 <= negative <= 128.0


def _function(node: _Node) -> bool:
    return _bytes(node, 0) or _floats(node, 0)


def _float_function(node: _Node) -> bool:
    return _floats(node, 0)


def _softmax(node: _Node) -> bool:
    return _floats(node, 0) and node.options["beta"] == 1


def _quantize(node: _Node) -> bool:
    return _bytes(node, 0) and 2.0**-8 <= _ratio(node, 0) <= 2.0**7


def _has_axes(node: _Node) -> bool:
    axes = node.input(1)
    return axes is not None and axes.is_constant and 0 not in axes.shape


def _reduce(node: _Node) -> bool:
    return _bytes(node, 0) and _has_axes(node)


def _float_reduce(node: _Node) -> bool:
    return _reduce(node) or (_floats(node, 0) and _has_axes(node))


def _resize(node: _Node) -> bool:
    return (_bytes(node, 0) or _floats(node, 0)) and _is_constant(node.input(1))


def _weighted(
    data: int, weight: int, bias: int, *, needs_bias: bool, axis: int, dynamic: bool = True, narrow: bool = False
) -> Rule:
    """A product with constant weights, whose scales may run along `axis`, and a constant bias.

    dynamic: whether float activations are quantized at run time if the weights are int8
    narrow:  whether the weights may have fewer bits
    """

    def rule(node: _Node) -> bool:
        weights, offsets = node.input(weight), node.input(bias)
        if weights is None or not weights.is_constant or not _normal(weights):
            return False
        if offsets is not None and not offsets.is_constant:
            return False
        if _is_hybrid(node, data, weights):
            if weights.narrow is not None or weights.blocks is not None:
                return narrow and _is_narrow(weights, axis)
            return dynamic and _is_symmetric(weights, axis) and (offsets is not None or not needs_bias)
        if not _bytes(node, data) or weights.dtype != node.output.dtype:
            return False
        if weights.narrow is not None and not (narrow and _is_narrow(weights, axis)):
            return False
        if weights.dtype == "uint8" and not _is_byte(weights):
            return False
        if weights.dtype == "int8" and not _is_symmetric(weights, axis):
            return False
        if offsets is None:
            return not needs_bias
        return offsets.dtype == "int32"

    return rule


def _is_hybrid(node: _Node, data: int, weights: Tensor) -> bool:
    """Float activations and int8 weights."""
    activations = node.input(data)
    return activations is not None and activations.dtype == "float32" and weights.dtype == "int8"


def _is_symmetric(weights: Tensor, axis: int) -> bool:
    """int8 weights without a zero point, with one scale or scales along `axis`."""
    qparams = weights.qparams
    return qparams is not None and not np.any(qparams.zero_point) and qparams.axis in (None, axis)


def _is_narrow(weights: Tensor, axis: int) -> bool:
    """Weights of 4 or 2 bits as XNNPACK takes them: rows of whole bytes; blocks, of 4 bits alone, of whole vectors; 2
    bits with a scale for each row alone."""
    if weights.blocks is not None:
        return weights.narrow == "int4" and weights.blocks.size % 32 == 0
    if not _is_symmetric(weights, axis) or weights.shape[-1] * WIDTHS[str(weights.narrow)] % 8:
        return False
    return weights.narrow == "int4" or (weights.qparams is not None and weights.qparams.axis == axis)


def _transpose_conv(node: _Node) -> bool:
    """With padding, only those whose windows leave no gaps."""
    weights, options = node.input(1), node.options
    if not _is_constant(node.input(0)) or weights is None:
        return False
    strides = options["stride_h"], options["stride_w"]
    has_gaps = any(size < stride for size, stride in zip(weights.shape[1:3], strides, strict=False))
    if options["padding"] == "SAME" and has_gaps:
        return False
    of_floats = _floats(node, 1, 2) and weights.is_constant
    return of_floats or _weighted(2, 1, 3, needs_bias=False, axis=0)(node)


def _batch_matmul(node: _Node) -> bool:
    right = node.input(1)
    if right is not None and right.qparams is not None and _is_hybrid(node, 0, right):
        return right.is_constant and not np.any(right.qparams.zero_point)
    if not _bytes(node, 0) or node.output.dtype != "int8" or right is None or right.qparams is None:
        return False
    return right.dtype == "int8" and not np.any(right.qparams.zero_point)


RULES: dict[str, Rule] = {
    "ADD": _sum,
    "AVERAGE_POOL_2D": _average_pool,
    "BATCH_MATMUL": _batch_matmul,
    "CONV_2D": _weighted(0, 1, 2, needs_bias=True, axis=0),
    "COS": _float_function,
    "DEPTHWISE_CONV_2D": _weighted(0, 1, 2, needs_bias=True, axis=3, dynamic=False),
    "ELU": _function,
    "EXP": _float_function,
    "FULLY_CONNECTED": _weighted(0, 1, 2, needs_bias=False, axis=0, narrow=True),
    "GELU": _float_function,
    "LEAKY_RELU": _leaky_relu,
    "LOG": _float_function,
    "LOGISTIC": _function,
    "MAX_POOL_2D": _max_pool,
    "MEAN": _float_reduce,
    "MUL": _product,
    "QUANTIZE": _quantize,
    "REDUCE_MAX": _reduce,
    "REDUCE_MIN": _reduce,
    "RESIZE_BILINEAR": _resize,
    "SIN": _float_function,
    "SOFTMAX": _softmax,
    "SUB": _sum,
    "SUM": _float_reduce,
    "TANH": _function,
    "TRANSPOSE_CONV": _transpose_conv,
}
