"""How operators carry on sizes that are known only at run time: a rule for each, which may change the call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from tvm import relax

from .. import op as qnn
from ..op.arguments import data_of
from ..op.base import call_attributes, constant, shape_of
from ..op.cost import attribute
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..passes.rewrite import op_name
from .sizes import Axes, Size, Sizes, leaves, refusal

Rule = Callable[[Sizes, relax.Call], "tuple[relax.Expr, Axes]"]
_RULES: dict[str, Rule] = {}


def carried(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """What to emit for a call that reads values with such sizes, and the sizes of its result, or of all fields of a
    tuple. Raises UnsupportedOperatorError if the call cannot be computed."""
    rule = _RULES.get(op_name(call))
    if rule is None and traits_of(call).kind is Kind.POINTWISE:
        rule = _pointwise
    if rule is None:
        raise sizes.refused(call)
    return rule(sizes, call)


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _is_tensor(expr: Any) -> bool:
    return isinstance(getattr(expr, "ty", None), relax.TensorType)


def _along(axes: Axes, axis: int) -> Axes:
    return {axis: axes[axis]} if axis in axes else {}


def _only_data(sizes: Sizes, call: relax.Call) -> relax.Expr:
    """The first argument, which must be the only one with such a size."""
    data, *others = call.args
    if any(sizes.of(leaf) for other in others for leaf in leaves(other)):
        raise sizes.refused(call)
    return data


# ---- every element for itself ------------------------------------------------------------------------------------


def _pointwise(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Data tensors broadcast; parameters must not run along an axis with such a size."""
    traits = traits_of(call)
    data = [traits.argument(call, one.name) for one in traits.data]
    shape = sizes.result_shape(call)
    axes = _broadcast_axes(sizes, call, data, shape)
    others = [arg for arg in call.args if _is_tensor(arg) and not any(arg.same_as(one) for one in data)]
    if any(prod(shape_of(arg)) != 1 and attribute(call, "axis") is None for arg in others):
        raise sizes.refused(call)
    if any(prod(shape_of(arg)) != 1 and int(attribute(call, "axis")) % len(shape) in axes for arg in others):
        raise sizes.refused(call)
    if any(sizes.of(arg) for arg in others):
        raise sizes.refused(call)
    return call, axes


def _broadcast_axes(sizes: Sizes, call: relax.Call, tensors: Sequence[Any], shape: Any = None) -> Axes:
    """The sizes of tensors that broadcast: along an axis with such a size, all others have it too, or the length 1."""
    shape = sizes.result_shape(call) if shape is None else shape
    found: Axes = {}
    for tensor in tensors:
        for axis, size in sizes.of(tensor).items():
            found.setdefault(axis + len(shape) - len(shape_of(tensor)), size)
    for tensor in tensors:
        own, lengths = sizes.of(tensor), shape_of(tensor)
        behind = len(shape) - len(lengths)
        for axis, size in found.items():
            if axis < behind:
                continue
            mine = own.get(axis - behind)
            if mine is None and lengths[axis - behind] != 1:
                raise refusal(size, f"{op_name(call)} with a tensor of {lengths[axis - behind]} elements along it")
            if mine is not None and (not mine.same(size) or shape[axis] != lengths[axis - behind]):
                raise refusal(
                    size, f"{op_name(call)} with a tensor whose size comes from {mine.origin} and may be another one"
                )
    return found


