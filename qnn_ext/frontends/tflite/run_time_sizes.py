"""Operators of a TFLite model that read tensors whose sizes are known only at run time, or shapes with such sizes.

Where a converter takes numbers from shapes, it has a counterpart here (`counterparts.py`); those in `_CARRYING` take
none, and what they emit carries the sizes on (`sizes.py`). All other operators are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from tvm import relax

from ... import op as qnn
from ...op.base import constant, constant_value
from .. import data_dependent as build
from .. import sized_shapes as shapes
from ..counterparts import Counterparts, given_bounds, given_dims
from ..sizes import Size, Sizes, refusal
from .converters.reduce import reduction_axes
from .converters.slicing import takes_single_elements
from .node import Node

_CARRYING = """
    ABS ADD ARG_MAX ARG_MIN CAST CEIL CONCATENATION COS CUMSUM DEQUANTIZE DIV ELU EQUAL EXP EXPAND_DIMS FLOOR FLOOR_DIV
    FLOOR_MOD FULLY_CONNECTED GATHER GATHER_ND GELU GREATER GREATER_EQUAL HARD_SWISH LEAKY_RELU LESS LESS_EQUAL LOG
    LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC LOG_SOFTMAX MAXIMUM MINIMUM MUL NEG NOT_EQUAL ONE_HOT PACK POW QUANTIZE
    REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD RELU RELU6 RELU_N1_TO_1 ROUND RSQRT SELECT SELECT_V2 SIGN
    SIN SOFTMAX SQRT SQUARE SQUARED_DIFFERENCE SQUEEZE SUB SUM TANH TRANSPOSE UNIQUE UNPACK WHERE
