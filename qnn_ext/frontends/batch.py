"""Whether a model treats the samples of a batch one by one, so that its program for one sample serves any batch.

The model is imported twice, for one sample and for two. Both modules must have the same operators with the same
attributes. Where a value's shape has doubled is its batch: inside the model this may be any axis, alone or merged with
others by a reshape, as recurrent layers go through (steps, batch, features) and multiply (steps · batch, features).
Operator by operator, the rules below say whether sample i of the result depends on sample i of the arguments alone, and
where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tvm_ffi
from tvm import relax, tirx

from ..errors import QnnError, UnsupportedOperatorError
from ..module import QnnModule
from ..op.arguments import data_of, factors_of
from ..op.base import call_attributes, constant_value, definition_of, shape_of
from ..op.loop import Loop, results_of
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..passes.rewrite import bindings_of

# Every element of the result depends on the elements at its own position, after broadcasting; so it does of operators
# whose traits say that they are pointwise
_ELEMENTWISE = {"relax.isfinite", "relax.qnn.check_bounds", "relax.qnn.check_divisor"}
# The first dimension of the data is the batch by the operator's definition, for data in an N… layout
_BATCHED = {
    "relax.nn.conv1d", "relax.nn.conv2d", "relax.nn.conv3d", "relax.nn.conv1d_transpose", "relax.nn.conv2d_transpose",
    "relax.nn.conv3d_transpose", "relax.nn.max_pool1d", "relax.nn.max_pool2d", "relax.nn.max_pool3d",
    "relax.nn.avg_pool1d", "relax.nn.avg_pool2d", "relax.nn.avg_pool3d", "relax.nn.adaptive_avg_pool1d",
    "relax.nn.adaptive_avg_pool2d", "relax.nn.adaptive_avg_pool3d", "relax.image.resize2d", "relax.image.resize3d",
    "relax.nn.pixel_shuffle", "relax.qnn.conv2d", "relax.qnn.conv2d_transpose", "relax.qnn.dense",
    "relax.qnn.avg_pool2d", "relax.qnn.max_pool2d", "relax.qnn.resize", "relax.qnn.qlinear_avg_pool",
    "relax.qnn.group_norm", "relax.qnn.instance_norm", "relax.qnn.pool_sum", "relax.qnn.resize_bilinear",
}  # fmt: skip


_WEIGHT_PARTS = 3  # the last operands of a product by a weight in blocks: integers, scales, zero points


class Place(NamedTuple):
    """Where the samples are in a tensor: for one sample, its index would stand before the last `inner` of an axis's
    elements. An axis that is nothing but the batch has the length 1, and inner is 1."""

    axis: int
    inner: int = 1


Places: TypeAlias = "Place | list[Any] | None"
"""Of a tensor, None if it is the same for any number of samples, or of the fields of a tuple."""


def with_open_batch(import_for: Callable[[int], QnnModule], remedy: str) -> QnnModule:
    """The model for one sample, to be called with batches of any size.

    import_for: imports it for a number of samples, a dimension of every input that takes more than one
    remedy:     how a user fixes that number

    Raises OpenBatchError, naming the operator, unless every sample is computed independently.
    """
    single = import_for(1)
    try:
        try:
            double = import_for(2)
        except QnnError as error:
            raise _Mixed(f"it only works for one sample: {error}") from None
        one, two = single.ir["main"], double.ir["main"]
        params = [_doubled(param.name, param, other) for param, other in zip(one.params, two.params, strict=True)]
        results = _Comparison(one, two, params).results()
        for spec, place in zip(single.outputs, results, strict=True):
            if place is not None and (place.inner, spec.shape[place.axis]) != (1, 1):
                raise _Mixed(f"the samples of '{spec.name}' are not a dimension by themselves")
    except _Mixed as error:
        refusal = OpenBatchError(f"the model leaves its batch size open, but {error}; fix the batch size: {remedy}")
        refusal.reason = str(error)
        raise refusal from None
    inputs, outputs = (
        tuple(
            spec if place is None else replace(spec, dynamic_batch=True, batch_axis=place.axis) for spec, place in pairs
        )
        for pairs in (zip(single.inputs, params, strict=True), zip(single.outputs, results, strict=True))
    )
    return replace(single, inputs=inputs, outputs=outputs)


class OpenBatchError(UnsupportedOperatorError):
    """A model whose batch size is open mixes samples.

    reason: what mixes them
    """

    reason = ""


class _Mixed(Exception):
    """Samples depend on each other, or cannot be shown not to."""


class _Comparison:
    """Walks the bindings of a function for one sample and of that for two in step.

    params: where the samples are in its parameters
    """

    def __init__(self, one: relax.Function, two: relax.Function, params: Sequence[Place | None]) -> None:
        self._one, self._two = one, two
        self._places: dict[Any, Places] = dict(zip(one.params, params, strict=True))

    def results(self) -> list[Place | None]:
        """Where the samples are in the function's results. Raises _Mixed if they depend on each other."""
        ones, twos = bindings_of(self._one), bindings_of(self._two)
        if len(ones) != len(twos):
            raise _Mixed("it consists of other operators for two samples than for one")
        for first, second in zip(ones, twos, strict=True):
            name = first.var.name
            places = self._bound(name, first.value, second.value)
            self._places[first.var] = places
            if not isinstance(places, list) and places != _doubled(name, first.var, second.var, places):
                raise _Mixed(f"'{name}' does not keep the samples apart")
        pairs = zip(results_of(self._one), results_of(self._two), strict=True)
        return [self._place("result", *pair) for pair in pairs]

    def _bound(self, name: str, first: Any, second: Any) -> Places:
        """Where the samples are in a bound value. Raises _Mixed unless both values do the same, sample by sample."""
        if type(first) is not type(second):
            raise _Mixed(f"'{name}' is a different operator for two samples than for one")
        if not isinstance(first, relax.Call):
            return self._place(name, first, second)
        same = first.op == second.op and len(first.args) == len(second.args)
        places = [self._place(name, *pair) for pair in zip(first.args, second.args, strict=False)]
        operator = first.op.name
        if same and operator == "relax.qnn.loop":
            return self._loop(name, first, second, places)
        if not same or not tvm_ffi.structural_equal(first.attrs, second.attrs):
            raise _Mixed(f"'{name}' is a different operator for two samples than for one")
        fields = getattr(first.ty, "fields", None)
        if not _any_place(places):
            created = operator == "relax.broadcast_to"  # a value for each sample, which is the same for all of them
            return _doubled(name, first, second) if created else None if fields is None else [None] * len(fields)
        rule = _rule_of(first)
        found = None if rule is None else rule(_Step(name, first, second, places))
        if found is None:
            raise _Mixed(f"'{name}' ({operator.removeprefix('relax.')}) may mix the samples")
        return found if fields is None else [found] * len(fields)

    def _loop(self, name: str, first: Any, second: Any, places: list[Any]) -> Places:
        """A loop, whose body is a function of its own. The samples of its states stay where they are, and those of its
        sequences are not along the axis of the rounds."""
        loop, other = Loop.of(first), Loop.of(second)
        assert loop is not None and other is not None
        options = [(len(one.states), one.trips, one.backwards_in, one.backwards_out) for one in (loop, other)]
        if options[0] != options[1]:
            raise _Mixed(f"'{name}' is a different loop for two samples than for one")
        conditional = loop.condition is not None
        if conditional and places.pop(0) is not None:
            raise _Mixed(f"'{name}' (qnn.loop) ends for all samples together")
        whole = len(places) - len(loop.sequences)
        if any(place is not None and place.axis == 0 for place in places[whole:]):
            raise _Mixed(f"'{name}' (qnn.loop) goes through the samples one after the other")
        slices = [None if place is None else Place(place.axis - 1, place.inner) for place in places[whole:]]
        found = _Comparison(loop.body, other.body, [*places[:whole], *slices]).results()
        if conditional and found.pop(0) is not None:
            raise _Mixed(f"'{name}' (qnn.loop) ends for all samples together")
        before, states = places[len(loop.captured) : whole], found[: len(loop.states)]
        if before != states:
            raise _Mixed(f"a state of '{name}' (qnn.loop) has its samples elsewhere after a round")
        return [
            *states,
            *(None if place is None else Place(place.axis + 1, place.inner) for place in found[len(states) :]),
        ]

    def _place(self, name: str, first: Any, second: Any) -> Any:
        """Where the samples are in an argument. Constants are the same for both, or made of one part per sample, all
        equal."""
        if isinstance(first, relax.Tuple):
            return [self._place(name, *pair) for pair in zip(first.fields, second.fields, strict=True)]
        if isinstance(first, relax.TupleGetItem):
            return self._places[first.tuple_value][first.index]  # type: ignore[index]
        if isinstance(first, relax.Var):
            return self._places[first]
        array, other = constant_value(first), constant_value(second)
        if array is not None:
            return _place_in_constants(name, array, other)
        if not isinstance(first, relax.ShapeExpr) and not tvm_ffi.structural_equal(first, second):
            raise _Mixed(f"'{name}' is a different operator for two samples than for one")
        return None


