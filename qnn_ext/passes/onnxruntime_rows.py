"""Rows of floats in quantized ONNX models, added up in the orders of ONNX Runtime.

    layer_norm(a + b) of three dimensions, if nothing else reads the sum     →  qnn.welford_norm
    layer_norm of rows of two to seven elements                              →  the same
    rms_norm                                                                 →  qnn.rms_norm
    sum and mean over the last axes, global average pooling                  →  qnn.lane_sum
    the same over axes between others                                        →  sums of four elements, added up
    instance_norm                                                            →  qnn.lane_norm
    group_norm                                                               →  its definition in ONNX, with lane_sum
    log, sin, cos, the latter of small numbers                               →  qnn.float_function
    alpha · matmul + c, of a Gemm                                            →  qnn.fma(matmul, alpha, c)

What is quantized afterwards then has ONNX Runtime's bits, as a last bit may decide between two steps. Sums of absolute
values, squares and exponentials stay: ReduceL1 and others of ONNX, which ONNX Runtime adds one by one, as it does in
pooling of what float convolutions computed channel by channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import IRModule, relax

from .. import op as qnn
from ..numerics.eigen import LARGEST
from ..op.arguments import data_of
from ..op.base import constant, constant_value, shape_of
from ..op.compound import permute, reshape
from ..op.relax_table import traits_of
from ..op.traits import Kind
from .blocked_sums import by_fours
from .bodies import every_binding, with_bodies
from .layout.forms import static_shape
from .marks import Mark, marks_of, without_marks
from .rewrite import Emit, bindings_of, consumers, op_name, rewrite, variables_of

_BLOCK = 16  # channels that ONNX Runtime's float convolutions compute side by side
_ROWS = ("nn.layer_norm", "nn.rms_norm", "nn.instance_norm", "nn.group_norm", "sum", "mean")
_FUNCTIONS = ("log", "sin", "cos")
_SHORT_ROW, _SHORT_ROW_OF_SQUARES = 8, 16
_QUANTIZING = ("qnn.quantize", "qnn.blockwise_dense_int8")
_SUMMED = ("abs", "exp", "log", "qnn.float_function")


def quantizes(mod: IRModule) -> bool:
    """Whether anything is quantized, in the bodies of loops too, be it inside of a product."""
    return any(op_name(binding.value) in _QUANTIZING for binding, _ in every_binding(mod))


def onnxruntime_rows(mod: IRModule) -> IRModule:
    """`mod` with these operators, in the bodies of loops too, and without marks."""
    marks = marks_of(mod["main"])
    mod = without_marks(mod)
    main = mod["main"]
    bindings = bindings_of(main)
    readers = consumers(main, bindings)
    values = {binding.var: binding.value for binding in bindings}

    def before(binding: relax.VarBinding) -> Any:
        """What computes the data of an operator of rows."""
        return values.get(data_of(binding.value)) if op_name(binding.value) in _ROWS else None

    known = iter([(binding, before(binding)) for binding in bindings])
    scaled: dict[Any, tuple[relax.Expr, relax.Expr]] = {}  # a product times a number -> both

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        binding, source = next(known)
        if op_name(expr) == "multiply" and _scales_product(binding.value, values):
            result = emit(expr)
            scaled[result] = expr.args[0], expr.args[1]
            return result
        mark = marks.get(binding.var.name)
        if mark is Mark.SCALED_PRODUCT and expr.args[0] in scaled:
            return qnn.fma(*scaled[expr.args[0]], expr.args[1])
        if op_name(expr) in _FUNCTIONS:
            return _function(expr, emit) if mark is Mark.FUNCTION else None
        if op_name(expr) == "nn.layer_norm":
            data = data_of(binding.value)
            of_sum = _adds_rows(source) and marks.get(data.name) is not Mark.UNLIKE_SHAPES and len(readers[data]) == 1
            total = _bias_last(source, values, readers, emit) if of_sum else None
            return _normalized(expr, of_sum or mark is Mark.NORM_OF_SUM, total)
        if op_name(expr) == "nn.rms_norm":
            return _by_squares(expr, mark is Mark.NORM_OF_SUM)
        if op_name(expr) == "nn.instance_norm":
            return _instances(expr, emit)
        if op_name(expr) == "nn.group_norm":
            return _grouped(expr, emit)
        if op_name(expr) not in _ROWS:
            return None
        if op_name(expr) == "sum":
            return None if _is_of_function(source) and mark is not Mark.SUM else _summed(expr, emit, aligned=True)
        is_global_average = mark is Mark.GLOBAL_AVERAGE
        if is_global_average and _is_blocked(data_of(binding.value), values):
            return None
        return _summed(expr, emit, aligned=not is_global_average)

    concerned = (*_ROWS, *_FUNCTIONS, "matmul")
    changed = rewrite(mod, rule) if any(op_name(value) in concerned for value in values.values()) else mod
    return with_bodies(changed, onnxruntime_rows)


def _scales_product(call: relax.Call, values: Mapping[Any, relax.Expr]) -> bool:
    """Whether it is a float product of matrices times a number."""
    number = constant_value(call.args[1])
    is_number = number is not None and number.size == 1 and str(call.ty.dtype) == "float32"
    return is_number and op_name(values.get(call.args[0])) == "matmul"


def _function(call: relax.Call, emit: Emit) -> relax.Expr | None:
    """The same by Eigen; sine and cosine of large numbers stay."""
    data, name = data_of(call), op_name(call)
    if str(data.ty.dtype) != "float32":
        return None
    if name not in LARGEST:
        return qnn.float_function(data, name)
    is_small = emit(relax.op.less(emit(relax.op.abs(data)), constant(np.float32(LARGEST[name]))))
    return relax.op.where(is_small, emit(qnn.float_function(data, name)), emit(call))


def _is_blocked(data: relax.Expr, values: Mapping[Any, relax.Expr]) -> bool:
    """Whether ONNX Runtime has the channels of a float image side by side: those of an input or of a convolution, also
    behind functions of each element and joins."""
    if shape_of(data)[1] % _BLOCK:
        return False
    seen, pending = set(), [data]
    while pending:
        value = pending.pop()
        source = values.get(value)
        if source is None:
            if value.same_as(data):
                return True
        elif op_name(source).startswith("nn.conv"):
            return True
        elif op_name(source) and value not in seen and traits_of(source).kind in (Kind.POINTWISE, Kind.JOIN):
            pending += [one for one in variables_of(source) if str(one.ty.dtype) == "float32"]
        seen.add(value)
    return False


def _adds_rows(value: relax.Expr) -> bool:
    """Whether it is the sum of two tensors of one shape, of three dimensions."""
    if op_name(value) != "add":
        return False
    first, second = (static_shape(one) for one in value.args)
    return first is not None and first == second and len(first) == 3


def _bias_last(
    total: relax.Call, values: Mapping[Any, relax.Expr], readers: Mapping[Any, Sequence[Any]], emit: Emit
) -> relax.Expr | None:
    """(x + y) + bias for the sum of x + bias and y, as ONNX Runtime adds them, unless a product of integers has added
    the bias; None for other sums."""
    for biased, other in (total.args, total.args[::-1]):
        inner: Any = values.get(biased)
        if op_name(inner) != "add" or len(readers[biased]) != 1:
            continue
        x, bias = inner.args
        is_bias = constant_value(bias) is not None and len(shape_of(bias)) == 1 and len(shape_of(x)) == 3
        source: Any = values.get(x)
        is_of_integers = op_name(source) == "multiply" and op_name(values.get(source.args[0])) == "astype"
        if is_bias and not is_of_integers:
            return emit(relax.op.add(emit(relax.op.add(x, other)), bias))
    return None


def _normalized(call: relax.Call, of_sum: bool, total: relax.Expr | None = None) -> relax.Call | None:
    """total: what it normalizes instead"""
    data, gamma, beta = call.args
    data = data if total is None else total
    shape = static_shape(data)
    if shape is None or {str(one.ty.dtype) for one in call.args} != {"float32"}:
        return None
    if [int(axis) % len(shape) for axis in call.attrs.axes] != [len(shape) - 1] or shape[-1] < 2:
        return None
    return qnn.welford_norm(data, gamma, beta, float(call.attrs.epsilon)) if of_sum or shape[-1] < _SHORT_ROW else None


def _by_squares(call: relax.Call, of_sum: bool) -> relax.Call | None:
    data, gamma = call.args
    shape = static_shape(data)
    if shape is None or {str(one.ty.dtype) for one in call.args} != {"float32"} or shape[-1] == 0:
        return None
    if [int(axis) % len(shape) for axis in call.attrs.axes] != [len(shape) - 1]:
        return None
    return qnn.rms_norm(data, gamma, float(call.attrs.epsilon), of_sum or shape[-1] < _SHORT_ROW_OF_SQUARES)


def _instances(call: relax.Call, emit: Emit) -> relax.Expr | None:
    data, gamma, beta = call.args
    shape, attributes = static_shape(data), call.attrs
    last = shape is not None and [int(axis) for axis in attributes.axes] == list(range(2, len(shape)))
    if shape is None or not last or int(attributes.channel_axis) != 1 or not attributes.center or not attributes.scale:
        return None
    if 0 in shape or {str(one.ty.dtype) for one in call.args} != {"float32"}:
        return None
    rows = reshape(data, (*shape[:2], prod(shape[2:])), emit)
    return reshape(emit(qnn.lane_norm(rows, gamma, beta, float(attributes.epsilon))), shape, emit)


def _grouped(call: relax.Call, emit: Emit) -> relax.Expr | None:
    """(x − mean) / sqrt(mean(x²) − mean² + epsilon) · scale + bias over groups of channels."""
    data, gamma, beta = call.args
    shape, attributes = static_shape(data), call.attrs
    if shape is None or 0 in shape or {str(one.ty.dtype) for one in call.args} != {"float32"}:
        return None
    last = [int(axis) for axis in attributes.axes] == list(range(2, len(shape)))
    groups, channels = int(attributes.num_groups), shape[1]
    if not last or int(attributes.channel_axis) != 1 or not attributes.center or not attributes.scale:
        return None
    rows = reshape(data, (shape[0], groups, prod(shape[1:]) // groups), emit)
    count = shape_of(rows)[-1]

    def mean_of(values: relax.Expr) -> relax.Expr:
        total = emit(qnn.lane_sum(values, True)) if count > 1 else values
        return reshape(emit(relax.op.divide(total, constant(np.float32(count)))), (shape[0], groups, 1), emit)

    mean, power = mean_of(rows), mean_of(emit(relax.op.multiply(rows, rows)))
    variance = emit(relax.op.subtract(power, emit(relax.op.multiply(mean, mean))))
    deviation = emit(relax.op.sqrt(emit(relax.op.add(variance, constant(np.float32(attributes.epsilon))))))
    unit = emit(relax.op.divide(emit(relax.op.subtract(rows, mean)), deviation))
    spread = (channels, 1)
    scaled = emit(
        relax.op.multiply(reshape(unit, (shape[0], channels, prod(shape[2:])), emit), reshape(gamma, spread, emit))
    )
    return reshape(emit(relax.op.add(scaled, reshape(beta, spread, emit))), shape, emit)


def _is_of_function(summand: Any) -> bool:
    """Whether what is added up may be the function of another reduction."""
    name = op_name(summand)
    return name in _SUMMED or (name == "multiply" and summand.args[0].same_as(summand.args[1]))


def _summed(call: relax.Call, emit: Emit, aligned: bool) -> relax.Expr | None:
    """The same over the last axes, or over axes between others."""
    data = data_of(call)
    shape = static_shape(data)
    if shape is None or str(data.ty.dtype) != "float32" or 0 in shape:
        return None
    axes = summed_axes(call)
    parts = parts_of_sum([(shape[axis], axis in axes) for axis in range(len(shape))])
    if parts is None or (parts[0] == 1 and parts[2] > 1):
        return None
    total = added(data, parts, emit, aligned)
    if op_name(call) == "mean":
        total = emit(relax.op.divide(total, constant(np.float32(parts[1]))))
    return reshape(total, shape_of(call), emit)


def summed_axes(call: relax.Call) -> set[int]:
    """The axes of a sum or mean."""
    rank = len(shape_of(data_of(call)))
    return set(range(rank)) if call.attrs.axis is None else {int(axis) % rank for axis in call.attrs.axis}


def parts_of_sum(sizes: Sequence[tuple[int, bool]]) -> tuple[int, int, int] | None:
    """The numbers of elements along the axes in front of summed ones, along these, and behind them; None if they lie on
    both sides of others, or there is nothing to add up.

    sizes: of each axis, and whether it is summed
    """
    counted = [(size, is_summed) for size, is_summed in sizes if size > 1]
    places = [place for place, (_, is_summed) in enumerate(counted) if is_summed]
    if not places or places[-1] - places[0] >= len(places):
        return None
    parts = counted[: places[0]], counted[places[0] : places[-1] + 1], counted[places[-1] + 1 :]
    before, count, behind = (prod(size for size, _ in part) for part in parts)
    return before, count, behind


def added(values: relax.Expr, parts: tuple[int, int, int], emit: Emit, aligned: bool = True) -> relax.Expr:
    """Their sums as ONNX Runtime's ReduceSum adds them up: along the last axes in lanes, and in batches between others
    four by four, as the product of a row of ones and a matrix."""
    before, count, behind = parts
    if behind == 1:
        return emit(qnn.lane_sum(reshape(values, (before, count), emit), aligned))
    rows = permute(reshape(values, parts, emit), [1, 0, 2], emit)  # of no batch: their sums are in order
    return by_fours(rows, 0, count, emit)
