"""Elementwise and broadcasting arithmetic, with tensors and scalars, reductions, and the quantized sum."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
from tvm import relax

from ....op.base import constant
from ...run_time import checked_divisor
from ..node import Node
from ..registry import converter
from ..scales import F32, INT_MAX, LEVELS, Range, as_real, rescaled, round_saturate, scale_of
from . import uncalibrated

BINARY: dict[str, Callable[[relax.Expr, relax.Expr], relax.Expr]] = {
    "elemwise_add": relax.op.add,
    "_plus": relax.op.add,
    "_Plus": relax.op.add,
    "broadcast_add": relax.op.add,
    "broadcast_plus": relax.op.add,
    "elemwise_sub": relax.op.subtract,
    "_minus": relax.op.subtract,
    "broadcast_sub": relax.op.subtract,
    "broadcast_minus": relax.op.subtract,
    "elemwise_mul": relax.op.multiply,
    "_mul": relax.op.multiply,
    "broadcast_mul": relax.op.multiply,
    "elemwise_div": relax.op.divide,
    "_div": relax.op.divide,
    "broadcast_div": relax.op.divide,
    "broadcast_power": relax.op.power,
    "_maximum": relax.op.maximum,
    "broadcast_maximum": relax.op.maximum,
    "_minimum": relax.op.minimum,
    "broadcast_minimum": relax.op.minimum,
}

# operator -> (function, whether the scalar is the left operand)
SCALAR: dict[str, tuple[Callable[[relax.Expr, relax.Expr], relax.Expr], bool]] = {
    "_plus_scalar": (relax.op.add, False),
    "_minus_scalar": (relax.op.subtract, False),
    "_rminus_scalar": (relax.op.subtract, True),
    "_mul_scalar": (relax.op.multiply, False),
    "_div_scalar": (relax.op.divide, False),
    "_rdiv_scalar": (relax.op.divide, True),
    "_power_scalar": (relax.op.power, False),
    "_rpower_scalar": (relax.op.power, True),
    "_maximum_scalar": (relax.op.maximum, False),
    "_minimum_scalar": (relax.op.minimum, False),
}

REDUCTIONS: dict[str, Callable[..., relax.Expr]] = {
    "mean": relax.op.mean,
    "sum": relax.op.sum,
    "sum_axis": relax.op.sum,
    "max": relax.op.max,
    "max_axis": relax.op.max,
    "min": relax.op.min,
    "min_axis": relax.op.min,
}


@converter(*BINARY)
def convert_binary(node: Node) -> relax.Expr:
    """On two tensors, broadcast as in NumPy."""
    function, second = BINARY[node.operator.op], node.input(1)
    if function is relax.op.divide:
        second = checked_divisor(node.emit, second, node.label)
    return function(node.input(0), second)


@converter(*SCALAR)
def convert_scalar(node: Node) -> relax.Expr:
    """On a tensor and a number, in the tensor's dtype."""
    function, reverse = SCALAR[node.operator.op]
    if not node.dtype(0).startswith("float"):
        raise node.unsupported(f"data of dtype {node.dtype(0)}; only float32 is supported")
    number = constant(np.asarray(node.real("scalar"), node.dtype(0)))
    return function(number, node.input(0)) if reverse else function(node.input(0), number)


@converter("add_n", "ElementWiseSum")
def convert_sum_of_all(node: Node) -> relax.Expr:
    """The sum of all inputs, from left to right."""
    first = node.input(0)
    return reduce(lambda left, right: node.emit(relax.op.add(left, right)), node.inputs[1:], first)


@converter(*REDUCTIONS)
def convert_reduction(node: Node) -> relax.Expr:
    """Reduces over `axis`, or over all other axes with `exclude`, or over everything when no axis is given."""
    if not node.dtype(0).startswith("float"):
        raise node.unsupported(f"data of dtype {node.dtype(0)}; only float32 is supported")
    rank = len(node.shape(0))
    given = node.integers("axis", ())
    if any(not -rank <= axis < rank for axis in given):
        raise node.malformed(f"axis={given} is out of range for {rank} dimensions")
    axes = sorted({axis % rank for axis in given}) or list(range(rank))
    if node.flag("exclude"):
        axes = [axis for axis in range(rank) if axis not in axes]
    return REDUCTIONS[node.operator.op](node.input(0), axes, keepdims=node.flag("keepdims"))


@converter("_contrib_quantized_elemwise_add")
def convert_quantized_add(node: Node) -> list[relax.Expr]:
    """saturate(rint(f32(f32(a)·m_a) + f32(f32(b)·m_b))), m = s_out / s_in.

    With operands of both dtypes MXNet first rescales the uint8 one to int8, which saturates. Without calibration the
    output is int32 and spans the sum of both ranges.
    """
    dtypes = (node.dtype(0), node.dtype(1))
    if any(dtype not in ("int8", "uint8") for dtype in dtypes) or node.shape(0) != node.shape(1):
        raise node.malformed(
            f"operands must be int8 or uint8 of the same shape, found {dtypes} {node.shape(0)} {node.shape(1)}"
        )
    target = node.calibrated()
    if target is None and not (node.range_is_known(2) and node.range_is_known(4)):
        return uncalibrated.add(node)
    spans = (node.range(2), node.range(4))
    mixed = dtypes[0] != dtypes[1]
    if target is None:
        dtype, total = "int32", F32(spans[0].largest + spans[1].largest)
        target = Range(F32(-total), total)
        factors = [F32(F32(s.largest * INT_MAX) / F32(total * LEVELS[d])) for s, d in zip(spans, dtypes, strict=True)]
    else:
        dtype = "int8" if mixed else dtypes[0]
        factors = [F32(scale_of(dtype, target) / scale_of(d, s)) for s, d in zip(spans, dtypes, strict=True)]
    terms = []
    for index, factor in enumerate(factors):
        data = node.input(index)
        if mixed and dtypes[index] == "uint8":
            data, factor = node.emit(rescaled(data, factor, "int8")), F32(1)
        terms.append(node.emit(as_real(data, factor)))
    return node.with_range(round_saturate(node.emit(relax.op.add(*terms)), dtype), target)
