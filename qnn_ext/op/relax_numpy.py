"""Relax operators in NumPy: integer ones, those that move data, and those whose float results the kernels reproduce bit
for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..numerics import division, elementary, extremes, float_rows, reference
from .base import has_float_rows, shape_of
from .relax_compiled import evaluate_with_tvm


def _binary(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda call, a, b: np.asarray(function(a, b)).astype(np.asarray(a).dtype)


def _extreme(of_floats: Callable[..., np.ndarray], of_integers: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda call, a, b: np.asarray((of_floats if a.dtype.kind == "f" else of_integers)(a, b))


def _clip(call: relax.Call, data: np.ndarray, low: float, high: float) -> np.ndarray:
    kind = data.dtype.type
    if data.dtype.kind == "f":
        return extremes.clip(data, low, high)
    return np.clip(data, kind(low), kind(high))


def _divide(call: relax.Call, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(a / b)


def _division(name: str) -> Callable[..., np.ndarray]:
    """Division of integers, for every divisor; of floats, as TVM computes it."""

    def divide(call: relax.Call, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.kind in "iu":
            return division.NUMPY[name](a, b)
        return _divide(call, a, b) if name == "divide" else evaluate_with_tvm(call, [a, b])

    return divide


def _shift(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Shifting by a negative amount or by too many bits acts like shifting bit by bit: it gives 0, or −1 for a negative
    number shifted right."""

    def shift(call: relax.Call, x: np.ndarray, n: np.ndarray) -> np.ndarray:
        bits = x.dtype.itemsize * 8
        inside = (n >= 0) & (n < bits)
        amount = np.where(inside, n, 0).astype(x.dtype)
        emptied = (
            np.zeros_like(x) if function is np.left_shift else np.where(x < 0, ~np.zeros_like(x), np.zeros_like(x))
        )
        return np.where(inside, function(x, amount), emptied)

    return shift


def _cast(call: relax.Call, data: np.ndarray) -> np.ndarray:
    dtype = str(call.ty.dtype)
    if data.dtype.kind == "f" and dtype.startswith(("int", "uint")):
        return reference.truncate(data, dtype)
    with np.errstate(over="ignore"):
        return data.astype(dtype)


