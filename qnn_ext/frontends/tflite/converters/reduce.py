"""MEAN, SUM, REDUCE_MAX, REDUCE_MIN, REDUCE_PROD, REDUCE_ANY, REDUCE_ALL, ARG_MAX, ARG_MIN, CUMSUM."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import relax

from .... import op as qnn
from ..integers import (
    centered,
    multiply,
    narrow,
    quantized_or_plain,
    require_dtype,
    result_qparams,
    scalar,
    tensor_qparams,
)
from ..node import Node
from ..registry import converter
from .accumulators import as_dtype, number
from .float_sums import float_sum

INTEGERS = ("int32", "int64")


def reduction_axes(node: Node) -> list[int]:
    """The axes, each once: the file may name one twice. A scalar has none."""
    rank = len(node.shape(0))
    return sorted(dict.fromkeys(node.axes(1, rank))) if rank else []


def reduced(
    node: Node, function: Callable[..., relax.Expr], value: relax.Expr, axes: list[int] | None = None
) -> relax.Expr:
    """`function` over the node's axes; the value itself if there are none, which to Relax means all."""
    axes = reduction_axes(node) if axes is None else axes
    return node.emit(function(value, axes, keepdims=bool(node.options["keep_dims"]))) if axes else value


# ---- sums and products -------------------------------------------------------------------------------------------

# Steps of a quantized product: each is an expression of its own.
MAX_FACTORS = 128


@converter("MEAN", max_version=3)
def convert_mean(node: Node) -> relax.Expr:
    """Quantized means round once, with 1/n folded into the multiplier. XNNPACK multiplies sums of floats by 1/n. int32
    and int64 truncate towards zero."""
    axes = reduction_axes(node)
    if quantized_or_plain(node, 0):
        return _quantized_sum(node, qnn.mean, axes)
    require_dtype(node, node.dtype(), "float32", *INTEGERS)
    count = math.prod(node.shape(0)[axis] for axis in axes)
    if node.dtype() == "float32" and node.follows_xnnpack:
        return float_sum(node, axes, _result_shape(node, axes), mean=True)
    if node.dtype() == "float32":
        return reduced(node, relax.op.mean, node.input(0), axes)
    total = reduced(node, relax.op.sum, node.emit(relax.op.astype(node.input(0), "int64")), axes)
    return relax.op.astype(node.emit(relax.op.divide(total, scalar(count, "int64"))), node.dtype())


@converter("SUM", max_version=2)
def convert_sum(node: Node) -> relax.Expr:
    """Integer sums wrap around."""
    if quantized_or_plain(node, 0):
        return _quantized_sum(node, qnn.sum, reduction_axes(node))
    require_dtype(node, node.dtype(), "float32", *INTEGERS)
    if node.dtype() == "float32" and node.follows_xnnpack:
        axes = reduction_axes(node)
        return float_sum(node, axes, _result_shape(node, axes), mean=False)
    return reduced(node, relax.op.sum, node.input(0))


def _result_shape(node: Node, axes: list[int]) -> tuple[int, ...]:
    """The input's shape without the axes, or with 1 in their place if the node keeps them."""
    keep = bool(node.options["keep_dims"])
    return tuple(1 if axis in axes else dim for axis, dim in enumerate(node.shape(0)) if keep or axis not in axes)


def _quantized_sum(node: Node, function: Callable[..., relax.Expr], axes: list[int]) -> relax.Expr:
    source, target = tensor_qparams(node), result_qparams(node)
    if not axes:
        return node.requantize(node.input(0), source, target)
    if node.delegated:
        return _xnnpack_sum(node, axes, mean=function is qnn.mean)
    if function is qnn.sum and source.dtype == "int16" and source != target and not node.reference_kernels:
        return _int16_sum(node, axes)
    return function(
        node.input(0),
        source.scale,
        source.zero_point,
        target.scale,
        target.zero_point,
        axis=axes,
        keepdims=bool(node.options["keep_dims"]),
        rounding=node.rounding,
        out_dtype=target.dtype,
    )


def _xnnpack_sum(node: Node, axes: list[int], mean: bool) -> relax.Expr:
    """saturate(rint(f32(Σ q)·m + z)) in float32, with m = s_in / s_out (· 1/n for means) and z = z_out − f32(n·z_in)·m
    (XNNPACK's reduce_nd, whose sums keep the input's zero point)."""
    source, target, one = tensor_qparams(node), result_qparams(node), np.float32(1)
    count = math.prod(node.shape(0)[axis] for axis in axes)
    with np.errstate(all="ignore"):
        multiplier = np.float32(source.scale) / np.float32(target.scale) * (one / np.float32(count) if mean else one)
        offset = np.float32(target.zero_point) - np.float32(count * int(source.zero_point)) * multiplier
    keepdims = bool(node.options["keep_dims"])
    total = node.emit(qnn.sum(node.input(0), one, 0, one, 0, axis=axes, keepdims=keepdims, out_dtype="int32"))
    scaled = node.emit(relax.op.multiply(as_dtype(node, total, "float32"), number(multiplier)))
    real = node.emit(relax.op.add(scaled, number(offset)))
    return qnn.quantize(real, 1.0, 0, out_dtype=target.dtype)


