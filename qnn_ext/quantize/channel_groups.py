"""Groups of tensors whose channels can be scaled without changing the model's function.

With f(s·x) = s·f(x) for s > 0, W₂·f(W₁·x + b) = (W₂·S)·f((S⁻¹·W₁)·x + S⁻¹·b) for any diagonal S > 0. A tensor that
several layers read, or that is the sum of several layers' results, gives all of them the same factors. Concatenations,
slices and shuffles of channels take the factors of the channels that they move. A group is everything that reads or
writes the same tensors. Balancing, equalization and smoothing choose S.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import relax

from ..op.arguments import data_of, factors_of
from ..op.base import constant_value, normalize_axis, shape_of
from ..op.relax_table import traits_of
from ..passes.rewrite import bindings_of, op_name, operands
from .channels import Weight, is_positive_homogeneous, weight_of
from .factor_numbers import Numbers, axis_of, compressed, moved, placed

_NORMALIZATIONS = ("nn.layer_norm",)

Place = tuple[int, int]  # position of a binding in `main`, and of one of its arguments


@dataclass(frozen=True)
class Along:
    """The channels of a tensor. axis: theirs, counted from the end; factors: the position in S of each one's factor"""

    axis: int
    factors: np.ndarray


@dataclass
class Group:
    """Tensors with common factors for their channels. Numbers are positions of bindings in `main`; arrays of int64 say
    which factor of S each channel has.

    fixed:     (factors,) bool: which are 1, as something that is not homogeneous reads their channels
    producers: products whose results are in the group: their outputs are divided by their factors
    scaled:    constants that are divided by theirs. Biases, and factors of multiplications and layer normalizations
    consumers: products that read a tensor of the group: their inputs are multiplied by their factors
    factors:   constants that are multiplied by theirs: a multiplication reads the group
    read:      the tensors that the consumers read
    tensors:   all tensors of the group with channels along one axis
    from_normalization: whether it begins, or one of several begins, at a normalization or a multiplication by constants
    """

    fixed: np.ndarray
    producers: dict[int, np.ndarray] = field(default_factory=dict)
    scaled: dict[Place, Along] = field(default_factory=dict)
    consumers: dict[int, np.ndarray] = field(default_factory=dict)
    factors: dict[Place, Along] = field(default_factory=dict)
    read: dict[str, Along] = field(default_factory=dict)
    tensors: dict[str, Along] = field(default_factory=dict)
    from_normalization: bool = False

    @property
    def channels(self) -> int:
        """How many factors there are."""
        return len(self.fixed)

    @property
    def is_plain(self) -> bool:
        """Whether all its tensors have the same channels, in the same order, and no factor is fixed."""
        own = np.arange(self.channels)
        along = [*self.scaled.values(), *self.factors.values(), *self.tensors.values()]
        found = [*self.producers.values(), *self.consumers.values(), *(one.factors for one in along)]
        return not self.fixed.any() and all(np.array_equal(one, own) for one in found)


def groups_of(function: relax.Function) -> list[Group]:
    """The groups of `main` that can be scaled, in order of computation: each has a producer and a consumer, and a
    factor that is not fixed."""
    return _Walk(function).groups()


def plain_groups_of(function: relax.Function) -> list[Group]:
    """Those of them that are plain."""
    return [group for group in groups_of(function) if group.is_plain]


def factored_tensors(function: relax.Function) -> set[str]:
    """The tensors in these groups with factors that are not fixed."""
    found = (
        (name, group.fixed[along.factors]) for group in groups_of(function) for name, along in group.tensors.items()
    )
    return {name for name, fixed in found if not fixed.all()}