@_rule("isfinite")
def _is_finite(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    return call, sizes.of(call.args[0])


@_rule("zeros_like", "ones_like")
def _alike(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    return call, sizes.of(call.args[0])


@_rule("qnn.loop")
def _loop(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """What its rounds read from outside may have such sizes: `loops.loop` refuses states and results that do."""
    return call, {}


@_rule("qnn.table")
def _table(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    return call, sizes.of(_only_data(sizes, call))


@_rule("qnn.check_bounds", "qnn.check_divisor")
def _check(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """What does not count passes the check."""
    data, attributes = call.args[0], call_attributes(call)
    if op_name(call) == "qnn.check_divisor":
        passing = attributes["zero"] + 1
    elif max(attributes["low"]) > min(attributes["high"]):
        return call, sizes.of(data)  # nothing passes
    else:
        passing = max(max(attributes["low"]), min(0, min(attributes["high"])))
    filled = sizes.filled(data, passing)
    return relax.Call(call.op, [filled], call.attrs, call.ty_args), sizes.of(data)


# ---- moves -------------------------------------------------------------------------------------------------------


@_rule("permute_dims")
def _permute(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data, ndim = call.args[0], len(shape_of(call.args[0]))
    order = list(range(ndim))[::-1] if call.attrs.axes is None else [int(axis) % ndim for axis in call.attrs.axes]
    return call, {order.index(axis): size for axis, size in sizes.of(data).items()}


@_rule("expand_dims")
def _expand(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data, added = call.args[0], [int(axis) for axis in call.attrs.axis]
    ndim = len(shape_of(data)) + len(added)
    kept = [axis for axis in range(ndim) if axis not in {one % ndim for one in added}]
    return call, {kept[axis]: size for axis, size in sizes.of(data).items()}


@_rule("triu", "tril")
def _triangle(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A number of matrices."""
    data = _only_data(sizes, call)
    if any(axis >= len(shape_of(data)) - 2 for axis in sizes.of(data)):
        raise sizes.refused(call)
    return call, sizes.of(data)


@_rule("squeeze")
def _squeeze(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Of named axes: which others have the length 1 may change from call to call."""
    data, ndim = call.args[0], len(shape_of(call.args[0]))
    axes = sizes.of(data)
    if call.attrs.axis is None:
        raise sizes.refused(call, "a squeeze without axes")
    dropped = [int(axis) % ndim for axis in call.attrs.axis]
    if any(axis in dropped for axis in axes):
        raise sizes.refused(call)
    return call, {axis - sum(one < axis for one in dropped): size for axis, size in axes.items()}


@_rule("reshape", "flatten", "nn.batch_flatten")
def _reshape(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data, after = call.args[0], sizes.result_shape(call)
    before = shape_of(data)
    return call, dict(reshaped(sizes, axis, size, before, after) for axis, size in sizes.of(data).items())


def reshaped(
    sizes: Sizes, axis: int, size: Size, before: Sequence[int], after: Sequence[int], hint: int | None = None
) -> tuple[int, Size]:
    """The axis with a size after a reshape, and its size then: elements keep their order, so it is an axis with as many
    elements before it. hint: that axis, where several have."""
    places = [
        index
        for index in range(len(after))
        if prod(after[:index]) == prod(before[:axis]) and (after[index] != 1 or before[axis] == 1)
    ]
    if hint in places:
        places = [hint]  # type: ignore[list-item]
    elif len(places) > 1 and before[axis] == 1:
        places = [index for index in places if index == axis and len(before) == len(after)]
    what = f"a reshape from {_shown(before, axis)} to {tuple(after)}"
    if len(places) != 1:
        raise refusal(size, what)
    (place,) = places
    behind, now_behind = prod(before[axis + 1 :]), prod(after[place + 1 :])
    if behind == now_behind:
        return place, size
    if now_behind and behind % now_behind == 0:
        return place, sizes.times(size, behind // now_behind)
    if behind and now_behind % behind == 0:
        return place, sizes.divided(size, now_behind // behind, what)
    raise refusal(size, what)


def _shown(shape: Sequence[int], axis: int) -> str:
    return f"({', '.join(f'≤{length}' if index == axis else str(length) for index, length in enumerate(shape))})"


@_rule("broadcast_to")
def _broadcast(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    return call, _broadcast_axes(sizes, call, [call.args[0]])


@_rule("strided_slice")
def _slice(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Of other axes. Bounds along an axis with such a size count from an end that is not known here."""
    data, axes, *_ = call.args
    ndim = len(shape_of(data))
    touched = {int(getattr(axis, "value", axis)) % ndim for axis in axes.fields}
    if touched & set(sizes.of(data)):
        raise sizes.refused(call, "this slice of it")
    return call, sizes.of(data)


@_rule("take")
def _take(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Rows by indices; rows of data with such a size could be counted from an end that is not known here."""
    data, indices = call.args
    axes, rank = sizes.of(data), len(shape_of(indices))
    axis = None if call.attrs.axis is None else int(call.attrs.axis) % len(shape_of(data))
    if (axis is None and axes) or axis in axes:
        raise sizes.refused(call)
    axis = 0 if axis is None else axis
    found = {one + (rank - 1 if one > axis else 0): size for one, size in axes.items()}
    return call, found | {axis + one: size for one, size in sizes.of(indices).items()}


@_rule("gather_elements")
def _gather_elements(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """data[…, indices[…], …]: the result has the indices' shape; other axes of the data are at least as long."""
    data, indices = call.args
    if int(call.attrs.axis) % len(shape_of(data)) in sizes.of(data):
        raise sizes.refused(call)
    axes = sizes.of(indices)
    if any(axis not in axes or not axes[axis].same(size) for axis, size in sizes.of(data).items()):
        raise sizes.refused(call)
    return call, axes


@_rule("gather_nd")
def _gather_nd(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Indices of elements or rows, with such a size of their own."""
    data, indices = call.args
    last, batch = len(shape_of(indices)) - 1, int(call.attrs.batch_dims)
    if sizes.of(data) or any(axis == last or axis < batch for axis in sizes.of(indices)):
        raise sizes.refused(call)
    return call, sizes.of(indices)


@_rule("scatter_nd", "scatter_elements")
def _scatter(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Data with such a size could be counted from an end that is not known here."""
    if sizes.of(call.args[0]):
        raise sizes.refused(call)
    return scattered(sizes, call), {}


def scattered(sizes: Sizes, call: relax.Call) -> relax.Expr:
    """A scatter whose indices count from the start and have such sizes: what does not count is written into a row
    behind the data, which is cut off. Data may have one only along the axis of a scatter_elements."""
    data, indices, updates = call.args
    shape, name = shape_of(data), op_name(call)
    axes = sizes.of(indices)
    last = len(shape_of(indices)) - 1
    shared = axes if name == "scatter_nd" else {**axes, **sizes.of(updates)}
    alike = all(axis in shared and shared[axis].same(size) for axis, size in sizes.of(updates).items())
    if not alike or (name == "scatter_nd" and last in axes):
        raise sizes.refused(call)
    axis = 0 if name == "scatter_nd" else int(call.attrs.axis) % len(shape)
    if set(sizes.of(data)) - {axis}:
        raise sizes.refused(call)
    pads = [0] * (2 * len(shape))
    pads[2 * axis + 1] = 1
    wider = sizes.emit(relax.op.nn.pad(data, pads))
    row = [shape[axis], *(0,) * (shape_of(indices)[-1] - 1)] if name == "scatter_nd" else shape[axis]
    behind = np.array(row, str(indices.ty.dtype))
    places = indices
    for one, size in axes.items():
        length = shape_of(indices)[one]
        wide = tuple(length if index == one else 1 for index in range(last + 1))
        valid = sizes.emit(relax.op.reshape(sizes.valid(size, length), wide))
        places = sizes.emit(relax.op.where(valid, places, constant(behind)))
    written = sizes.emit(relax.Call(call.op, [wider, places, updates], call.attrs, call.ty_args))
    return relax.op.strided_slice(written, [axis], [0], [shape[axis]])


@_rule("vision.roi_align")
def _regions(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A crop for each region."""
    data, regions = call.args
    if sizes.of(data) or set(sizes.of(regions)) != {0}:
        raise sizes.refused(call)
    return call, sizes.of(regions)


@_rule("nn.pad")
def _pad(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A constant before the first element and after the last one that counts."""
    data, widths = _only_data(sizes, call), [int(width) for width in call.attrs.pad_width]
    axes = sizes.of(data)
    padded = {axis: widths[2 * axis] + widths[2 * axis + 1] for axis in axes}
    if not any(padded.values()):
        return call, axes
    if call.attrs.pad_mode != "constant":
        raise sizes.refused(call)
    value = float(call.attrs.pad_value)
    filled = sizes.filled(data, value, {axis: axes[axis] for axis in axes if widths[2 * axis + 1]})
    longer = {axis: sizes.plus(size, padded[axis]) for axis, size in axes.items()}
    return relax.Call(call.op, [filled, *call.args[1:]], call.attrs, call.ty_args), longer


@_rule("tile")
def _tile(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data, repeats = call.args[0], [int(count) for count in call.attrs.repeats]
    behind = len(repeats) - len(shape_of(data))
    axes = {axis + max(behind, 0): size for axis, size in sizes.of(data).items()}
    if any(axis >= max(-behind, 0) and repeats[axis - max(-behind, 0)] != 1 for axis in axes):
        raise sizes.refused(call)
    return call, axes


@_rule("split", "flip", "repeat")
def _along_other_axes(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data = _only_data(sizes, call)
    axis = call.attrs.axis
    if axis is None or int(axis) % len(shape_of(data)) in sizes.of(data):
        raise sizes.refused(call)
    return call, sizes.of(data)


@_rule("stack")
def _stack(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    fields = list(data_of(call).fields)
    shape = shape_of(fields[0])
    axes = _broadcast_axes(sizes, call, fields, shape)
    new = int(call.attrs.axis) % (len(shape) + 1)
    return call, {axis + (axis >= new): size for axis, size in axes.items()}


@_rule("concat")
def _concat(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Along another axis; along this one, what does not count is left out between the tensors."""
    fields = list(data_of(call).fields)
    ndim = len(shape_of(fields[0]))
    joined = int(call.attrs.axis) % ndim
    fields = _as_long_as_others(sizes, fields, joined)
    fields = [field for field in fields if shape_of(field)[joined]] or fields[:1]
    if len(fields) == 1:
        return fields[0], sizes.of(fields[0])
    call = relax.Call(call.op, [relax.Tuple(fields)], call.attrs, call.ty_args)
    rest = _common(sizes, call, fields, joined)
    lengths = [shape_of(field)[joined] for field in fields]
    counted = [sizes.of(field).get(joined) for field in fields]
    if not any(counted):
        return call, rest
    found: Any = reduce(
        sizes.plus, [length if size is None else size for length, size in zip(lengths, counted, strict=True)]
    )
    if not any(counted[:-1]):
        return call, {**rest, joined: found}
    masks = [
        constant(np.ones(length, np.bool_)) if size is None else sizes.valid(size, length)
        for length, size in zip(lengths, counted, strict=True)
    ]
    positions = sizes.emit(qnn.true_positions(sizes.emit(relax.op.concat(masks, 0))))
    whole = sizes.emit(call)
    return relax.op.take(whole, positions, joined, mode="clip"), {**rest, joined: found}


def _as_long_as_others(sizes: Sizes, fields: Sequence[Any], joined: int) -> list[Any]:
    """Tensors with the lengths that others have along other axes than the one along which they are joined. The engine
    raises InputError where a size is another one."""
    result = list(fields)
    for axis in range(len(shape_of(fields[0]))):
        known = {shape_of(field)[axis] for field in fields if axis not in sizes.of(field)}
        if axis == joined or len(known) != 1:
            continue
        (length,) = known
        for index, field in enumerate(result):
            size = sizes.of(field).get(axis)
            if size is not None and size.most >= length:
                result[index] = _of_length(sizes, field, axis, size, length)
    return result


def _of_length(sizes: Sizes, data: Any, axis: int, size: Size, length: int) -> relax.Expr:
    """Data whose size is checked to be a length."""
    more = sizes.emit(relax.op.subtract(size.value, constant(np.int64(length))))
    label = f"the size that comes from {size.origin}, less the length {length} of what it is joined with"
    checked = sizes.emit(qnn.check_bounds(more, 0, 0, label))
    places = sizes.emit(relax.op.add(constant(np.arange(length, dtype=np.int64)), checked))
    others = {one: found for one, found in sizes.of(data).items() if one != axis}
    return sizes.emit(relax.op.take(data, places, axis, mode="clip"), others)


def _common(sizes: Sizes, call: relax.Call, fields: Sequence[Any], joined: int) -> Axes:
    """The sizes along all axes but one, which all tensors must have."""
    first = {axis: size for axis, size in sizes.of(fields[0]).items() if axis != joined}
    for field in fields[1:]:
        other = {axis: size for axis, size in sizes.of(field).items() if axis != joined}
        if other.keys() != first.keys() or any(not other[axis].same(size) for axis, size in first.items()):
            raise sizes.refused(call)
    return first


# ---- across the axis ---------------------------------------------------------------------------------------------


def extreme(dtype: str, highest: bool) -> Any:
    """The highest or lowest value of a dtype."""
    if dtype.startswith(("float", "bfloat")):
        return np.inf if highest else -np.inf
    if dtype == "bool":
        return highest
    limits = np.iinfo(dtype)
    return limits.max if highest else limits.min


_NEUTRAL: dict[str, Callable[[str], Any]] = {
    "sum": lambda dtype: 0,
    "mean": lambda dtype: 0,
    "prod": lambda dtype: 1,
    "max": lambda dtype: extreme(dtype, False),
    "min": lambda dtype: extreme(dtype, True),
    "argmax": lambda dtype: extreme(dtype, False),
    "argmin": lambda dtype: extreme(dtype, True),
}


@_rule(*_NEUTRAL)
def _reduce(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """What does not count is replaced by a value that changes nothing."""
    name, data = op_name(call), call.args[0]
    axes, ndim = sizes.of(data), len(shape_of(data))
    given = call.attrs.axis
    chosen = [given] if isinstance(given, int) else given
    reduced = list(range(ndim)) if chosen is None else [int(axis) % ndim for axis in chosen]
    keep = bool(call.attrs.keepdims)
    rest = {
        axis if keep else axis - sum(one < axis for one in reduced): size
        for axis, size in axes.items()
        if axis not in reduced
    }
    across = [size for axis, size in axes.items() if axis in reduced]
    if not across:
        return call, rest
    dtype = str(data.ty.dtype)
    filled = sizes.filled(data, _NEUTRAL[name](dtype), {axis: size for axis, size in axes.items() if axis in reduced})
    if name != "mean":
        return relax.Call(call.op, [filled], call.attrs, call.ty_args), rest
    total = sizes.emit(relax.op.sum(filled, reduced, keep))
    count: Any = constant(np.int64(prod(shape_of(data)[axis] for axis in reduced if axis not in axes)))
    for size in across:
        count = sizes.emit(relax.op.multiply(count, size.value))
    return relax.op.divide(total, sizes.emit(relax.op.astype(count, dtype))), rest


@_rule("qnn.softmax", "qnn.sum", "qnn.mean", "qnn.max", "qnn.min")
def _quantized_reduction(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Along other axes: the values that do not count are no zero points."""
    data, attributes = _only_data(sizes, call), call_attributes(call)
    axes, ndim, given = sizes.of(data), len(shape_of(data)), attributes["axis"]
    chosen = [given] if isinstance(given, int) else list(given or range(ndim))
    reduced = [int(axis) % ndim for axis in chosen]
    if any(axis in axes for axis in reduced):
        raise sizes.refused(call)
    gone = [] if attributes.get("keepdims", True) else reduced
    return call, {axis - sum(one < axis for one in gone): size for axis, size in axes.items()}


@_rule("topk")
def _top_k(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """The first k; `data_dependent.top_k` says how many of them count."""
    return _ordered(sizes, call, not bool(call.attrs.largest), whole=False)


@_rule("sort", "argsort")
def _sort(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    return _ordered(sizes, call, not bool(call.attrs.descending), whole=True)


def _ordered(sizes: Sizes, call: relax.Call, highest_last: bool, whole: bool) -> tuple[relax.Expr, Axes]:
    """What does not count comes last: equal values keep their order."""
    data = call.args[0]
    axes, axis = sizes.of(data), int(call.attrs.axis) % len(shape_of(data))
    filled = sizes.filled(data, extreme(str(data.ty.dtype), highest_last), _along(axes, axis))
    if axis in axes and not whole:
        axes = {one: size for one, size in axes.items() if one != axis}
    return relax.Call(call.op, [filled], call.attrs, call.ty_args), axes


@_rule("cumsum")
def _running_sum(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Sums of elements before them, all of which count."""
    data = call.args[0]
    if call.attrs.axis is None and len(shape_of(data)) > 1:
        raise sizes.refused(call)
    return call, sizes.of(data)


@_rule("nn.softmax", "nn.log_softmax")
def _softmax(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data = call.args[0]
    axis = int(call.attrs.axis) % len(shape_of(data))
    filled = sizes.filled(data, -np.inf, _along(sizes.of(data), axis))
    return relax.Call(call.op, [filled], call.attrs, call.ty_args), sizes.of(data)


@_rule("nn.layer_norm", "nn.rms_norm")
def _norm(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data = _only_data(sizes, call)
    if any(int(axis) % len(shape_of(data)) in sizes.of(data) for axis in call.attrs.axes):
        raise sizes.refused(call)
    return call, sizes.of(data)


@_rule("qnn.true_positions")
def _where_true(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Positions up to a size of their own, which whoever emits this sets."""
    return relax.Call(call.op, [sizes.filled(call.args[0], False)], call.attrs, call.ty_args), {}


@_rule("qnn.non_max_suppression")
def _suppress(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """NaN is no score: no threshold is below it."""
    boxes, scores, overlap = call.args
    if 0 in sizes.of(scores) or 1 in sizes.of(boxes):
        raise sizes.refused(call)
    if sizes.of(boxes) and not (sizes.of(scores) and sizes.of(scores)[1].same(sizes.of(boxes)[0])):
        raise sizes.refused(call)
    return relax.Call(call.op, [boxes, sizes.filled(scores, np.nan), overlap], call.attrs, call.ty_args), {}


# ---- products ----------------------------------------------------------------------------------------------------


@_rule("matmul")
def _matmul(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """Rows of the left side, columns of the right one, or stacks of matrices; what does not count of those that are
    added up is 0 on both sides."""
    left, right = call.args
    shapes = shape_of(left), shape_of(right)
    summed = len(shapes[0]) - 1, max(len(shapes[1]) - 2, 0)
    counted = [_along(sizes.of(side), axis) for side, axis in zip((left, right), summed, strict=True)]
    if any(counted):
        one, two = (next(iter(axes.values()), None) for axes in counted)
        if one is None or two is None or not one.same(two):
            raise sizes.refused(call)
        zeros = [sizes.filled(side, 0, axes) for side, axes in zip((left, right), counted, strict=True)]
        call = relax.Call(call.op, zeros, call.attrs, call.ty_args)
    result = sizes.result_shape(call)
    kept = (len(shapes[0]) > 1) + (len(shapes[1]) > 1)  # how many of the last two axes the result has
    found: Axes = {}
    for side, (tensor, shape) in enumerate(zip((left, right), shapes, strict=True)):
        for axis, size in sizes.of(tensor).items():
            if axis == summed[side]:
                continue
            behind = len(shape) - axis
            if behind <= 2:
                place = len(result) - (1 if side or len(shapes[1]) == 1 else 2)
            else:
                place = len(result) - kept - (behind - 2)
                if shape[axis] != result[place]:
                    raise sizes.refused(call)
                other = (right, left)[side]
                far = len(shape_of(other)) - behind
                mine = sizes.of(other).get(far)
                if far >= 0 and shape_of(other)[far] != 1 and not (mine is not None and mine.same(size)):
                    raise sizes.refused(call)
            found[place] = size
    return call, found


@_rule("qnn.dense")
def _dense(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    data = _only_data(sizes, call)
    if len(shape_of(data)) - 1 in sizes.of(data):
        raise sizes.refused(call)
    return call, sizes.of(data)


@_rule(*(f"nn.conv{rank}d" for rank in (1, 2, 3)), "qnn.conv2d")
def _convolution(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A number of samples, and windows over as many elements as count, with zeros (zero points) behind them."""

    def length(size: Size, pads: int, step: int, reach: int, extra: int) -> Any:
        more = pads - reach - 1 + step
        room = sizes.plus(size, more)
        result = sizes.quotient(room, step) if step > 1 else room
        return sizes.greatest(result, 0) if more < 0 else result

    return _windows(sizes, call, length)


@_rule(*(f"nn.conv{rank}d_transpose" for rank in (1, 2, 3)))
def _transposed_convolution(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A number of samples, and as many elements as count, with zeros behind them."""

    def length(size: Size, pads: int, step: int, reach: int, extra: int) -> Any:
        more = reach + 1 + extra - step - pads
        result = sizes.plus(sizes.times(size, step), more)
        return sizes.greatest(result, 0) if more < 0 else result

    return _windows(sizes, call, length)


def _windows(sizes: Sizes, call: relax.Call, length: Callable[..., Any]) -> tuple[relax.Expr, Axes]:
    """length: (size, padding on both sides, stride, distance of a window's ends, output_padding) -> the result's"""
    data, attributes = _only_data(sizes, call), call.attrs
    axes, rank, integers = sizes.of(data), len(shape_of(data)) - 2, op_name(call) == "qnn.conv2d"
    if set(axes) == {0}:
        return call, axes
    layout = str(attributes.data_layout), str(attributes.kernel_layout)
    if 1 in axes or not layout[0].startswith("NC") or not layout[1].startswith(("OI", "IO")):
        raise sizes.refused(call)
    pads, strides, dilation = ([int(one) for one in attributes[name]] for name in ("padding", "strides", "dilation"))
    extra = [int(one) for one in attributes["output_padding"]] if "transpose" in op_name(call) else [0] * rank
    pads = pads * 2 if len(pads) == rank else pads
    found, kernel = _along(axes, 0), shape_of(call.args[1])[2:]
    along = {axis: size for axis, size in axes.items() if axis >= 2}
    for axis, size in along.items():
        at = axis - 2
        reach = dilation[at] * (kernel[at] - 1)
        found[axis] = length(size, pads[at] + pads[rank + at], strides[at], reach, extra[at])
    padding = sizes.emit(relax.op.astype(call.args[2], str(data.ty.dtype))) if integers else 0
    filled = sizes.filled(data, padding, along)
    return relax.Call(call.op, [filled, *call.args[1:]], call.attrs, call.ty_args), found


@_rule(
    *(f"nn.{name}{rank}d" for name in ("max_pool", "avg_pool", "adaptive_avg_pool") for rank in (1, 2, 3)),
    *("nn.group_norm", "nn.instance_norm", "image.resize2d", "qnn.conv2d_transpose", "qnn.avg_pool2d"),
    *("qnn.qlinear_avg_pool", "qnn.group_norm", "qnn.instance_norm", "qnn.resize"),
)
def _samples(sizes: Sizes, call: relax.Call) -> tuple[relax.Expr, Axes]:
    """A number of samples, the first axis."""
    data = _only_data(sizes, call)
    if set(sizes.of(data)) != {0}:
        raise sizes.refused(call)
    return call, sizes.of(data)