def _int16_sum(node: Node, axes: list[int]) -> relax.Expr:
    """saturate(round(f32(Σ q)·m) + z_out), m = s_in / s_out in float32, midpoints away from zero: LiteRT's optimized
    kernel for 16 bits, which have no zero point (QuantizedMeanOrSum)."""
    source, target, one = tensor_qparams(node), result_qparams(node), np.float32(1)
    keepdims = bool(node.options["keep_dims"])
    total = node.emit(qnn.sum(node.input(0), one, 0, one, 0, axis=axes, keepdims=keepdims, out_dtype="int32"))
    multiplier = number(np.float32(source.scale) / np.float32(target.scale))
    real = node.emit(relax.op.multiply(as_dtype(node, total, "float32"), multiplier))
    return qnn.quantize(real, 1.0, int(target.zero_point), out_dtype=target.dtype, rounding="TONEAREST")


@converter("REDUCE_PROD", max_version=2)
def convert_product(node: Node) -> relax.Expr:
    """Integer products wrap around; quantized ones are rescaled at every step."""
    if quantized_or_plain(node, 0):
        return _quantized_product(node)
    require_dtype(node, node.dtype(), "float32", *INTEGERS)
    return reduced(node, relax.op.prod, node.input(0))


def _quantized_product(node: Node) -> relax.Expr:
    """Π (q_i − z): each partial product and the result are multiplied by s_in / ⁿ√s_out in 64-bit fixed point, so that
    the product stays within int32. Factors are taken in memory order."""
    require_dtype(node, node.dtype(), "int8", "int16")
    source, target, axes = tensor_qparams(node), result_qparams(node), reduction_axes(node)
    shape = node.shape(0)
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    count = math.prod(shape[axis] for axis in axes)
    if not 1 <= count <= MAX_FACTORS:
        raise node.unsupported(f"a quantized product of {count} factors; 1 to {MAX_FACTORS} are supported")
    factor = float(source.scale) / float(target.scale) ** (1 / count)
    columns = node.emit(relax.op.permute_dims(node.emit(centered(node, 0, "int64")), [*axes, *kept]))
    columns = node.emit(relax.op.reshape(columns, (count, *(shape[axis] for axis in kept))))
    product = _row(node, columns, 0)
    for index in range(1, count):
        scaled = _scaled(node, node.emit(relax.op.multiply(product, _row(node, columns, index))), factor)
        # The sum over a dimension of 1 ends the kernel: with all steps in one kernel, TVM needs exponential time to
        # simplify it.
        product = node.emit(relax.op.sum(node.emit(relax.op.astype(scaled, "int64")), [0], keepdims=True))
    zero_point = int(target.zero_point)
    result = narrow(node, _scaled(node, product, factor), zero_point, target.dtype)
    return relax.op.reshape(result, _result_shape(node, axes))


def _scaled(node: Node, value: relax.Expr, factor: float) -> relax.Expr:
    """round(value · factor) as int32. An overflow wraps around."""
    return node.emit(relax.op.astype(multiply(node, value, factor, out_dtype="int64"), "int32"))


def _row(node: Node, value: relax.Expr, index: int) -> relax.Expr:
    return node.emit(relax.op.strided_slice(value, [0], [index], [index + 1]))


# ---- extrema and logic -------------------------------------------------------------------------------------------


@converter("REDUCE_MAX", "REDUCE_MIN", max_version=3)
def convert_extremum(node: Node) -> relax.Expr:
    """On the integers themselves."""
    require_dtype(node, node.dtype(), "int8", "uint8", "int16", *INTEGERS, "float32")
    function = relax.op.max if node.operator.name == "REDUCE_MAX" else relax.op.min
    result = reduced(node, function, node.input(0))
    if quantized_or_plain(node, 0):
        return node.requantize(result, tensor_qparams(node), result_qparams(node))
    return result


@converter("REDUCE_ANY", "REDUCE_ALL", max_version=1)
def convert_logical(node: Node) -> relax.Expr:
    """The maximum or minimum of 0 and 1."""
    require_dtype(node, node.dtype(), "bool")
    function = relax.op.max if node.operator.name == "REDUCE_ANY" else relax.op.min
    bits = node.emit(relax.op.astype(node.input(0), "int8"))
    return relax.op.astype(reduced(node, function, bits), "bool")


# ---- ARG_MAX, ARG_MIN, CUMSUM ------------------------------------------------------------------------------------


@converter("ARG_MAX", "ARG_MIN", max_version=3)
def convert_arg(node: Node) -> relax.Expr:
    """The first position of the extremum along one axis."""
    require_dtype(node, node.dtype(), "int8", "uint8", "int16", *INTEGERS, "float32", "bool")
    function = relax.op.argmax if node.operator.name == "ARG_MAX" else relax.op.argmin
    data = node.input(0)
    if node.dtype() == "bool":
        data = node.emit(relax.op.astype(data, "int8"))
    index = node.emit(function(data, one_axis(node)))
    require_dtype(node, node.output_tensor().dtype, *INTEGERS)
    return relax.op.astype(index, node.output_tensor().dtype)


def one_axis(node: Node) -> int:
    """Input 1 as a single axis."""
    axes = node.axes(1, len(node.shape(0)))
    if len(axes) != 1:
        raise node.malformed(f"it must have one axis, found {axes}")
    return axes[0]


@converter("CUMSUM", max_version=1)
def convert_cumsum(node: Node) -> relax.Expr:
    """Running sums along one axis, from its end when `reverse`, excluding the element itself when `exclusive`."""
    require_dtype(node, node.dtype(), "float32", *INTEGERS)
    axis, data = one_axis(node), node.input(0)
    reverse = bool(node.options["reverse"])
    if reverse:
        data = node.emit(relax.op.flip(data, axis))
    sums = node.emit(relax.op.cumsum(data, axis, node.dtype(), exclusive=bool(node.options["exclusive"])))
    return relax.op.flip(sums, axis) if reverse else sums