def _any_place(places: Any) -> bool:
    return any(map(_any_place, places)) if isinstance(places, list) else places is not None


def _place_in_constants(name: str, first: np.ndarray, second: np.ndarray | None) -> Place | None:
    """Where constants have a part for each sample."""
    grown = [] if second is None or second.ndim != first.ndim else np.not_equal(first.shape, second.shape).nonzero()[0]
    repeated = first.repeat(2, int(grown[0])) if len(grown) == 1 and first.shape[grown[0]] == 1 else first
    same = second is not None and (repeated.dtype, repeated.shape) == (second.dtype, second.shape)
    if not same or second is None or repeated.tobytes() != second.tobytes():
        raise _Mixed(f"a constant of '{name}' depends on the batch size")
    return Place(int(grown[0])) if len(grown) else None


def _doubled(name: str, first: Any, second: Any, expected: Place | None = None) -> Place | None:
    """The axis that is twice as long for two samples as for one, None if there is none; inner is as expected."""
    shape, double = shape_of(first), shape_of(second)
    grown = [axis for axis, (one, two) in enumerate(zip(shape, double, strict=False)) if one != two]
    if len(shape) != len(double) or len(grown) > 1 or any(double[axis] != 2 * shape[axis] for axis in grown):
        raise _Mixed(f"'{name}' has shape {shape} for one sample and {double} for two")
    return Place(grown[0], 1 if expected is None else expected.inner) if grown else None


