"""Integer arithmetic shared by several converters: operands with their zero point subtracted, TFLite's fixed-point
multiplication, clipping. All of it is expressed in the dialect or in ordinary Relax.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from ... import op as qnn
from ...op.base import constant
from ...qparams import QParams, dtype_range
from .node import ACTIVATION_RANGES, Node

QUANTIZED = ("int8", "uint8", "int16")
INT32_MAX = (1 << 31) - 1


def tensor_qparams(node: Node, index: int = 0) -> QParams:
    """The input's QParams. Raises UnsupportedOperatorError unless it has per-tensor ones."""
    return _per_tensor(node, node.qparams(index), node.tensor(index).name)


def result_qparams(node: Node, index: int = 0) -> QParams:
    """The output's QParams. Raises UnsupportedOperatorError unless it has per-tensor ones."""
    return _per_tensor(node, node.output_qparams(index), node.output_tensor(index).name)


def _per_tensor(node: Node, qparams: QParams, name: str) -> QParams:
    if qparams.per_channel:
        raise node.unsupported(f"per-channel scales of tensor '{name}'; this operator only takes per-tensor ones")
    return qparams


def quantized_or_plain(node: Node, *indices: int) -> bool:
    """Whether the inputs and the first output are quantized. Raises ModelFormatError when only some of them are."""
    output = node.output_tensor()
    flags = [node.is_quantized(i) for i in indices] + [output.qparams is not None and output.dtype in QUANTIZED]
    if any(flags) and not all(flags):
        raise node.malformed("some of its tensors are quantized, but others are not")
    return flags[0]


def same_dtype(node: Node, *indices: int) -> str:
    """The dtype the inputs share. Raises ModelFormatError when they differ."""
    if not indices:
        raise node.malformed("it has no inputs")
    dtypes = [node.dtype(i) for i in indices]
    if len(set(dtypes)) > 1:
        raise node.malformed(f"inputs must have the same dtype, found {', '.join(dtypes)}")
    return dtypes[0]


def require_dtype(node: Node, dtype: str, *supported: str) -> None:
    """Raise UnsupportedOperatorError unless the dtype is one that LiteRT has a kernel for."""
    if dtype in supported:
        return
    remedy = "with one of these"
    if dtype == "float16":
        remedy = "with activations of float32; weights may stay float16"
    elif dtype in ("int8", "uint8") and not {"int8", "uint8"} & set(supported):
        remedy = "so that its tensors have scales, or with a cast in front of the operator"
    raise node.unsupported(f"dtype {dtype}; supported: {', '.join(supported)}; convert the model again {remedy}")


def scalar(value: int, dtype: str = "int32") -> relax.Expr:
    """An integer constant."""
    return constant(np.asarray(value, dtype))


def centered(node: Node, index: int, dtype: str = "int32") -> relax.Expr:
    """q − zero_point of an input as int32 (or another wide dtype)."""
    wide = node.emit(relax.op.astype(node.input(index), dtype))
    zero_point = int(tensor_qparams(node, index).zero_point)
    return node.emit(relax.op.subtract(wide, scalar(zero_point, dtype))) if zero_point else wide


def multiply(
    node: Node,
    value: relax.Expr,
    factor: float,
    zero_point: int = 0,
    out_dtype: str = "int32",
    rounding: str = "TFLITE",
) -> relax.Expr:
    """saturate(round(value · factor) + zero_point): MultiplyByQuantizedMultiplier for the double `factor` > 0."""
    scale = np.asarray(factor, np.float64 if rounding == "TFLITE" else np.float32)
    return node.emit(
        qnn.requantize(value, scale, 0, np.ones_like(scale), zero_point, rounding=rounding, out_dtype=out_dtype)
    )


def narrow(node: Node, value: relax.Expr, zero_point: int, dtype: str) -> relax.Expr:
    """saturate(value + zero_point) of an int32 expression."""
    if zero_point:
        value = node.emit(relax.op.add(value, scalar(zero_point)))
    clipped = node.emit(relax.op.clip(value, *dtype_range(dtype)))
    return node.emit(relax.op.astype(clipped, dtype))


def activate(node: Node, value: relax.Expr) -> relax.Expr:
    """Applies the fused activation, also to int32 and int64 results."""
    activation = node.options.get("fused_activation_function", "NONE")
    dtype = node.output_tensor().dtype
    if dtype not in ("int32", "int64") or activation not in ACTIVATION_RANGES:
        return node.activate(value)
    low, high = ACTIVATION_RANGES[activation]
    if low is not None:
        value = relax.op.maximum(node.emit(value), scalar(int(low), dtype))
    if high is not None:
        value = relax.op.minimum(node.emit(value), scalar(int(high), dtype))
    return value


class Wide:
    """An int64 expression with Python's operators; the other operand is another one, or an int."""

    def __init__(self, node: Node, expr: relax.Expr) -> None:
        self.node = node
        self.expr = expr

    @classmethod
    def of(cls, node: Node, expr: relax.Expr) -> Wide:
        """The expression cast to int64."""
        return cls(node, node.emit(relax.op.astype(expr, "int64")))

    def constant(self, value: int) -> Wide:
        return Wide(self.node, scalar(value, "int64"))

    def _apply(self, function: Callable[..., relax.Expr], other: Wide | int) -> Wide:
        right = other if isinstance(other, Wide) else self.constant(other)
        return Wide(self.node, self.node.emit(function(self.expr, right.expr)))

    def __add__(self, other: Wide | int) -> Wide:
        return self._apply(relax.op.add, other)

    def __sub__(self, other: Wide | int) -> Wide:
        return self._apply(relax.op.subtract, other)

    def __mul__(self, other: Wide | int) -> Wide:
        return self._apply(relax.op.multiply, other)

    def __and__(self, other: Wide | int) -> Wide:
        return self._apply(relax.op.bitwise_and, other)

    def __lshift__(self, other: Wide | int) -> Wide:
        return self._apply(relax.op.left_shift, other)

    def __rshift__(self, other: Wide | int) -> Wide:
        return self._apply(relax.op.right_shift, other)

    def at_least(self, low: int) -> Wide:
        return self._apply(relax.op.maximum, low)

    def at_most(self, high: Wide | int) -> Wide:
        return self._apply(relax.op.minimum, high)

    def below(self, bound: int) -> Wide:
        """1 where the value is below the bound, else 0."""
        return Wide.of(self.node, self._apply(relax.op.less, bound).expr)

    def not_below(self, bound: int) -> Wide:
        """1 where the value is at or above the bound, else 0."""
        return self.constant(1) - self.below(bound)

    def choose(self, one: Wide, zero: Wide) -> Wide:
        """`one` where the value is 1, `zero` where it is 0."""
        condition = self._apply(relax.op.equal, 1).expr
        return Wide(self.node, self.node.emit(relax.op.where(condition, one.expr, zero.expr)))

    def saturated(self) -> Wide:
        """Clipped to int32."""
        return self.at_least(-INT32_MAX - 1).at_most(INT32_MAX)

    def high_multiply(self, other: Wide) -> Wide:
        """⌊self·other / 2³¹ + ½⌋."""
        return (self * other + (1 << 30)) >> 31

    def divide_by_pot(self, exponent: Wide) -> Wide:
        """self / 2^exponent, midpoints away from zero: for negative values the half is one less."""
        half = (self.constant(1) << exponent) >> 1
        return (self + half - self.below(0).at_most(half)) >> exponent