class _Walk:
    """One walk over `main`: which factor each channel of each tensor has.

    For a tensor there is an array of their numbers, of as many dimensions, and of length 1 in those along which its
    values have the same factor.
    """

    def __init__(self, function: relax.Function) -> None:
        self._bindings = bindings_of(function)
        self._numbers = Numbers()
        self._of: dict[Any, np.ndarray] = {}
        self._parts: dict[Any, list[np.ndarray]] = {}  # of tuples
        self._found: list[tuple[str, Any, int, np.ndarray]] = []  # field of Group, key, axis, numbers
        self._shared = _shared_constants(self._bindings)
        for index, binding in enumerate(self._bindings):
            self._visit(index, binding.var, binding.value)
        self._fix(list(operands(function.body.body)))

    def groups(self) -> list[Group]:
        """All of them."""
        numbers = self._numbers
        roots, of = numbers.roots(np.arange(len(numbers.equal))), numbers.groups()
        fixed = np.zeros(len(roots), bool)
        fixed[roots[numbers.fixed]] = True
        places = np.zeros(len(roots), np.int64)
        made: dict[int, Group] = {}
        for key in np.unique(of):
            own = np.unique(roots[of == key])
            places[own] = np.arange(len(own))
            made[int(key)] = Group(fixed[own])
        for name, key, axis, found in self._found:
            group = made[int(of[found[0]])]
            factors = places[roots[found]]
            value = factors if name in ("producers", "consumers") else Along(axis, factors)
            if name == "from_normalization":
                group.from_normalization = True
            else:
                getattr(group, name)[key] = value
        return [
            g for g in made.values() if not g.fixed.all() and (g.producers or g.scaled) and (g.consumers or g.factors)
        ]

    def _visit(self, index: int, var: relax.Var, value: Any) -> None:
        weight = weight_of(value, transposed=True)
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
        elif op_name(value) == "concat":
            self._concatenation(var, value)
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in self._parts:
            self._add(var, self._parts[value.tuple_value][value.index])
        else:
            self._passed(var, value)

    def _begin(self, var: relax.Var, axis: int) -> np.ndarray:
        """New numbers for the channels of a tensor."""
        numbers = self._numbers.begin(shape_of(var)[axis])
        self._add(var, placed(numbers, axis, len(shape_of(var))))
        return numbers

    def _add(self, var: relax.Var, numbers: np.ndarray) -> None:
        self._of[var] = numbers
        self._numbers.join(np.ravel(numbers))
        axis = axis_of(numbers, shape_of(var))
        if axis is not None:
            self._note("tensors", str(var.name), axis, self._along(var, axis), len(shape_of(var)))

    def _note(self, name: str, key: Any, axis: int, numbers: np.ndarray | None, ndim: int = 0) -> None:
        assert numbers is not None, "the caller has asked"
        self._found.append((name, key, axis - ndim, numbers))

    def _along(self, var: relax.Var, axis: int) -> np.ndarray | None:
        """The number of each channel along an axis; None where they differ along another, too."""
        numbers = self._of[var]
        if numbers.size != numbers.shape[axis]:
            return None
        return np.broadcast_to(np.ravel(numbers), (shape_of(var)[axis],))

    def _fix(self, exprs: Sequence[Any]) -> None:
        for expr in exprs:
            if isinstance(expr, relax.Var):
                for numbers in [self._of[expr]] if expr in self._of else self._parts.get(expr, []):
                    self._numbers.fixed[numbers] = True

    def _product(self, index: int, var: relax.Var, value: relax.Call, weight: Weight) -> None:
        data, operand = factors_of(value)
        self._note("producers", index, 0, self._begin(var, weight.output_axis))
        if operand in self._shared:
            self._fix([var, data])
        elif data in self._of:
            axis, ndim = weight.input_axis(len(shape_of(data))), len(shape_of(data))
            read = self._along(data, axis)
            if read is None:
                self._fix([data])
                return
            self._note("consumers", index, 0, read)
            self._note("read", str(data.name), axis, read, ndim)

    def _normalization(self, index: int, var: relax.Var, value: relax.Call) -> None:
        traits, ndim = traits_of(value), len(shape_of(var))
        self._fix([data_of(value)])
        axes = [int(axis) % ndim for axis in value.attrs.axes]
        places = [(index, traits.index(name)) for name in ("weight", "bias")]
        if axes != [ndim - 1] or any(not self._is_own(value.args[place]) for _, place in places):
            return
        numbers = self._begin(var, ndim - 1)
        self._note("from_normalization", None, 0, numbers)
        for place in places:
            self._note("scaled", place, -1, numbers)

    def _sum(self, index: int, var: relax.Var, value: relax.Call) -> None:
        place = _constant_argument(value)
        if place is not None:
            self._bias(index, var, value, place)
            return
        found = [self._of.get(arg) for arg in value.args]
        one, two = found
        if one is None or two is None or one.ndim != two.ndim:
            self._fix(value.args)
            return
        self._numbers.unite(one, two)
        self._add(var, np.broadcast_arrays(one, two)[0])

    def _bias(self, index: int, var: relax.Var, value: relax.Call, place: int) -> None:
        data = value.args[1 - place]
        if data not in self._of:
            return
        numbers = self._of[data]
        axis = axis_of(numbers, shape_of(data))
        if axis is None or shape_of(data) != shape_of(var) or not self._is_own(value.args[place]):
            self._fix([data])
            return
        self._note(
            "scaled", (index, place), axis if numbers.size > 1 else numbers.ndim - 1, np.ravel(numbers), numbers.ndim
        )
        self._add(var, numbers)

    def _gate(self, var: relax.Var, value: relax.Call) -> None:
        """A product of two tensors, such as squeeze and excitation: with the factors of one, whatever the other is."""
        data = next((arg for arg in value.args if arg in self._of and shape_of(arg) == shape_of(var)), None)
        others = [arg for arg in value.args if data is None or not arg.same_as(data)]
        if data is not None and others:
            self._fix(others)
            self._add(var, self._of[data])
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
                self._add(var, self._of[data])
            return
        if len(channel_axes) > 1 or shape_of(var)[channel_axes[0]] == 1:
            self._fix([data])
            return
        axis = channel_axes[0]
        numbers = self._begin(var, axis)
        self._note("from_normalization", None, 0, numbers)
        self._note("scaled", (index, place), axis, numbers, ndim)
        if data in self._of:
            read = self._along(data, axis)
            if read is None:
                self._fix([data])
            else:
                self._note("factors", (index, place), axis, read, ndim)

    def _concatenation(self, var: relax.Var, value: relax.Call) -> None:
        """The factors of its fields one behind the other; those that are not known are 1."""
        fields, ndim = list(operands(value)), len(shape_of(var))
        if not isinstance(value.args[0], relax.Tuple) or not any(one in self._of for one in fields):
            self._fix(fields)
            return
        axis = normalize_axis(int(value.attrs.axis), ndim)
        found = [self._of[one] if one in self._of else self._outside(one, axis) for one in fields]
        shape = [max(numbers.shape[i] for numbers in found) for i in range(ndim)]
        parts = []
        for one, numbers in zip(fields, found, strict=True):
            shape[axis] = shape_of(one)[axis]
            parts.append(np.broadcast_to(numbers, shape))
        self._add(var, compressed(np.concatenate(parts, axis)))

    def _outside(self, field: Any, axis: int) -> np.ndarray:
        """Of a field that is in no group: ones, but zeros have any factors."""
        value, shape = constant_value(field), shape_of(field)
        if value is not None and not value.any():
            return placed(self._numbers.begin(shape[axis]), axis, len(shape))
        return self._numbers.begin(1, fixed=True).reshape((1,) * len(shape))

    def _passed(self, var: relax.Var, value: Any) -> None:
        """Through a homogeneous function of one tensor; anything else fixes what it reads."""
        data = data_of(value) if isinstance(value, relax.Call) and value.args else None
        if not isinstance(data, relax.Var) or data not in self._of or not is_positive_homogeneous(value):
            self._fix(list(operands(value)))
            return
        others = [
            operand for operand in operands(value) if isinstance(operand, relax.Var) and not operand.same_as(data)
        ]
        found = None if others else self._padded(value, data) or moved(value, data, self._of[data])
        if found is None:
            self._fix([data])
        elif isinstance(var.ty, relax.TupleType):
            self._parts[var] = found
        else:
            self._add(var, found[0])

    def _padded(self, call: relax.Call, data: relax.Var) -> list[np.ndarray] | None:
        """The numbers behind a padding of channels by zeros, which have any factor; None for anything else."""
        numbers, ndim = self._of[data], len(shape_of(data))
        axis = axis_of(numbers, shape_of(data))
        if op_name(call) != "nn.pad" or axis is None or shape_of(call)[axis] == shape_of(data)[axis]:
            return None
        before, after = (int(n) for n in call.attrs.pad_width[2 * axis : 2 * axis + 2])
        own = np.broadcast_to(np.ravel(numbers), (shape_of(data)[axis],))
        first, last = (self._numbers.begin(count) for count in (before, after))
        return [placed(np.concatenate([first, own, last]), axis, ndim)]

    def _is_own(self, expr: Any) -> bool:
        """Whether an operand is a float32 constant that nothing else reads."""
        value = constant_value(expr)
        return value is not None and value.dtype == np.float32 and expr not in self._shared


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