# ---- rules: a call -> where the samples are in its result, or in each field of it; None where they may be mixed ----


@dataclass(frozen=True)
class _Step:
    """A call for one sample, the same for two, and where the samples are in its arguments."""

    name: str
    one: relax.Call
    two: relax.Call
    places: list[Any]

    def place_of(self, argument: Any) -> Place | None:
        """Where the samples are in an argument of `one`."""
        return next(place for arg, place in zip(self.one.args, self.places, strict=True) if arg.same_as(argument))

    def only(self) -> Place | None:
        """Where they are in the data; None if another argument has samples, too, or the data has none."""
        data = data_of(self.one)
        own = self.place_of(data)
        others = [place for arg, place in zip(self.one.args, self.places, strict=True) if not arg.same_as(data)]
        return None if _any_place(others) else own


Rule = Callable[[_Step], "Place | None"]


def _rank(expr: Any) -> int:
    return len(shape_of(expr))


def _batched(step: _Step) -> Place | None:
    """The data has the samples along its first axis, and every other argument is the same for all of them."""
    place = step.only()
    return place if place is not None and place.axis == 0 else None


def _elementwise(step: _Step) -> Place | None:
    """All arguments with samples have them at the same place, counted from the end, as broadcasting does."""
    rank = _rank(step.one)
    found = {
        Place(place.axis + rank - _rank(arg), place.inner)
        for arg, place in zip(step.one.args, step.places, strict=True)
        if place is not None
    }
    return found.pop() if len(found) == 1 else None


def _rows(step: _Step) -> Place | None:
    """The last axis is not the samples'."""
    place = step.only()
    return place if place is not None and place.axis != _rank(data_of(step.one)) - 1 else None


def _channels_apart(step: _Step) -> Place | None:
    """The second axis is not the samples'."""
    place = step.only()
    return place if place is not None and place.axis != 1 else None


