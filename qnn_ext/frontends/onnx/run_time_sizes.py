"""Operators of an ONNX model that read tensors whose sizes are known only at run time, or shapes with such sizes.

Where a converter takes numbers from shapes, it has a counterpart here (`counterparts.py`); those in `_CARRYING` take
none, and what they emit carries the sizes on (`sizes.py`). All other operators are refused.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Any

import numpy as np
from tvm import relax

from ... import op as qnn
from ...op.base import constant, normalize_axis, shape_of
from ...op.folding import known_value
from .. import data_dependent as build
from .. import sized_shapes as shapes
from ..bounded_values import bounds_of
from ..counterparts import Counterparts, given_bounds, given_dims
from ..size_rules.gathers import scattered
from ..sizes import Size, Sizes, refusal
from .fallback import convert_with_tvm
from .indices import checked_inputs, index_input
from .node import Node

_CARRYING = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization BitwiseAnd BitwiseNot
    BitwiseOr BitwiseXor Cast CastLike Ceil Celu Clip Compress Concat Conv ConvInteger ConvTranspose Cos Cosh CumSum
    DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp Floor GatherElements
    Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization
    HardSigmoid HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Less
    LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool MeanVarianceNormalization Min
    Mish Mod Mul Neg NonMaxSuppression NonZero Not OneHot Or PRelu Pow QLinearConv QLinearMatMul QuantizeLinear
    RMSNormalization Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
    ReduceProd ReduceSum ReduceSumSquare Relu Resize RoiAlign Round ScatterND Selu Shrink Sigmoid Sign Sin Sinh
    Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Transpose Trilu
    Unique Unsqueeze Upsample Where Xor
"""
_OF_MICROSOFT = """
    BiasGelu DequantizeLinear DynamicQuantizeMatMul FastGelu FusedConv FusedGemm FusedMatMul Gelu LayerNormalization
    MatMulIntegerToFloat MatMulNBits QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearGlobalAveragePool
    QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere QuantizeLinear QuickGelu
    SkipLayerNormalization
"""
_COUNTERPARTS = Counterparts(_CARRYING + _OF_MICROSOFT)
_MICROSOFT_CARRYING = frozenset(_OF_MICROSOFT.split())
_converter = _COUNTERPARTS.of
_ARITHMETIC = {"Add": "add", "Sub": "subtract", "Mul": "multiply", "Min": "minimum", "Max": "maximum", "Div": "divide"}
_MOST_IN_FLOAT = 1 << 24  # float32 has all integers up to it
_SHAPE_INPUTS = {"ConstantOfShape": 0, "Expand": 1}
"""The operators that are converted here too where the model computes their shape from data, and its input."""
_REDUCTIONS = {
    "ReduceProd": Sizes.times,
    "ReduceSum": Sizes.plus,
    "ReduceMin": Sizes.least,
    "ReduceMax": Sizes.greatest,
}


def convert_with_sizes(node: Node) -> Any:
    """The result of an operator that reads a tensor with such a size, or a shape with one; None where it does not, or
    where its own converter does it right. Raises UnsupportedOperatorError."""
    sizes = node.assembly.builder.sizes
    place = None if node.domain else _SHAPE_INPUTS.get(node.op_type)
    if place is not None and _is_computed(node, place):
        return _COUNTERPARTS.converters[node.op_type](node, sizes)
    if sizes.none:
        return None
    known = not node.domain or (node.domain == "com.microsoft" and node.op_type in _MICROSOFT_CARRYING)
    return _COUNTERPARTS.convert(node, sizes, node.op_type, node.inputs, _computed, known)


def _is_computed(node: Node, index: int) -> bool:
    """Whether an input, a shape, is computed from data."""
    builder, value = node.assembly.builder, node.input(index)
    return builder.sizes.elements(value) is None and known_value(builder, value) is None


def given_shape(node: Node, index: int) -> list[Any]:
    """An input that is a shape: integers and sizes, of which the model may compute some from data. Raises
    UnsupportedOperatorError where the largest value of one is not known."""
    sizes, input_ = node.assembly.builder.sizes, node.input(index)
    if not _is_computed(node, index):
        return given_dims(node, sizes, index)
    if str(input_.ty.dtype) not in ("int64", "int32") or len(shape_of(input_)) != 1:
        raise node.malformed(f"a shape must be a vector of integers, found {input_.ty.dtype} of {shape_of(input_)}")
    for one in given_bounds(node, sizes, index):
        if isinstance(one, relax.Expr) and bounds_of(sizes.builder, one) is None:
            name = node.assembly.integer_behind(one) or node.input_name(index)
            raise node.unsupported(
                f"a size that the model computes ('{name}') and whose largest value is not known: say it with "
                f"largest={{{name!r}: n}}, bind the inputs that it depends on to values (constants=), or end the model "
                "before this operator and compute the rest outside"
            )
    return list(build.computed_dims(sizes, input_, node.label))