def _order(data: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """The positions of values in order, equal ones as they come; NaN is the largest."""
    flipped = np.flip(data, axis) if descending else data
    order = np.argsort(flipped, axis, kind="stable")
    return np.flip(data.shape[axis] - 1 - order, axis) if descending else order


def _sorted(call: relax.Call, data: np.ndarray) -> Any:
    """relax.sort and argsort."""
    order = _order(data, int(call.attrs.axis), bool(call.attrs.descending))
    if call.op.name == "relax.argsort":
        return order.astype(str(call.attrs.dtype))
    return np.take_along_axis(data, order, int(call.attrs.axis))


def _topk(call: relax.Call, data: np.ndarray) -> Any:
    axis, k, kind = int(call.attrs.axis), int(call.attrs.k), str(call.attrs.ret_type)
    order = _order(data, axis, bool(call.attrs.largest))
    first = np.take(order, np.arange(k if k > 0 else data.shape[axis]), axis)
    results = {"values": np.take_along_axis(data, first, axis), "indices": first.astype(str(call.attrs.dtype))}
    return tuple(results.values()) if kind == "both" else results[kind]


def _reduction(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    def reduce(call: relax.Call, data: np.ndarray) -> np.ndarray:
        axis = None if call.attrs.axis is None else tuple(int(axis) for axis in call.attrs.axis)
        of_none = {} if data.size or function is np.sum else {"initial": _of_none(data.dtype, function is np.min)}
        return np.asarray(function(data, axis=axis, keepdims=bool(call.attrs.keepdims), **of_none))

    return reduce


def _of_none(dtype: np.dtype, least: bool) -> Any:
    """The minimum or maximum of no elements, as TVM's kernels have it."""
    if dtype.kind == "f":
        return np.inf if least else -np.inf
    if dtype.kind == "b":
        return least
    return np.iinfo(dtype).max if least else np.iinfo(dtype).min


def _mean(call: relax.Call, data: np.ndarray) -> np.ndarray:
    if data.size:
        return evaluate_with_tvm(call, [data])
    with np.errstate(all="ignore"):
        return _reduction(np.sum)(call, data) / np.zeros((), data.dtype)


def _extreme_position(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The first position of the extreme; the first NaN is beyond all numbers, as in NumPy and PyTorch."""

    def evaluate(call: relax.Call, data: np.ndarray) -> np.ndarray:
        axis = None if call.attrs.axis is None else int(call.attrs.axis)
        return np.asarray(function(data, axis=axis, keepdims=bool(call.attrs.keepdims)))

    return evaluate


def _permute(call: relax.Call, data: np.ndarray) -> np.ndarray:
    return data.transpose(None if call.attrs.axes is None else [int(axis) for axis in call.attrs.axes])


def _take(call: relax.Call, data: np.ndarray, indices: np.ndarray) -> np.ndarray:
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    size = data.size if axis is None else data.shape[axis]
    places = np.asarray(indices, np.int64)
    places = places % size if call.attrs.mode == "wrap" else np.clip(places, 0, size - 1)
    return np.take(data, places, axis)


def _elementary(name: str) -> Callable[..., np.ndarray]:
    function = getattr(elementary, name)

    def evaluate(call: relax.Call, data: np.ndarray) -> np.ndarray:
        return elementary.on_arrays(function, data) if data.dtype == np.float32 else evaluate_with_tvm(call, [data])

    return evaluate


def _softmax(call: relax.Call, data: np.ndarray) -> np.ndarray:
    return float_rows.softmax(data, int(call.attrs.axis)) if has_float_rows(call) else evaluate_with_tvm(call, [data])


def _log_softmax(call: relax.Call, data: np.ndarray) -> np.ndarray:
    if not has_float_rows(call):
        return evaluate_with_tvm(call, [data])
    return float_rows.log_softmax(data, int(call.attrs.axis))


def _layer_norm(call: relax.Call, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    if not has_float_rows(call):
        return evaluate_with_tvm(call, [data, gamma, beta])
    return float_rows.layer_norm(data, gamma, beta, float(call.attrs.epsilon))


def float_groups(call: relax.Call) -> int | None:
    """How many groups a float32 group or instance normalization has, over whole channels along the second axis; None
    for any other."""
    attributes, shape = call.attrs, shape_of(call.args[0])
    axes = sorted(int(axis) % len(shape) for axis in attributes.axes)
    second = int(attributes.channel_axis) % len(shape) == 1 and axes == list(range(2, len(shape)))
    if not second or str(call.args[0].ty.dtype) != "float32":
        return None
    return int(getattr(attributes, "num_groups", shape[1]))


def _group_norm(call: relax.Call, data: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """As passes/canonicalize/group_norm.py puts it."""
    groups = float_groups(call)
    if groups is None:
        return np.asarray(evaluate_with_tvm(call, [data, gamma, beta]))
    rows = data.reshape(data.shape[0], groups, -1)
    unit = float_rows.layer_norm(rows, np.ones(1, np.float32), np.zeros(1, np.float32), float(call.attrs.epsilon))
    gamma = gamma if call.attrs.scale else np.ones_like(gamma)
    beta = beta if call.attrs.center else np.zeros_like(beta)
    column = (-1, *(1,) * (data.ndim - 2))
    return reference.fused_multiply_add(unit.reshape(data.shape), gamma.reshape(column), beta.reshape(column))


def _sum(call: relax.Call, data: np.ndarray) -> np.ndarray:
    """Sums of integers wrap; floats are added one after the other, each addition rounded, as in unscheduled code."""
    axes = range(data.ndim) if call.attrs.axis is None else sorted(int(axis) % data.ndim for axis in call.attrs.axis)
    if data.dtype.kind in "iu":
        return np.asarray(np.sum(data, axis=tuple(axes), dtype=data.dtype)).reshape(shape_of(call))
    if data.dtype.kind != "f":
        return np.asarray(evaluate_with_tvm(call, [data]))
    rows = np.moveaxis(data, tuple(axes), range(-len(axes), 0)).reshape(*shape_of(call), -1)
    from_zero = np.concatenate([np.zeros((*rows.shape[:-1], 1), rows.dtype), rows], axis=-1)
    with np.errstate(all="ignore"):
        return np.asarray(np.add.accumulate(from_zero, axis=-1)[..., -1])


def _strided_slice(call: relax.Call, data: np.ndarray, axes: Any, begin: Any, end: Any, *strides: Any) -> np.ndarray:
    """Bounds work as in Python's slices, including a negative end with a negative stride."""
    window = [slice(None)] * data.ndim
    for axis, *bounds in zip(axes, begin, end, *strides, strict=True):
        window[axis] = slice(*bounds)
    return data[tuple(window)].reshape(shape_of(call))


def _split(call: relax.Call, data: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
    if isinstance(call.ty, relax.TensorType):  # a single part, which TVM leaves without a tuple
        return data
    parts = call.attrs.indices_or_sections
    axis = int(call.attrs.axis)
    if isinstance(parts, tirx.IntImm):  # equal parts, except for the last
        size = data.shape[axis]
        parts = range(-(-size // int(parts)), size, -(-size // int(parts)))
    return tuple(np.split(data, [int(part) for part in parts], axis))


def _pad(call: relax.Call, data: np.ndarray) -> np.ndarray:
    if call.attrs.pad_mode != "constant":
        return np.asarray(evaluate_with_tvm(call, [data]))
    widths = np.array([int(width) for width in call.attrs.pad_width]).reshape(-1, 2)
    return np.pad(data, widths, constant_values=np.asarray(float(call.attrs.pad_value)).astype(data.dtype))


def _max_pool(call: relax.Call, data: np.ndarray) -> np.ndarray:
    """Of floats, with −∞ beyond the edges; cells are compared in order."""
    attributes, shape = call.attrs, shape_of(call)
    if data.dtype.kind != "f" or str(attributes.layout) != str(attributes.out_layout):
        return np.asarray(evaluate_with_tvm(call, [data]))
    axes = [axis for axis, letter in enumerate(str(attributes.layout)) if letter in "DHW"]
    geometry = (attributes.pool_size, attributes.strides, attributes.padding, attributes.dilation)
    pool_size, strides, padding, dilation = ([int(value) for value in values] for values in geometry)
    widths = [(0, 0)] * data.ndim
    for axis, size, stride, low, step in zip(axes, pool_size, strides, padding, dilation, strict=False):
        widths[axis] = (low, max((shape[axis] - 1) * stride + (size - 1) * step + 1 - low - data.shape[axis], 0))
    padded = np.pad(data, widths, constant_values=-np.inf)
    result = np.full(shape, -np.inf, data.dtype)
    for taps in np.ndindex(*pool_size):
        window = [slice(None)] * data.ndim
        for axis, tap, stride, step in zip(axes, taps, strides, dilation, strict=True):
            window[axis] = slice(tap * step, tap * step + (shape[axis] - 1) * stride + 1, stride)
        result = extremes.maximum(result, padded[tuple(window)])
    return result


def _square_root(call: relax.Call, data: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.sqrt(data)


_UPDATES: dict[str, Callable[[Any, Any], Any]] = {
    "update": lambda old, new: new,
    "add": np.add,
    "mul": np.multiply,
    "min": extremes.minimum,
    "max": extremes.maximum,
}


def _scattered(call: relax.Call, data: np.ndarray, targets: list[Any], updates: np.ndarray) -> np.ndarray:
    """The updates one after another, each at its own index along every axis; addresses stay within the tensor.

    TVM's own kernel puts updates in wrong places if there are fewer of them along an axis before the scattered one.
    """
    result, update = data.copy(), _UPDATES[str(call.attrs.reduction)]
    within = [np.clip(target, 0, size - 1).reshape(-1) for target, size in zip(targets, data.shape, strict=True)]
    with np.errstate(all="ignore"):
        for *place, new in zip(*within, updates.reshape(-1), strict=True):
            result[tuple(place)] = update(result[tuple(place)], new)
    return result


def _scatter_elements(call: relax.Call, data: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    if str(call.attrs.reduction) not in _UPDATES:
        return np.asarray(evaluate_with_tvm(call, [data, indices, updates]))
    axis = int(call.attrs.axis) % data.ndim
    targets: list[Any] = list(np.indices(indices.shape))
    targets[axis] = np.where(indices < 0, indices + data.shape[axis], indices)
    return _scattered(call, data, targets, updates[tuple(map(slice, indices.shape))])


def _scatter_nd(call: relax.Call, data: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
    if str(call.attrs.reduction) not in _UPDATES:
        return np.asarray(evaluate_with_tvm(call, [data, indices, updates]))
    outer, count = indices.shape[:-1], indices.shape[-1]
    along: list[Any] = list(np.indices(updates.shape))
    targets: list[Any] = [np.expand_dims(indices[..., k], tuple(range(len(outer), updates.ndim))) for k in range(count)]
    targets = [np.broadcast_to(target, updates.shape) for target in targets]
    return _scattered(call, data, [*targets, *along[len(outer) :]], updates)


NUMPY_RULES: dict[str, Callable[..., Any]] = {
    "relax.add": _binary(np.add),
    "relax.subtract": _binary(np.subtract),
    "relax.multiply": _binary(np.multiply),
    "relax.maximum": _extreme(extremes.maximum, np.maximum),
    "relax.minimum": _extreme(extremes.minimum, np.minimum),
    **{f"relax.{name}": _division(name) for name in division.NUMPY},
    "relax.left_shift": _shift(np.left_shift),
    "relax.right_shift": _shift(np.right_shift),
    "relax.nn.relu6": lambda call, data: np.clip(data, np.zeros((), data.dtype), np.asarray(6, data.dtype)),
    "relax.abs": lambda call, data: np.abs(data),
    "relax.equal": lambda call, a, b: np.equal(a, b),
    "relax.not_equal": lambda call, a, b: np.not_equal(a, b),
    "relax.less": lambda call, a, b: np.less(a, b),
    "relax.less_equal": lambda call, a, b: np.less_equal(a, b),
    "relax.greater": lambda call, a, b: np.greater(a, b),
    "relax.greater_equal": lambda call, a, b: np.greater_equal(a, b),
    "relax.logical_and": lambda call, a, b: np.logical_and(a, b),
    "relax.logical_or": lambda call, a, b: np.logical_or(a, b),
    "relax.logical_not": lambda call, data: np.logical_not(data),
    "relax.scatter_elements": _scatter_elements,
    "relax.scatter_nd": _scatter_nd,
    "relax.negative": lambda call, data: -data,
    "relax.sqrt": _square_root,
    "relax.floor": lambda call, data: np.floor(data),
    "relax.ceil": lambda call, data: np.ceil(data),
    "relax.sum": _sum,
    "relax.mean": _mean,
    "relax.where": lambda call, condition, a, b: np.where(condition, a, b),
    "relax.max": _reduction(np.max),
    "relax.min": _reduction(np.min),
    "relax.argmax": _extreme_position(np.argmax),
    "relax.argmin": _extreme_position(np.argmin),
    "relax.sort": _sorted,
    "relax.argsort": _sorted,
    "relax.topk": _topk,
    "relax.clip": _clip,
    "relax.take": _take,
    "relax.astype": _cast,
    "relax.reshape": lambda call, data, shape: data.reshape(shape_of(call)),
    "relax.expand_dims": lambda call, data: data.reshape(shape_of(call)),
    "relax.squeeze": lambda call, data: data.reshape(shape_of(call)),
    "relax.permute_dims": _permute,
    "relax.strided_slice": _strided_slice,
    "relax.split": _split,
    "relax.nn.pad": _pad,
    **{f"relax.nn.max_pool{rank}d": _max_pool for rank in (1, 2, 3)},
    "relax.tile": lambda call, data: np.tile(data, [int(count) for count in call.attrs.repeats]),
    "relax.flip": lambda call, data: np.flip(data, int(call.attrs.axis)),
    "relax.stack": lambda call, fields: np.stack(fields, axis=int(call.attrs.axis or 0)),
    "relax.broadcast_to": lambda call, data, shape: np.broadcast_to(data, shape_of(call)),
    "relax.shape_of": lambda call, data: data.shape,
    "relax.shape_to_tensor": lambda call, shape: np.asarray(shape, np.int64),
    "relax.concat": lambda call, fields: np.concatenate(fields, axis=int(call.attrs.axis)),
    **{f"relax.{name}": _elementary(name) for name in ("exp", "erf", "tanh", "sigmoid")},
    "relax.nn.softmax": _softmax,
    "relax.nn.log_softmax": _log_softmax,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.group_norm": _group_norm,
    "relax.nn.instance_norm": _group_norm,
    "relax.nn.relu": lambda call, x: _extreme(extremes.maximum, np.maximum)(call, x, np.zeros((), x.dtype)),
    **{f"relax.nn.{name}": _elementary(name) for name in ("silu", "gelu", "gelu_tanh")},
}