def _other_axes(name: str) -> Rule:
    """The axes in the attribute are not the samples'; no axes at all mean all of them."""

    def rule(step: _Step) -> Place | None:
        place, data = _first(step), data_of(step.one)
        rank = _rank(data.fields[0] if isinstance(data, relax.Tuple) else data)
        ours = definition_of(step.one) is not None
        axes = call_attributes(step.one).get(name) if ours else getattr(step.one.attrs, name, None)
        if axes is None or place is None or (ours and axes == []):
            return None
        axes = [axes] if isinstance(axes, (int, tirx.IntImm)) else [*axes, *_channels(step.one)]
        if any(int(axis) % max(rank, 1) == place.axis for axis in axes):
            return None
        return _after(step, place)

    return rule


def _channels(norm: relax.Call) -> list[Any]:
    """The axis of a norm's channels, which it may take in groups."""
    return [norm.attrs.channel_axis] if hasattr(norm.attrs, "channel_axis") else []


def _first(step: _Step) -> Place | None:
    """The place in the data, of which there may be several tensors, all with their samples at the same place."""
    places = step.places[0]
    if not isinstance(places, list):
        return step.only()
    return places[0] if len(set(places)) == 1 else None


def _after(step: _Step, place: Place) -> Place | None:
    """A place in the result, or in the first of several, where other axes may have come and gone."""
    first, second = (
        relax.Var(step.name, call.ty.fields[0] if isinstance(call.ty, relax.TupleType) else call.ty)
        for call in (step.one, step.two)
    )
    return _doubled(step.name, first, second, place)


def _stack(step: _Step) -> Place | None:
    place, rank = _first(step), _rank(step.one)
    if place is None:
        return None
    return Place(place.axis + (int(step.one.attrs.axis) % rank <= place.axis), place.inner)


def _permute(step: _Step) -> Place | None:
    place, axes = step.only(), step.one.attrs.axes
    rank = _rank(step.one)
    order = [int(axis) % rank for axis in axes] if axes is not None else list(range(rank))[::-1]
    return None if place is None else Place(order.index(place.axis), place.inner)


def _reshape(step: _Step) -> Place | None:
    """Elements keep their order, so as many of them follow the samples' index as before."""
    place = step.only()
    moved = _doubled(step.name, step.one, step.two)
    if place is None or moved is None:
        return None
    behind = place.inner * prod(shape_of(data_of(step.one))[place.axis + 1 :])
    shape = shape_of(step.one)
    inner, rest = divmod(behind, max(prod(shape[moved.axis + 1 :]), 1))
    return None if rest or not inner or shape[moved.axis] % inner else Place(moved.axis, inner)


def _matmul(step: _Step) -> Place | None:
    """Samples are rows of the left side or columns of the right one, or matrices in stacks of them."""
    factors = factors_of(step.one)
    ranks = [_rank(factor) for factor in factors]
    places = [step.place_of(factor) for factor in factors]
    kept = (ranks[0] > 1) + (ranks[1] > 1)  # how many of the last two axes the result has
    found = set()
    for index, (place, rank) in enumerate(zip(places, ranks, strict=True)):
        if place is None:
            continue
        behind = rank - place.axis
        if behind > 2:
            found.add(Place(_rank(step.one) - (behind - 2) - kept, place.inner))
        elif behind == 2 - index and rank > 1 and places[1 - index] is None:
            found.add(Place(_rank(step.one) - behind + (2 - kept) * (1 - index), place.inner))
        else:
            return None
    return found.pop() if len(found) == 1 else None


def _batch_matmul(step: _Step) -> Place | None:
    """Samples are matrices in stacks of them, or rows of one side."""
    left, right, *others = step.places
    if any(place is not None for place in others):
        return None
    if left is not None and right is not None:
        return left if left == right and left.axis == 0 else None
    place, result = (left, (0, 1)) if right is None else (right, (0, 2))
    return None if place is None or place.axis > 1 else Place(result[place.axis], place.inner)


def _blockwise(step: _Step) -> Place | None:
    """Samples are rows of the data, and of the scales that their blocks may have."""
    first, *others = step.places[:-_WEIGHT_PARTS]
    weight = step.places[-_WEIGHT_PARTS:]
    known = first is not None and first.axis == 0 and all(place == first for place in others)
    return first if known and all(place is None for place in weight) else None


def _strided_slice(step: _Step) -> Place | None:
    data, axes, *_ = step.one.args
    place, fields = step.only(), axes.fields if isinstance(axes, relax.Tuple) else []
    values = [int(axis.value) if isinstance(axis, tirx.IntImm) else getattr(axis, "value", 0) for axis in fields]
    if place is None or not values or any(int(value) % _rank(data) == place.axis for value in values):
        return None
    return place


