"""Groups of tensors whose channels can be scaled without changing the model's function.

With f(s·x) = s·f(x) for s > 0, W₂·f(W₁·x + b) = (W₂·S)·f((S⁻¹·W₁)·x + S⁻¹·b) for any diagonal S > 0. A tensor that
several layers read, or that is the sum of several layers' results, gives all of them the same S: a group is everything
that must be scaled together. Equalization and smoothing choose S.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from tvm import relax

from ..module import QnnModule
from ..op.arguments import data_of, factors_of, with_arguments, with_data
from ..op.base import constant, constant_value, shape_of
from ..op.relax_table import traits_of
from ..passes.rewrite import Rebuild, bindings_of, op_name, operands
from .channels import Weight, channel_axis_behind, is_positive_homogeneous, weight_of

_NORMALIZATIONS = ("nn.layer_norm",)


@dataclass
class Group:
    """Tensors with common factors for their channels. Numbers are positions of bindings in `main`.

    channels:  how many factors there are
    producers: products whose results are in the group: their outputs are divided by S
    scaled:    constants that are divided by S: (binding, argument) → the channels' axis, counted from the end. Biases,
               and factors of multiplications and layer normalizations
    consumers: products that read a tensor of the group: their inputs are multiplied by S
    factors:   (binding, argument) → axis of constants that are multiplied by S: a multiplication reads the group
    read:      the tensors that the consumers read, each with the axis of its channels counted from the end
    tensors:   all tensors of the group, in the same way
    from_normalization: whether it begins, or one of several begins, at a normalization or a multiplication by constants
    is_fixed:  whether something reads it that is not homogeneous
    """

    channels: int
    producers: list[int] = field(default_factory=list)
    scaled: dict[tuple[int, int], int] = field(default_factory=dict)
    consumers: list[int] = field(default_factory=list)
    factors: dict[tuple[int, int], int] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    tensors: dict[str, int] = field(default_factory=dict)
    from_normalization: bool = False
    is_fixed: bool = False

    def take(self, other: Group) -> None:
        """Everything in `other` belongs to this group from now on."""
        self.producers += other.producers
        self.consumers += other.consumers
        self.scaled |= other.scaled
        self.factors |= other.factors
        self.read |= other.read
        self.tensors |= other.tensors
        self.from_normalization |= other.from_normalization
        self.is_fixed |= other.is_fixed or other.channels != self.channels


def groups_of(function: relax.Function) -> list[Group]:
    """The groups of `main` that can be scaled, in order of computation: each has a producer and a consumer, and nothing
    reads it that is not homogeneous."""
    return _Search(function).groups


def factored_tensors(function: relax.Function) -> set[str]:
    """The tensors in these groups."""
    return {name for group in groups_of(function) for name in group.tensors}


class _Search:
    """One walk over `main`: which group each tensor is in, and the axis of its channels."""

    def __init__(self, function: relax.Function) -> None:
        self._bindings = bindings_of(function)
        self._of: dict[Any, tuple[Group, int]] = {}  # variable → group, axis of its channels
        self._all: list[Group] = []
        self._shared = _shared_constants(self._bindings)
        for index, binding in enumerate(self._bindings):
            self._visit(index, binding.var, binding.value)
        self._fix(list(operands(function.body.body)))

    @property
    def groups(self) -> list[Group]:
        unique = {id(group): group for group in self._all}.values()
        return [g for g in unique if not g.is_fixed and (g.producers or g.scaled) and (g.consumers or g.factors)]

    def _visit(self, index: int, var: relax.Var, value: Any) -> None:
        weight = weight_of(value)
        if weight is not None:
            self._product(index, var, value, weight)
        elif op_name(value) in _NORMALIZATIONS:
            self._normalization(index, var, value)
        elif op_name(value) in ("add", "subtract") and isinstance(value, relax.Call):
            self._sum(index, var, value)
        elif op_name(value) == "multiply" and isinstance(value, relax.Call):
            if _constant_argument(value) is None:
                self._gate(var, value)
            else:
                self._multiplication(index, var, value)
        else:
            self._passed(var, value)

    def _begin(self, var: relax.Var, axis: int) -> Group:
        group = Group(shape_of(var)[axis])
        self._all.append(group)
        self._add(var, group, axis)
        return group

    def _add(self, var: relax.Var, group: Group, axis: int) -> None:
        self._of[var] = group, axis
        group.tensors[str(var.name)] = axis - len(shape_of(var))

    def _fix(self, exprs: Sequence[Any]) -> None:
        for expr in exprs:
            if isinstance(expr, relax.Var) and expr in self._of:
                self._of[expr][0].is_fixed = True

    def _product(self, index: int, var: relax.Var, value: relax.Call, weight: Weight) -> None:
        data, operand = factors_of(value)
        group = self._begin(var, weight.output_axis)
        group.producers.append(index)
        if operand in self._shared:
            group.is_fixed = True
            self._fix([data])
        elif data in self._of:
            source, axis = self._of[data]
            if axis != weight.input_axis(len(shape_of(data))):
                source.is_fixed = True
            source.consumers.append(index)
            source.read[str(data.name)] = axis - len(shape_of(data))

    def _normalization(self, index: int, var: relax.Var, value: relax.Call) -> None:
        traits, ndim = traits_of(value), len(shape_of(var))
        self._fix([data_of(value)])
        axes = [int(axis) % ndim for axis in value.attrs.axes]
        places = [(index, traits.index(name)) for name in ("weight", "bias")]
        if axes != [ndim - 1] or any(not self._is_own(value.args[place]) for _, place in places):
            return
        group = self._begin(var, ndim - 1)
        group.from_normalization = True
        group.scaled |= dict.fromkeys(places, -1)

    def _sum(self, index: int, var: relax.Var, value: relax.Call) -> None:
        place = _constant_argument(value)
        if place is not None:
            self._bias(index, var, value, place)
            return
        found = [self._of.get(arg) for arg in value.args]
        same = all(isinstance(arg, relax.Var) and shape_of(arg) == shape_of(var) for arg in value.args)
        one, two = found
        if not same or one is None or two is None or one[1] != two[1]:
            self._fix(value.args)
            return
        self._join(one[0], two[0])
        self._add(var, *one)

    def _bias(self, index: int, var: relax.Var, value: relax.Call, place: int) -> None:
        data = value.args[1 - place]
        if data not in self._of:
            return
        group, axis = self._of[data]
        if shape_of(data) != shape_of(var) or not self._is_own(value.args[place]):
            group.is_fixed = True
            return
        group.scaled[index, place] = axis - len(shape_of(var))
        self._add(var, group, axis)

    def _gate(self, var: relax.Var, value: relax.Call) -> None:
        """A product of two tensors, such as squeeze and excitation: in the group of one, whatever the other is."""
        data = next((arg for arg in value.args if arg in self._of and shape_of(arg) == shape_of(var)), None)
        others = [arg for arg in value.args if data is None or not arg.same_as(data)]
        if data is not None and others:
            self._fix(others)
            self._add(var, *self._of[data])
        else:
            self._fix(value.args)

    def _multiplication(self, index: int, var: relax.Var, value: relax.Call) -> None:
        """One by a factor for each channel: the end of one group and the beginning of the next."""
        place = _constant_argument(value)
        assert place is not None, "the caller has asked"
        data, factor = value.args[1 - place], value.args[place]
        shape = shape_of(factor)
        if not self._is_own(factor) or shape_of(data) != shape_of(var):
            self._fix([data])
            return
        ndim = len(shape_of(var))
        channel_axes = [i for i, n in enumerate((1,) * (ndim - len(shape)) + shape) if n > 1]
        if not channel_axes:  # a single factor
            if data in self._of:
                self._add(var, *self._of[data])
            return
        if len(channel_axes) > 1 or shape_of(var)[channel_axes[0]] == 1:
            self._fix([data])
            return
        axis = channel_axes[0]
        group = self._begin(var, axis)
        group.from_normalization = True
        group.scaled[index, place] = axis - ndim
        if data in self._of:
            source, own = self._of[data]
            if own == axis:
                source.factors[index, place] = axis - ndim
            else:
                source.is_fixed = True

    def _passed(self, var: relax.Var, value: Any) -> None:
        """Through a homogeneous function of one tensor; anything else fixes what it reads."""
        data = data_of(value) if isinstance(value, relax.Call) and value.args else None
        if not isinstance(data, relax.Var) or data not in self._of or not is_positive_homogeneous(value):
            self._fix(list(operands(value)))
            return
        group, axis = self._of[data]
        others = [
            operand for operand in operands(value) if isinstance(operand, relax.Var) and not operand.same_as(data)
        ]
        behind = None if others else channel_axis_behind(value, data, axis)
        if behind is None or shape_of(var)[behind] != group.channels:
            group.is_fixed = True
            return
        self._add(var, group, behind)

    def _is_own(self, expr: Any) -> bool:
        """Whether an operand is a float32 constant that nothing else reads."""
        value = constant_value(expr)
        return value is not None and value.dtype == np.float32 and expr not in self._shared

    def _join(self, one: Group, two: Group) -> None:
        if one is two:
            return
        one.take(two)
        self._all = [group for group in self._all if group is not two]
        for var, (group, axis) in self._of.items():
            if group is two:
                self._of[var] = one, axis


def _constant_argument(call: relax.Call) -> int | None:
    """Which argument is constant."""
    return next((i for i, arg in enumerate(call.args) if constant_value(arg) is not None), None)


def _shared_constants(bindings: Sequence[relax.VarBinding]) -> set[Any]:
    """Constants that are read more than once."""
    seen: set[Any] = set()
    shared: set[Any] = set()
    for binding in bindings:
        for operand in operands(binding.value):
            if not isinstance(operand, relax.Var) and constant_value(operand) is not None:
                (shared if operand in seen else seen).add(operand)
    return shared


def weights_by_position(function: relax.Function) -> dict[int, Weight]:
    """The weights of all products that have one, by position of their binding."""
    found = {index: weight_of(binding.value) for index, binding in enumerate(bindings_of(function))}
    return {index: weight for index, weight in found.items() if weight is not None}


def scaled(module: QnnModule, factors: Sequence[tuple[Group, np.ndarray]]) -> QnnModule:
    """`module` with the channels of each group divided by its factors S (channels,), which the consumers undo.

    In exact arithmetic the function is the same; in float32, up to rounding.
    """
    if not factors:
        return module
    function = module.ir["main"]
    weights = weights_by_position(function)
    constants: dict[tuple[int, int], np.ndarray] = {}
    changed: set[int] = set()
    bindings = bindings_of(function)

    def multiply(place: tuple[int, int], axis: int, by: np.ndarray) -> None:
        index, position = place
        value = constants.get(place)
        value = np.asarray(constant_value(bindings[index].value.args[position]), np.float64) if value is None else value
        constants[place] = value * by.reshape(-1, *(1,) * (-axis - 1))

    for group, scale in factors:
        for index in group.producers:
            weights[index] = weights[index].scaled_outputs(1 / scale)
        for index in group.consumers:
            weights[index] = weights[index].scaled_inputs(scale)
        changed |= {*group.producers, *group.consumers}
        for place, axis in group.scaled.items():
            multiply(place, axis, 1 / scale)
        for place, axis in group.factors.items():
            multiply(place, axis, scale)
    return _with_constants(module, {index: weights[index] for index in changed}, constants)


def _with_constants(
    module: QnnModule, weights: Mapping[int, Weight], constants: Mapping[tuple[int, int], np.ndarray]
) -> QnnModule:
    new = Rebuild(module.ir["main"])
    with new.main():
        for index, binding in enumerate(new.bindings):
            value = new.substituted(binding.value)
            if index in weights:
                value = with_data(value, data_of(value), constant(weights[index].array.astype(np.float32)))
            own = {place: array for (at, place), array in constants.items() if at == index}
            if own:
                names = traits_of(value).arguments
                value = with_arguments(value, **{names[i]: constant(a.astype(np.float32)) for i, a in own.items()})
            new.bind(binding.var, value)
    return replace(module, ir=new.module())