"""
_SHAPES = {"BROADCAST_TO": (1,), "FILL": (0,), "SLICE": (1, 2), "STRIDED_SLICE": (1, 2)}
_COUNTERPARTS = Counterparts(_CARRYING)
_converter = _COUNTERPARTS.of
_ARITHMETIC = {"ADD": "add", "SUB": "subtract", "MUL": "multiply", "MINIMUM": "minimum", "MAXIMUM": "maximum"}


def convert_with_sizes(node: Node) -> Any:
    """The result of an operator that reads a tensor with such a size, or a shape with one; None where it does not, or
    where its own converter does it right. Raises UnsupportedOperatorError."""
    sizes = node.assembly.builder.sizes
    if _is_computed(node, sizes):
        return _COUNTERPARTS.converters[node.operator.name](node, sizes)
    if sizes.none:
        return None
    inputs = (node.assembly.known(index) for index in node.operator.inputs if index >= 0)
    return _COUNTERPARTS.convert(node, sizes, node.operator.name, inputs, _computed)


def _is_computed(node: Node, sizes: Sizes) -> bool:
    """Whether the operator takes a shape, or bounds of a slice, that the model computes from data."""
    return any(
        node.has_input(index)
        and constant_value(node.input(index)) is None
        and sizes.elements(node.input(index)) is None
        for index in _SHAPES.get(node.operator.name, ())
    ) and not (node.operator.name == "STRIDED_SLICE" and takes_single_elements(node))


def _dims(node: Node, sizes: Sizes, index: int) -> Sequence[Any]:
    """An input that is a shape, or a part of one: integers and sizes."""
    if constant_value(node.input(index)) is None and sizes.elements(node.input(index)) is None:
        return build.computed_dims(sizes, node.input(index), node.label)
    return given_dims(node, sizes, index)


# ---- arithmetic on shapes ----------------------------------------------------------------------------------------


def _computed(node: Node, sizes: Sizes) -> relax.Expr | None:
    """A shape computed from shapes, element by element; None where the result may be something else."""
    inputs = [sizes.elements(node.input(index)) for index in range(node.input_count) if node.has_input(index)]
    if any(found is None for found in inputs):
        return None
    try:
        found = _elements(node, sizes, [array for array in inputs if array is not None])
    except (IndexError, ValueError, TypeError):  # for the operator's own converter to report
        return None
    return None if found is None else sizes.tensor(found, node.output_tensor().dtype)


def _elements(node: Node, sizes: Sizes, inputs: list[np.ndarray]) -> np.ndarray | None:
    name, data = node.operator.name, inputs[0]
    if name in _ARITHMETIC and node.options.get("fused_activation_function", "NONE") == "NONE":
        return shapes.arithmetic(sizes, _ARITHMETIC[name], inputs)
    if name == "CAST" and node.output_tensor().dtype in ("int32", "int64"):
        return data
    if name == "CONCATENATION":
        return np.concatenate(inputs, int(node.options["axis"]))
    if name == "PACK" and data.ndim == 0:
        return shapes.objects([array[()] for array in inputs])
    if name == "GATHER" and data.ndim == 1 and not node.options["batch_dims"]:
        return shapes.objects(data[node.constant(1)])
    if name == "SLICE" and data.ndim == 1:
        (begin,), (size,) = node.integers(1), node.integers(2)
        return data[begin:] if size == -1 else data[begin : begin + size]
    if name == "STRIDED_SLICE" and data.ndim == 1 and not node.options["new_axis_mask"]:
        return _sliced(node, data)
    if name in ("SQUEEZE", "EXPAND_DIMS") and data.size == 1:
        return data.reshape(() if name == "SQUEEZE" else (1,) * (data.ndim + 1))
    if name == "RESHAPE" and data.size == 1 and len(inputs) > 1:
        return data.reshape((1,) * len(node.integers(1)))
    if name == "REDUCE_PROD" and data.ndim == 1:
        product = shapes.objects(reduce(sizes.times, data.tolist(), 1))
        return product.reshape((1,) if node.options["keep_dims"] else ())
    return None


def _sliced(node: Node, data: np.ndarray) -> np.ndarray:
    (begin,), (end,), (step,) = (node.integers(index) for index in (1, 2, 3))
    if node.options["shrink_axis_mask"]:
        return shapes.objects(data[begin])
    first = None if node.options["begin_mask"] else begin
    return data[first : None if node.options["end_mask"] else end : step]


@_converter("SHAPE")
def _shape(node: Node, sizes: Sizes) -> relax.Expr:
    return sizes.tensor(shapes.objects(shapes.dims_of(sizes, node.input(0))), node.output_tensor().dtype)


# ---- tensors of such shapes, and parts ---------------------------------------------------------------------------


@_converter("RESHAPE")
def _reshape(node: Node, sizes: Sizes) -> relax.Expr:
    has_shape = node.has_input(1) and len(node.shape(1)) == 1
    dims = given_dims(node, sizes, 1) if has_shape else [int(dim) for dim in node.options["new_shape"]]
    return shapes.reshape(sizes, node.input(0), dims, node.label)


@_converter("SQUEEZE")
def _squeeze(node: Node, sizes: Sizes) -> None:
    if not len(node.options["squeeze_dims"]):
        sizes.refuse([node.input(0)], "a SQUEEZE without dimensions")


@_converter("MEAN")
def _mean(node: Node, sizes: Sizes) -> relax.Expr | None:
    """Σ x / n, with n known only at run time; 0 of no elements, as in TFLite. Integers truncate towards zero."""
    own, dtype = shapes.dims_of(sizes, node.input(0)), node.dtype(0)
    axes = reduction_axes(node)
    count = reduce(sizes.times, (own[axis] for axis in axes), 1)
    if isinstance(count, int):
        return None
    if node.is_quantized(0):
        raise refusal(count, "a quantized MEAN over it")
    data = node.input(0) if dtype == "float32" else node.emit(relax.op.astype(node.input(0), "int64"))
    total = node.emit(relax.op.sum(data, axes, keepdims=bool(node.options["keep_dims"])))
    divisor = node.emit(relax.op.maximum(count.value, constant(np.int64(1))))
    if dtype == "float32":
        return relax.op.divide(total, node.emit(relax.op.astype(divisor, dtype)))
    return relax.op.astype(node.emit(relax.op.divide(total, divisor)), dtype)


@_converter("BROADCAST_TO")
def _broadcast(node: Node, sizes: Sizes) -> relax.Expr:
    return shapes.broadcast(sizes, node.input(0), _dims(node, sizes, 1), node.label)


@_converter("FILL")
def _fill(node: Node, sizes: Sizes) -> relax.Expr:
    value = node.emit(relax.op.reshape(node.input(1), ()))
    return shapes.broadcast(sizes, value, _dims(node, sizes, 0), node.label)


@_converter("ZEROS_LIKE")
def _zeros_like(node: Node, sizes: Sizes) -> relax.Expr:
    dims = shapes.dims_of(sizes, node.input(0))
    return shapes.full(sizes, dims, np.zeros((), node.dtype(0)), node.label)


@_converter("RANGE")
def _range(node: Node, sizes: Sizes) -> relax.Expr:
    (start,), (limit,), (step,) = (given_dims(node, sizes, index) for index in range(3))
    if not isinstance(limit, Size) or start != 0 or step != 1:
        raise node.unsupported("a range other than from 0 up to a size known only at run time")
    return shapes.counting(sizes, 0, limit, 1, node.dtype(0))


@_converter("SLICE")
def _slice(node: Node, sizes: Sizes) -> relax.Expr:
    data, begin, lengths = node.input(0), given_bounds(node, sizes, 1), given_bounds(node, sizes, 2)
    for axis, (first, length) in enumerate(zip(begin, lengths, strict=True)):
        if (first, length) == (0, -1):
            continue
        size = shapes.dims_of(sizes, data)[axis]
        rest = isinstance(length, int) and length == -1
        if isinstance(length, int) and not rest and isinstance(size, Size):
            raise refusal(size, f"a SLICE of {length} elements, of which there may be fewer,")
        if isinstance(first, relax.Expr) and isinstance(length, int) and not rest:
            data = build.window(sizes, data, axis, first, length, node.label)
            continue
        if isinstance(first, relax.Expr):
            first = build.computed_position(sizes, first, size, node.label)
        if isinstance(length, relax.Expr):
            if isinstance(size, Size) or first != 0:
                raise node.unsupported("a number of elements computed at run time, other than from the first on")
            length = build.computed_position(sizes, _within(node, length, size), size, node.label)
        data = build.sliced(sizes, data, axis, first, build.WHOLE if rest else sizes.plus(first, length))
    return data


def _within(node: Node, count: relax.Expr, size: int) -> relax.Expr:
    """A number of elements, of which there are this many; −1 means all of them."""
    count = node.emit(qnn.check_bounds(count, -1, size, node.label))
    every, one = (constant(np.asarray(value, str(count.ty.dtype))) for value in (size, -1))
    return node.emit(relax.op.where(node.emit(relax.op.equal(count, one)), every, count))


@_converter("STRIDED_SLICE")
def _strided_slice(node: Node, sizes: Sizes) -> relax.Expr | None:
    """x[b:e:s, …], without new axes; None where all bounds are known, and only whole axes have such sizes."""
    begin, end, steps = (given_bounds(node, sizes, index) for index in (1, 2, 3))
    data, options = node.input(0), node.options
    for option in ("ellipsis_mask", "new_axis_mask", "offset"):
        if options.get(option):
            raise node.unsupported(f"{option} of a tensor whose size is known only at run time")
    dropped = []
    for axis, (first, last, step) in enumerate(zip(begin, end, steps, strict=True)):
        bit, size = 1 << axis, shapes.dims_of(sizes, data)[axis]
        first = 0 if options["begin_mask"] & bit and not options["shrink_axis_mask"] & bit else first
        if options["shrink_axis_mask"] & bit:
            if isinstance(size, Size):
                raise refusal(size, "a single element of it")
            dropped.append(axis)
            if isinstance(first, relax.Expr):
                place = node.emit(relax.op.reshape(first, (1,)))
                data = build.rows_by(sizes, data, place, axis, node.label)
                continue
            last = sizes.plus(first, 1) if first != -1 else build.WHOLE
        elif options["end_mask"] & bit:
            last = build.WHOLE
        first, last = (build.computed_position(sizes, one, size, node.label) for one in (first, last))
        if (first, last, step) != (0, build.WHOLE, 1):
            data = build.sliced(sizes, data, axis, first, last, step)
    return node.emit(relax.op.squeeze(data, dropped)) if dropped else data
