"""Integer rules of operators on whole rows: softmax, and the normalizations by mean and variance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from tvm import relax

from ... import op as qnn
from ...op import compound
from ...op.arguments import data_of
from ...op.base import constant, constant_value, normalize_axis, shape_of
from ..rewrite import op_name
from .bounds import constants_of
from .context import Context
from .products import signed
from .registry import integer_rule
from .tensors import NARROW, Mapped, Quantized

# ---- softmax -----------------------------------------------------------------------------------------------------


def _logits(expr: Any, context: Context) -> Quantized | None:
    """The operand as integers with one scale; a constant added to a whole row changes nothing."""
    tensor = context.known(expr)
    if isinstance(tensor, Mapped) and tensor.slope is not None:
        return signed(Quantized(tensor.data, constant(np.float32(tensor.slope)), constant(np.int32(0))), context)
    if not isinstance(tensor, Quantized) or tensor.dtype not in NARROW:
        return None
    if tensor.vectors or tensor.constants is None:
        return context.refuse("its data has more than one scale, or one computed at run time")
    return signed(tensor, context)


def _to_quantized(call: relax.Call, context: Context, operator: Callable[..., relax.Call]) -> Any:
    tensor = _logits(data_of(call), context)
    if tensor is None:
        return None
    quantize = context.quantize_behind()
    if quantize is None:
        return context.refuse("the model does not quantize its result")
    if quantize.out_dtype not in NARROW or quantize.attributes["rounding"] != "TONEAREST_EVEN":
        return context.refuse(f"its result is quantized to {quantize.out_dtype}")
    assert tensor.constants is not None
    scale, zero_point = constants_of(quantize)
    unsigned = quantize.out_dtype == "uint16"  # the kernels write int16, which is 2¹⁵ lower
    offset = np.int32(1 << 15 if unsigned else 0)
    data = context.emit(
        operator(
            tensor.data,
            *tensor.constants,
            scale,
            zero_point - offset,
            axis=int(call.attrs.axis),
            out_dtype="int16" if unsigned else quantize.out_dtype,
        )
    )
    if unsigned:
        data = context.emit(qnn.requantize(data, 1.0, -offset, 1.0, 0, out_dtype="uint16"))
    return Quantized(data, quantize.scale, quantize.zero_point)


@integer_rule("nn.softmax")
def _softmax(call: relax.Call, context: Context) -> Any:
    """Between ONNX's quantize operators (which divide) with the same 8-bit dtype: ONNX Runtime's QLinearSoftmax."""
    tensor, quantize = context.quantized(data_of(call)), context.quantize_behind()
    narrow = tensor is not None and quantize is not None and tensor.dtype == quantize.out_dtype in ("int8", "uint8")
    if narrow and quantize is not None and not quantize.attributes["reciprocal"]:
        return _to_quantized(call, context, partial(qnn.softmax, rounding="ONNXRUNTIME"))
    return _to_quantized(call, context, qnn.softmax)


@integer_rule("nn.log_softmax")
def _log_softmax(call: relax.Call, context: Context) -> Any:
    return _to_quantized(call, context, qnn.log_softmax)


# ---- normalizations ----------------------------------------------------------------------------------------------


def _countable(call: relax.Call, rows: Sequence[int], context: Context) -> Quantized | None:
    """The data of a normalization over `rows`, where their exact sums fit into the integers of qnn.normalize."""
    tensor = context.quantized(data_of(call))
    if tensor is None or tensor.dtype not in NARROW:
        return None
    if tensor.vectors or tensor.constants is None:
        return context.refuse("its data has more than one scale, or one computed at run time")
    limits = np.finfo(np.float32)
    if not limits.tiny <= float(tensor.constants[0].item()) ** 2 <= limits.max:
        return context.refuse("the square of its scale is out of the range of normal float32 numbers")
    shape, tensor = tensor.shape, signed(tensor, context)
    count = math.prod(shape) // math.prod(rows)
    if (count * (np.iinfo(tensor.dtype).max - np.iinfo(tensor.dtype).min)) ** 2 >= 1 << 63:
        return context.refuse(f"the variance of {count} {tensor.dtype} values does not fit into int64")
    return tensor


def _normalized(
    call: relax.Call, rows: Sequence[int], context: Context, epsilon: float, centered: bool = True
) -> Any | None:
    """The data, viewed as `rows` × everything else, with mean 0 and variance 1: real values in the data's shape."""
    tensor = _countable(call, rows, context)
    if tensor is None:
        return None
    assert tensor.constants is not None
    return compound.normalized_rows(tensor.data, *tensor.constants, rows, epsilon, centered, context.emit)


