"""Sums and means of dequantized tensors in ONNX models, added up in the orders of ONNX Runtime, which takes them of
floats.

    over axes in front of others                     →  qnn.pool_sum, one element after another
    the same in batches, (N, summed, C)              →  elements four by four, as a row of ones times a matrix
    over the last axes, with exceptions              →  qnn.lane_sum

Integers add up the last axes of bytes that are quantized to bytes again, and of what convolutions compute: the mean is
a last bit off, and what it is quantized to a step, if the mean lies halfway between two.

Images lie channels last where ONNX Runtime's integer convolutions write them, and stay so up to the next one. A mean
over the pixels between two such convolutions, as in squeeze-and-excitation, is thus one over axes in front of the
channels. At the end of the integers ONNX Runtime has moved the channels to the front.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from tvm import IRModule, relax

from .. import op as qnn
from ..op.arguments import data_of, factors_of
from ..op.base import constant, constant_value, shape_of
from ..op.compound import permute, reshape
from ..op.pool_sum import DTYPES
from ..op.relax_table import traits_of
from ..op.traits import Kind
from .blocked_sums import fours_and_rest
from .bodies import with_bodies
from .layout.forms import static_shape
from .marks import Mark, marks_of
from .onnxruntime_rows import added, parts_of_sum, summed_axes
from .rewrite import Emit, bindings_of, consumers, only_reader, op_name, rewrite, variables_of

_CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
_THROUGH = (Kind.POINTWISE, Kind.JOIN, Kind.SUM, Kind.SELECTION)
_PARTS = ("nn.pad", "split", "strided_slice")


def onnxruntime_means(mod: IRModule) -> IRModule:
    """`mod`, a QDQ graph, with such sums, in the bodies of loops too."""
    return with_bodies(_in_order(mod), onnxruntime_means)


def _in_order(mod: IRModule) -> IRModule:
    graph = _Graph(mod)
    chosen = {var for var, value in graph.values.items() if graph.adds_dequantized(value)}
    if not chosen:
        return mod
    variables = iter(graph.values)
    dequantized: dict[Any, relax.Call] = {}

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        var = next(variables)
        if op_name(expr) == "qnn.dequantize":
            dequantized[var] = expr
        return _added(expr, var, dequantized[data_of(graph.values[var])], graph, emit) if var in chosen else None

    return rewrite(mod, rule)


def _added(call: relax.Call, var: Any, dequantize: relax.Call, graph: _Graph, emit: Emit) -> relax.Expr | None:
    """The sum or mean in ONNX Runtime's order; None if integers add it up, or float32 in any order."""
    shape, axes = shape_of(data_of(call)), summed_axes(call)
    rank = len(shape)
    order = [0, *range(2, rank), 1] if graph.is_channels_last(var, axes) else list(range(rank))
    parts = parts_of_sum([(shape[axis], axis in axes) for axis in order])
    if parts is None or (parts[2] == 1 and graph.is_left_to_integers(var)):
        return None
    if parts[2] > 1 and _stores_few_bits(dequantize):
        stored, scale, zero_point = dequantize.args
        stored = permute(stored, order, emit)
        if parts[0] > 1:
            total = _by_fours(reshape(stored, parts, emit), scale, zero_point, emit)
        else:
            if [axis in axes for axis in order] != [False, *[True] * (rank - 2), False]:
                stored = reshape(stored, parts, emit)
            total = _windows(stored, scale, zero_point, shape_of(stored)[1:-1], emit)
    elif parts[2] == 1 or parts[0] > 1:
        total = added(permute(data_of(call), order, emit), parts, emit, aligned=not graph.is_global_average(var))
    else:
        return None
    if op_name(call) == "mean":
        total = emit(relax.op.divide(total, constant(np.float32(parts[1]))))
    total = reshape(total, [1 if axis in axes else shape[axis] for axis in order], emit)
    return reshape(permute(total, [order.index(axis) for axis in range(rank)], emit), shape_of(call), emit)


def _windows(
    stored: relax.Expr, scale: relax.Expr, zero_point: relax.Expr, size: tuple[int, ...], emit: Emit
) -> relax.Expr:
    """The sum of each window of this size, one beside the other."""
    return emit(qnn.pool_sum(stored, scale, zero_point, size, size, (0,) * 2 * len(size)))