# ---- arithmetic on shapes ----------------------------------------------------------------------------------------


def _computed(node: Node, sizes: Sizes) -> relax.Expr | None:
    """A shape computed from shapes, element by element; None where the result may be something else."""
    inputs = [sizes.elements(value) if value is not None else None for value in node.inputs]
    if any(value is not None and found is None for value, found in zip(node.inputs, inputs, strict=True)):
        return None
    try:
        found = _elements(node, sizes, inputs)
    except (IndexError, ValueError, TypeError):  # for the operator's own converter to report
        return None
    if found is None:
        return None
    if node.op_type == "Cast":
        return sizes.tensor(found, node.target_dtype("to"))
    return sizes.tensor(found, "bool" if node.op_type == "Equal" else node.dtype(1 if node.op_type == "Where" else 0))


def _elements(node: Node, sizes: Sizes, inputs: list[Any]) -> np.ndarray | None:
    name, data = node.op_type, inputs[0]
    integers = not node.dtype(0).startswith("float")  # floats only hold sizes on their way to Range
    if name in _ARITHMETIC and integers:
        return shapes.arithmetic(sizes, _ARITHMETIC[name], inputs)
    if name == "Cast" and node.target_dtype("to") in ("int32", "int64"):
        return data
    if (
        name == "Cast"
        and node.target_dtype("to") == "float32"
        and all(not isinstance(one, Size) or one.most <= _MOST_IN_FLOAT for one in data.reshape(-1))
    ):
        return data
    if name == "Identity":
        return data
    if name == "Gather" and not node.attribute("axis", 0) and node.is_constant(1):
        return shapes.objects(data[node.constant(1)])
    if name == "Concat":
        return np.concatenate(inputs, 0)
    if name == "Slice" and data.ndim == 1 and all(node.is_constant(index) for index in range(1, len(node.inputs))):
        steps = node.integers(4) if node.has_input(4) else [1]
        return data[slice(node.integers(1)[0], node.integers(2)[0], steps[0])]
    if name == "Reshape" and len(inputs) > 1 and node.is_constant(1) and 0 not in node.integers(1):
        return data.reshape(node.integers(1))
    if name in ("Squeeze", "Unsqueeze", "Reshape") and data.size == 1:
        rank = {"Squeeze": 0, "Unsqueeze": data.ndim + 1, "Reshape": 1}[name]
        return data.reshape((1,) * rank)
    if (
        name in _REDUCTIONS
        and integers
        and data.ndim == 1
        and data.size
        and not node.attribute("noop_with_empty_axes", 0)
    ):
        reduced = shapes.objects(reduce(partial(_REDUCTIONS[name], sizes), data.tolist()))
        return reduced.reshape((1,) * int(node.attribute("keepdims", 1)))
    if name == "Equal" and all(isinstance(one, Size) or one < 0 for one in inputs[1].reshape(-1)):
        return shapes.objects(np.equal(data, inputs[1]))  # no size is negative
    if name == "Where" and not any(isinstance(one, Size) for one in data.reshape(-1)):
        return shapes.objects(np.where(data.astype(bool), *inputs[1:]))
    return None


@_converter("Shape")
def _shape(node: Node, sizes: Sizes) -> relax.Expr:
    dims = shapes.dims_of(sizes, node.input(0))[node.attribute("start", 0) : node.attribute("end", None)]
    return sizes.tensor(shapes.objects(dims))


@_converter("Size")
def _size(node: Node, sizes: Sizes) -> relax.Expr:
    return sizes.tensor(shapes.objects(reduce(sizes.times, shapes.dims_of(sizes, node.input(0)), 1)))


# ---- tensors of such shapes --------------------------------------------------------------------------------------


@_converter("Reshape")
def _reshape(node: Node, sizes: Sizes) -> relax.Expr:
    dims = given_dims(node, sizes, 1) if node.opset >= 5 else list(node.attribute("shape", []))
    own = shapes.dims_of(sizes, node.input(0))
    copies = not node.attribute("allowzero", 0)
    dims = [own[axis] if copies and dim == 0 and axis < len(own) else dim for axis, dim in enumerate(dims)]
    return shapes.reshape(sizes, node.input(0), dims, node.label)


@_converter("Flatten")
def _flatten(node: Node, sizes: Sizes) -> relax.Expr:
    own, axis = shapes.dims_of(sizes, node.input(0)), node.attribute("axis", 1)
    axis = normalize_axis(axis, len(own)) if axis < len(own) else axis
    dims = [reduce(sizes.times, part, 1) for part in (own[:axis], own[axis:])]
    return shapes.reshape(sizes, node.input(0), dims, node.label)