def _affine(real: Any, weight: Any, bias: Any, shape: Sequence[int], context: Context) -> Any:
    """real · weight + bias, both in `shape`."""
    weight, bias = (None if parameter is None else context.value(parameter) for parameter in (weight, bias))
    return compound.affine(real, weight, bias, shape, context.emit)


def _trailing(call: relax.Call, axes: Sequence[Any]) -> int | None:
    """The number of trailing axes that the operator normalizes over, None if it normalizes over others."""
    ndim = len(shape_of(data_of(call)))
    found = sorted(normalize_axis(int(axis), ndim) for axis in axes)
    return len(found) if found == list(range(ndim - len(found), ndim)) else None


@integer_rule("nn.layer_norm")
def _layer_norm(call: relax.Call, context: Context) -> Any:
    data, weight, bias = call.args
    shape, count = shape_of(data), _trailing(call, call.attrs.axes)
    if count is None:
        return context.refuse("it normalizes over axes that are not the last ones")
    real = _normalized(call, shape[: len(shape) - count], context, float(call.attrs.epsilon))
    if real is None:
        return None
    weight, bias = weight if call.attrs.scale else None, bias if call.attrs.center else None
    return _affine(real, weight, bias, shape[len(shape) - count :], context)


@integer_rule("nn.rms_norm")
def _rms_norm(call: relax.Call, context: Context) -> Any:
    data, weight = call.args
    shape, count = shape_of(data), _trailing(call, call.attrs.axes)
    if count is None:
        return context.refuse("it normalizes over axes that are not the last ones")
    real = _normalized(call, shape[: len(shape) - count], context, float(call.attrs.epsilon), centered=False)
    return None if real is None else _affine(real, weight, None, shape[len(shape) - count :], context)


@integer_rule("nn.group_norm", "nn.instance_norm")
def _group_norm(call: relax.Call, context: Context) -> Any:
    """Each sample's channels in groups, where each group is a row; for instance norm, a group is one channel."""
    data, weight, bias = call.args
    shape, attributes = shape_of(data), call.attrs
    axis = normalize_axis(int(attributes.channel_axis), len(shape))
    axes = sorted(normalize_axis(int(a), len(shape)) for a in attributes.axes)
    if axis != 1 or axes != list(range(2, len(shape))):
        return context.refuse("its channels are not the second axis, or it normalizes over only some of the others")
    rows, epsilon = (shape[0], int(getattr(attributes, "num_groups", shape[1]))), float(attributes.epsilon)
    tensor, quantize = _countable(call, rows, context), context.quantize_behind()
    if tensor is None:
        return None
    assert tensor.constants is not None
    weight = weight if attributes.scale else constant(np.ones(shape[1], np.float32))
    bias = bias if attributes.center else constant(np.zeros(shape[1], np.float32))
    if quantize is None or quantize.out_dtype not in NARROW or quantize.attributes["rounding"] != "TONEAREST_EVEN":
        real = compound.normalized_rows(tensor.data, *tensor.constants, rows, epsilon, True, context.emit)
        column = (shape[1], *(1,) * (len(shape) - 2))
        gamma, beta = (compound.reshape(context.value(vector), column, context.emit) for vector in (weight, bias))
        return context.emit(qnn.fma(real, gamma, beta))
    result = qnn.group_norm(
        tensor.data,
        context.value(weight),
        context.value(bias),
        *tensor.constants,
        *constants_of(quantize),
        num_groups=rows[1] if op_name(call) == "nn.group_norm" else None,
        epsilon=epsilon,
        reciprocal=quantize.attributes["reciprocal"],
        out_dtype=quantize.out_dtype,
    )
    return Quantized(context.emit(result), quantize.scale, quantize.zero_point)


@integer_rule("nn.batch_norm")
def _batch_norm(call: relax.Call, context: Context) -> Any:
    """In inference, elementwise arithmetic, for the epilogue of the kernel that computes the data."""
    data, *parameters = call.args
    if context.known(data) is None or bool(call.attrs.training):
        return None
    shape, axis = shape_of(data), int(call.attrs.axis)
    vectors = [constant_value(context.value(parameter)) for parameter in parameters]
    if any(vector is None for vector in vectors):
        return context.refuse("its parameters are computed at run time")
    along = [1] * len(shape)
    along[axis] = shape[axis]
    gamma, beta, mean, variance = (np.asarray(vector, np.float32).reshape(along) for vector in vectors)
    deviation = np.sqrt(variance + np.float32(call.attrs.epsilon))
    real = context.emit(relax.op.subtract(context.value(data), constant(mean)))
    real = context.emit(relax.op.divide(real, constant(deviation)))
    real = _affine(
        real,
        constant(gamma) if call.attrs.scale else None,
        constant(beta) if call.attrs.center else None,
        along,
        context,
    )
    _, _, *statistics = parameters
    return [real, *map(context.value, statistics)]