def _take(step: _Step) -> Place | None:
    """Indexing along another axis, or a table by the samples' indices."""
    data, indices = step.places
    axis = step.one.attrs.axis
    if (data is None) == (indices is None) or (axis is None and data is not None):
        return None
    chosen = 0 if axis is None else int(axis) % _rank(step.one.args[0])
    if data is None:
        return Place(indices.axis + chosen, indices.inner)
    if data.axis == chosen:
        return None
    return Place(data.axis + (_rank(step.one.args[1]) - 1 if data.axis > chosen else 0), data.inner)


def _along_axis(step: _Step) -> Place | None:
    """Elements by indices along another axis: all operands have the samples at one place."""
    place, axis = step.places[0], int(step.one.attrs.axis) % _rank(step.one)
    return place if place is not None and set(step.places) == {place} and place.axis != axis else None


def _sampled(step: _Step) -> Place | None:
    """Images and positions in them, of each sample its own."""
    place = step.places[0]
    return place if place is not None and set(step.places) == {place} and place.axis == 0 else None


def _tile(step: _Step) -> Place | None:
    place, repeats = step.only(), [int(count) for count in step.one.attrs.repeats]
    if place is None:
        return None
    behind = _rank(step.one.args[0]) - place.axis
    if len(repeats) >= behind and repeats[-behind] != 1:
        return None
    return Place(_rank(step.one) - behind, place.inner)


def _pad(step: _Step) -> Place | None:
    place, widths = step.only(), [int(width) for width in step.one.attrs.pad_width]
    return place if place is not None and widths[2 * place.axis : 2 * place.axis + 2] == [0, 0] else None


def _broadcast(step: _Step) -> Place | None:
    place = step.only()
    return None if place is None else Place(place.axis + _rank(step.one) - _rank(step.one.args[0]), place.inner)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(_BATCHED, _batched),
    **dict.fromkeys(
        ("relax.sum", "relax.mean", "relax.max", "relax.min", "relax.prod", "relax.argmax", "relax.argmin",
         "relax.variance", "relax.std", "relax.nn.softmax", "relax.nn.log_softmax", "relax.split", "relax.flip",
         "relax.cumsum", "relax.topk", "relax.sort", "relax.argsort", "relax.nn.prelu", "relax.qnn.softmax",
         "relax.repeat", "relax.concat", "relax.qnn.concatenate", "relax.qnn.sum", "relax.qnn.mean", "relax.qnn.max",
         "relax.qnn.min", "relax.qnn.log_softmax"),
        _other_axes("axis"),
    ),
    **dict.fromkeys(
        ("relax.nn.layer_norm", "relax.nn.rms_norm", "relax.nn.instance_norm", "relax.nn.group_norm"),
        _other_axes("axes"),
    ),
    **dict.fromkeys(
        ("relax.qnn.layer_norm", "relax.qnn.normalize", "relax.qnn.rms_norm", "relax.qnn.welford_norm"), _rows
    ),
    "relax.qnn.response_norm": _channels_apart,
    "relax.permute_dims": _permute,
    "relax.flatten": _reshape,
    "relax.nn.batch_flatten": _reshape,
    "relax.reshape": _reshape,
    "relax.squeeze": _reshape,
    "relax.expand_dims": _reshape,
    "relax.matmul": _matmul,
    "relax.qnn.batch_matmul": _batch_matmul,
    "relax.qnn.blockwise_dense": _blockwise,
    "relax.qnn.blockwise_dense_int8": _blockwise,
    "relax.strided_slice": _strided_slice,
    "relax.take": _take,
    "relax.gather_elements": _along_axis,
    "relax.scatter_elements": _along_axis,
    "relax.image.grid_sample": _sampled,
    "relax.tile": _tile,
    "relax.nn.pad": _pad,
    "relax.broadcast_to": _broadcast,
    "relax.stack": _stack,
}  # fmt: skip


def _rule_of(call: relax.Call) -> Rule | None:
    """How the samples of a call's arguments become those of its result; None: they may be mixed."""
    pointwise = traits_of(call).kind is Kind.POINTWISE
    return _RULES.get(call.op.name, _elementwise if pointwise else None)