@_converter("Expand")
def _expand(node: Node, sizes: Sizes) -> relax.Expr:
    dims = [1 if isinstance(dim, int) and dim == -1 else dim for dim in given_shape(node, 1)]
    return shapes.broadcast(sizes, node.input(0), dims, node.label)


@_converter("ConstantOfShape")
def _constant_of_shape(node: Node, sizes: Sizes) -> relax.Expr:
    value = np.asarray(node.attribute("value", np.zeros(1, np.float32)))
    return shapes.full(sizes, given_shape(node, 0), value, node.label)


@_converter("Tile")
def _tile(node: Node, sizes: Sizes) -> relax.Expr:
    repeats = given_dims(node, sizes, 1)
    own = shapes.dims_of(sizes, node.input(0))
    if len(repeats) != len(own):
        raise node.malformed(f"{len(repeats)} repeats do not match {len(own)} dimensions")
    data = node.input(0)
    fixed = [count if isinstance(count, int) else 1 for count in repeats]
    if any(count != 1 for count in fixed):
        data = node.emit(relax.op.tile(data, fixed))
    growing = [(axis, count) for axis, count in enumerate(repeats) if isinstance(count, Size)]
    for axis, count in growing:
        if own[axis] != 1:
            raise refusal(count, f"repeating a dimension of {shape_of(data)[axis]} so many times")
    dims = shapes.dims_of(sizes, data)
    for axis, count in growing:
        dims[axis] = count
    return shapes.broadcast(sizes, data, dims, node.label) if growing else data


@_converter("Range")
def _range(node: Node, sizes: Sizes) -> relax.Expr:
    (start,), (limit,), (step,) = (_whole_numbers(node, sizes, index) for index in range(3))
    if not isinstance(limit, Size) or not isinstance(start, int) or not isinstance(step, int) or step < 1 or start < 0:
        raise node.unsupported("a range other than from an integer up to a size known only at run time")
    return shapes.counted(sizes, start, limit, step, node.dtype(0))


def _whole_numbers(node: Node, sizes: Sizes, index: int) -> list[Any]:
    """A shape, or float constants if they are integers, which ONNX Runtime's quantizer may have quantized."""
    if sizes.elements(node.input(index)) is not None or not node.dtype(index).startswith("float"):
        return given_dims(node, sizes, index)
    return [int(value) if value.is_integer() else None for value in node.constant(index).reshape(-1).tolist()]


# ---- parts -------------------------------------------------------------------------------------------------------


@_converter("Slice")
def sliced(node: Node, sizes: Sizes) -> relax.Expr:
    """Ranges along axes, whose bounds may be sizes or numbers computed at run time."""
    if node.opset < 10:
        starts, ends = (list(node.attribute(name, [])) for name in ("starts", "ends"))
        axes, steps = node.attribute("axes"), None
    else:
        starts, ends = given_bounds(node, sizes, 1), given_bounds(node, sizes, 2)
        axes, steps = (node.integers(index) if node.has_input(index) else None for index in (3, 4))
    data, ndim = node.input(0), len(node.shape(0))
    chosen = list(range(len(starts))) if axes is None else [normalize_axis(axis, ndim) for axis in axes]
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(chosen) == len(steps) or len(set(chosen)) != len(chosen) or 0 in steps:
        raise node.malformed(f"{len(starts)} starts, {len(ends)} ends, axes {axes} and steps {steps} do not match")
    for axis, start, end, step in zip(chosen, starts, ends, steps, strict=True):
        if (start, step) == (0, 1) and isinstance(end, int) and end >= build.WHOLE:
            continue
        size = shapes.dims_of(sizes, data)[axis]
        start, end = (build.computed_position(sizes, bound, size, node.label) for bound in (start, end))
        if step < 0 and not sizes.of(data).get(axis) and isinstance(start, int) and isinstance(end, int):
            first, last, _ = slice(start, end, step).indices(shape_of(data)[axis])
            last = last if last >= 0 else -shape_of(data)[axis] - 1
            data = node.emit(relax.op.strided_slice(data, [axis], [first], [last], [step]))
        else:
            data = build.sliced(sizes, data, axis, start, end, step)
    return data


@_converter("Pad")
def _pad(node: Node, sizes: Sizes) -> relax.Expr | None:
    """Padding up to a size that is known, as of detections."""
    if node.opset < 11 or sizes.elements(node.input(1)) is None or node.attribute("mode", "constant") != "constant":
        return None
    ndim, widths = len(node.shape(0)), given_dims(node, sizes, 1)
    axes = [normalize_axis(axis, ndim) for axis in node.integers(3)] if node.has_input(3) else list(range(ndim))
    if len(widths) != 2 * len(axes):
        raise node.malformed(f"{len(widths)} pads for {len(axes)} axes")
    value = node.constant(2).reshape(-1) if node.has_input(2) else np.zeros(1, node.dtype(0))
    return build.padded(sizes, node.input(0), axes, widths, value[0], node.label)