def _by_fours(stored: relax.Expr, scale: relax.Expr, zero_point: relax.Expr, emit: Emit) -> relax.Expr:
    """`blocked_sums.by_fours` over the second axis of (N, summed, C), of the stored values."""
    batch, count, channels = shape_of(stored)

    def fours(_: int) -> relax.Expr:
        sums = permute(_windows(stored, scale, zero_point, (4,), emit), [1, 0, 2], emit)
        return reshape(emit(relax.op.sum(sums, [0])), (batch, 1, channels), emit)

    def rest(start: int, stop: int) -> relax.Expr:
        part = emit(relax.op.strided_slice(stored, [1], [start], [stop]))
        return _windows(part, scale, zero_point, (stop - start,), emit)

    return fours_and_rest(count, fours, rest, emit)


def _stores_few_bits(dequantize: relax.Call) -> bool:
    """Whether `qnn.pool_sum` takes what is dequantized: integers of few bits with one constant scale."""
    data, *parameters = dequantize.args
    return str(data.ty.dtype) in DTYPES and all(
        (known := constant_value(parameter)) is not None and known.size == 1 for parameter in parameters
    )


def _passes_images(value: relax.Expr) -> bool:
    """Whether it computes images in whichever layout it is given some."""
    is_part = isinstance(value, relax.TupleGetItem) or op_name(value) in _PARTS
    return is_part or traits_of(value).kind in _THROUGH


class _Graph:
    """What is in front of the variables of `main` and behind them."""

    def __init__(self, mod: IRModule) -> None:
        self._bindings = bindings_of(mod["main"])
        self._readers = consumers(mod["main"], self._bindings)
        self._marks = marks_of(mod["main"])
        self.values = {binding.var: binding.value for binding in self._bindings}
        self._known: set[Any] = set()  # what is computed from constants, such as biases
        for var, value in self.values.items():
            if all(one in self._known for one in variables_of(value)):
                self._known.add(var)

    def adds_dequantized(self, call: Any) -> bool:
        """Whether it adds up dequantized values."""
        if op_name(call) not in ("sum", "mean") or static_shape(data_of(call)) is None or 0 in shape_of(data_of(call)):
            return False
        return op_name(self.values.get(data_of(call))) == "qnn.dequantize"

    def is_global_average(self, var: Any) -> bool:
        """Whether it is ONNX's GlobalAveragePool."""
        return self._marks.get(var.name) is Mark.GLOBAL_AVERAGE

    def is_left_to_integers(self, var: Any) -> bool:
        """Whether integers add up the last axes: bytes that are quantized to bytes again, and results of convolutions,
        whose channels lie last here too. Moving them to the front would take longer than the convolution at times."""
        data = data_of(self.values[var])
        if self._follows_convolutions(data):
            return True
        while (reader := only_reader(var, self._readers, self._bindings)) is not None:
            if op_name(reader.value) == "qnn.quantize":
                dtypes = {str(one.ty.dtype) for one in (self.values[data].args[0], reader.var)}
                return dtypes <= {"int8", "uint8"}
            if traits_of(reader.value).kind is not Kind.MOVE:
                break
            var = reader.var
        return False

    def is_channels_last(self, var: Any, axes: Collection[int]) -> bool:
        """Whether ONNX Runtime takes this mean over the pixels of images whose channels are last: those of an integer
        convolution that it computes for another."""
        rank = len(shape_of(data_of(self.values[var])))
        if self.is_global_average(var) or rank < 3 or set(axes) != set(range(2, rank)) or len(shape_of(var)) != rank:
            return False
        return self._follows_convolutions(data_of(self.values[var])) and self._leads_to_convolution(var)

    def _follows_convolutions(self, var: Any) -> bool:
        """Whether all images that it is computed from are results of integer convolutions."""
        seen, pending = {var}, [var]
        while pending:
            current = pending.pop()
            value = self.values.get(current)
            if value is None:
                return False
            if self._is_convolution(value) or current in self._known:
                continue
            if not _passes_images(value):
                return False
            more = [one for one in variables_of(value) if one not in seen]
            seen.update(more)
            pending += more
        return True

    def _leads_to_convolution(self, var: Any) -> bool:
        """Whether an integer convolution is computed from it."""
        seen, pending = {var}, [var]
        while pending:
            for place in self._readers[pending.pop()]:
                reader = self._bindings[place] if place < len(self._bindings) else None
                if reader is None or reader.var in seen:
                    continue
                seen.add(reader.var)
                if self._is_convolution(reader.value):
                    return True
                if _passes_images(reader.value):
                    pending.append(reader.var)
        return False

    def _is_convolution(self, call: Any) -> bool:
        """Whether it is one of integers, or of dequantized data and weights."""
        if op_name(call) not in _CONVOLUTIONS:
            return op_name(call) == "qnn.conv2d"
        return all(op_name(self.values.get(factor)) == "qnn.dequantize" for factor in factors_of(call))