@_converter("Gather")
def _gather(node: Node, sizes: Sizes) -> relax.Expr | None:
    """Rows of a table with such a size."""
    axis, indices = _indices(node, sizes)
    return None if indices is None else shapes.rows(sizes, node.input(0), indices, axis)


@_converter("GatherND")
def _gather_nd(node: Node, sizes: Sizes) -> relax.Expr:
    """Elements, or slices, at places of such a number, perhaps rows of a table with such a size."""
    data, batch = node.input(0), node.attribute("batch_dims", 0)
    if not batch and node.shape(1)[-1:] == (1,) and set(sizes.of(data)) == {0}:
        places = shapes.reshape(sizes, node.input(1), shapes.dims_of(sizes, node.input(1))[:-1], node.label)
        return build.rows_by(sizes, data, places, 0, node.label)
    return relax.op.gather_nd(data, checked_inputs(node)[1], batch)


@_converter("ScatterElements", "Scatter")
def _scatter(node: Node, sizes: Sizes) -> relax.Expr | None:
    """Into rows of such a number."""
    axis, indices = _indices(node, sizes)
    if indices is None:
        return None
    reduction = node.attribute("reduction", "none")
    how = "update" if reduction == "none" else reduction
    call = relax.op.scatter_elements(node.input(0), indices, node.input(2), axis, how)
    return sizes.emit(scattered(sizes, call), sizes.of(node.input(0)))


@_converter("ScatterND")
def _scatter_nd(node: Node, sizes: Sizes) -> relax.Expr | None:
    """Elements, or slices, at places in rows of such a number."""
    data, size = node.input(0), sizes.of(node.input(0)).get(0)
    if size is None:
        return None
    own, dtype, indices, depth = sizes.of(node.input(1)), node.dtype(1), node.input(1), node.shape(1)[-1]
    if dtype != "int64" or depth > len(shape_of(data)):
        raise node.malformed(f"indices {dtype} of shape {node.shape(1)} do not match data of shape {node.shape(0)}")
    if not node.is_constant(1):
        lengths = shape_of(data)[:depth]
        checked = qnn.check_bounds(
            indices, [-length for length in lengths], [length - 1 for length in lengths], node.label
        )
        indices = node.emit(checked)
    dims = sizes.tensor(shapes.objects([size, *shape_of(data)[1:depth]]), dtype)
    from_end = sizes.emit(relax.op.less(indices, constant(np.zeros((), dtype))), own)
    indices = sizes.emit(relax.op.where(from_end, sizes.emit(relax.op.add(indices, dims), own), indices), own)
    how = "update" if node.attribute("reduction", "none") == "none" else node.attribute("reduction")
    call = relax.op.scatter_nd(data, indices, node.input(2), how)
    return sizes.emit(scattered(sizes, call), sizes.of(data))


def _indices(node: Node, sizes: Sizes) -> tuple[int, relax.Expr | None]:
    """The axis of an operator, and its indices along that, which may count from the end; None if the axis has no such
    size."""
    axis = normalize_axis(node.attribute("axis", 0), len(node.shape(0)))
    size = sizes.of(node.input(0)).get(axis)
    if size is None:
        return axis, None
    index_input(node, 1, size.most, negative=True)
    return axis, build.counted_from_end(sizes, node.input(1), size, node.label)


@_converter("ReduceMean")
def _mean(node: Node, sizes: Sizes) -> relax.Expr:
    """ONNX Runtime's mean of no elements is 0."""
    (mean,) = convert_with_tvm(node)
    result, ndim = node.emit(mean), len(node.shape(0))
    axes = node.integers(1) if node.has_input(1) else node.attribute("axes", range(ndim))
    kept = sizes.of(result)
    for axis, size in sizes.of(node.input(0)).items():
        if axis in [one % ndim for one in axes or range(ndim)]:
            none = sizes.emit(relax.op.equal(size.value, constant(np.int64(0))))
            result = sizes.emit(relax.op.where(none, constant(np.zeros((), node.dtype(0))), result), kept)
    return result


@_converter("TopK")
def _top_k(node: Node, sizes: Sizes) -> list[relax.Expr]:
    if not node.attribute("sorted", 1):
        raise node.unsupported("unsorted results")
    if node.opset < 10:
        k: Any = int(node.attribute("k", 1))
    else:
        (k,) = given_dims(node, sizes, 1)
    axis = normalize_axis(node.attribute("axis", -1), len(node.shape(0)))
    return list(build.top_k(sizes, node.input(0), k, axis, bool(node.attribute("largest", 1)), "int64", node.label))
