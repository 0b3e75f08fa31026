"""Balancing: factors for the channels of activations, so that one scale serves all of them.

Where channels differ in size, a tensor's 256 steps are those of its largest channel. A tensor x that only products with
constant weights read, directly or through homogeneous operators, is divided by S, channel by channel, and the weights
that read it are multiplied by S: the function stays the same. Weights with a scale for each output channel lose nothing
by that if they are depthwise, and little otherwise.

Where x comes from a product, or a sum of such, its weights and biases take 1 / S, as in `equalize`. Behind any other
function, such as a hard-swish or a clip, and behind a squeeze and excitation, a multiplication by 1 / S is inserted,
which becomes one more factor in the kernel that computes x.

S is what minimizes the expected noise in the results of the products that read x. With x/S in −a … b in steps of
d = (a + b) / 255 and the weights of an output in steps of δ_o = max_i S_i·|w_oi| / 127, that is

    Σ_o v_o Σ_i (S_i·d·w_oi)² / 12 + c_i·w_oi² + (δ_o·x_i / S_i)² / 12

over S = rᵅ / wᵝ, with w the largest weights that read a channel, and r the range that it needs if a : b is given. v_o
says how much the result o matters to the model's outputs (see `importance`): a channel that several products read has
one factor for all of them, and those of a depthwise product have each their own result.
c_i is what clipping adds: of N values, h_i was the largest, and others exceed it by β_i in the mean with a probability
of 1 / N (see `calibrators.extremes`), so that c_i = 2·β_i² / N · exp(−(b·S_i − h_i) / β_i), and the same at the other
end. Tensors with a single value for each channel of a sample, as behind a global pooling, are left alone: a channel
that stands for a rare class may be small in all samples that were seen.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import relax

from ..module import QnnModule
from ..op.arguments import data_of
from ..op.base import constant, constant_value, shape_of
from ..op.observe import observed_sites
from ..op.relax_table import traits_of
from ..op.traits import Kind
from ..passes.layout.forms import channels_last_order
from ..passes.rewrite import Rebuild, bindings_of, op_name, variables_of
from .annotate import annotate, sites
from .annotate.families import Family, family_of
from .calibrators.extremes import gumbel_scale
from .channels import Weight, channel_axis_behind, weight_of
from .choose import comparable
from .config import QConfig
from .dataset import batch_size_of, batches
from .engines import shared_engine_of, shared_engines
from .importance import importances
from .measurable import measurable
from .scales import Group, factored_tensors, groups_of, scaled, weights_by_position
from .shards import batch_named

_BELOW_ZERO = (0.0, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5)  # a / (a + b)
_OF_DATA, _OF_WEIGHTS = (0.25, 0.5, 0.75, 1.0), (0.0, 0.25, 0.5)  # α, β
_LEVELS = 0.25, 4.0, 0.7, 1 / 0.7  # what levels are multiplied by, as long as that helps, in so many rounds at most:
_ROUNDS, _STILL_BETTER = 4, 0.99
_LEAST = 1e-3  # of the largest channel: smaller ones are left alone
_MOST_BATCHES = 64
_MOST_OUTPUTS = 256  # of a weight


@dataclass(frozen=True)
class ChannelValues:
    """What is known of the values of each channel: float64 (channels,).

    ends:   the largest of −x, and of x; scales: β of both
    square: the mean of x²; count: of how many values this is known
    """

    ends: tuple[np.ndarray, np.ndarray]
    scales: tuple[np.ndarray, np.ndarray]
    square: np.ndarray
    count: int

    @property
    def needed(self) -> tuple[np.ndarray, np.ndarray]:
        """The ends where rounding and clipping add least noise: R² / (12·255²) + 2·β² / N · exp(−(R − h) / β) with
        R − h = β·ln(12·255²·β / (N·h)), up to twice what was seen."""
        found = []
        for end, scale in zip(self.ends, self.scales, strict=True):
            ratio = np.divide(scale, end, out=np.zeros(len(end)), where=end > 0)
            growth = np.log(np.maximum(1.0, 12 * 255**2 * ratio / self.count))
            seen = np.maximum(end, 0.0)
            found.append(seen + np.minimum(growth * scale, seen))
        return found[0], found[1]

    def of(self, places: np.ndarray) -> ChannelValues:
        """Of some of the channels, in this order."""
        low, high = (end[places] for end in self.ends)
        of_low, of_high = (scale[places] for scale in self.scales)
        return ChannelValues((low, high), (of_low, of_high), self.square[places], self.count)

    def clipped(self, scales: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
        """c: the mean square of what x loses where x/S is clipped to −limits[0] … limits[1]."""
        lost = np.zeros(len(scales))
        for end, scale, limit in zip(self.ends, self.scales, limits, strict=True):
            room = np.maximum(limit * scales - end, 0.0)
            ratio = np.divide(room, scale, out=np.full(len(scales), np.inf), where=scale > 0)
            lost += np.where(end > 0, 2 * scale**2 / self.count * np.exp(-ratio), 0.0)
        return lost


def balance(module: QnnModule, dataset: Any, config: QConfig | None = None) -> QnnModule:
    """The same function with the channels of activations balanced.

    module: float, folded; dataset: as `quantize` takes it, of which 64 batches at most are looked at

    In exact arithmetic the function is the same; in float32, up to rounding. Raises QuantizationError for a data set
    that is empty or does not fit.
    """
    factored = with_factors(module, factored_sites(module))
    return scaled(factored, balancing_factors(factored, dataset, config or QConfig()))


def balancing_factors(factored: QnnModule, dataset: Any, config: QConfig) -> list[tuple[Group, np.ndarray]]:
    """The groups that `balance` scales, each with its S. factored: by `with_factors`"""
    groups = groups_of(factored.ir["main"])
    if not groups:
        return []
    values, energies = _channel_values(factored, groups, dataset, config)
    bindings = bindings_of(factored.ir["main"])
    sources = {str(binding.var.name): binding.value for binding in bindings}
    weights = weights_by_position(factored.ir["main"])
    importance = importances(factored.ir["main"], _channel_axes(factored.ir["main"]), energies.tolist())
    factors = []
    for group in groups:
        readers = []
        for index, channels, weight, important in _reading(group, bindings, weights, importance):
            name = str(data_of(bindings[index].value).name)
            while name not in values and name in sources:
                name = _before(sources[name], group)
            places = _places(group.tensors[name].factors, channels) if name in values else None
            if places is not None:
                readers.append(Reader(values[name].of(places), channels, weight, important))
        if readers:
            factors.append((group, best_scales(readers, group.fixed, bool(config.symmetric or config.power_of_two))))
    return factors


def _before(value: Any, group: Group) -> str:
    """The tensor of the group from which a value comes, or one from which it is moved, such as shuffled channels."""
    read = [str(var.name) for var in variables_of(value)]
    moved = read[:1] if family_of(value, ()) is Family.MOVE else []
    return next(iter([*(name for name in read if name in group.tensors), *moved]), "")


def _reading(
    group: Group,
    bindings: Sequence[relax.VarBinding],
    weights: Mapping[int, Weight],
    importance: Mapping[Any, np.ndarray],
) -> Iterator[tuple[int, np.ndarray, Weight | None, np.ndarray]]:
    """What reads a group, products and multiplications: position, the factors of its channels, its weight if it is a
    product, and Reader's `important`."""

    def of(index: int) -> np.ndarray:
        return importance.get(bindings[index].var, np.ones(()))

    for index, channels in group.consumers.items():
        yield index, channels, weights[index], of(index)
    for (index, position), along in group.factors.items():
        own = np.square(np.asarray(constant_value(bindings[index].value.args[position]), np.float64).ravel())
        yield index, along.factors, None, own * of(index)


def _places(factors: np.ndarray, wanted: np.ndarray) -> np.ndarray | None:
    """Where each wanted factor is among others: at the same place, if it is there, too; None if one is missing."""
    if np.array_equal(factors, wanted):
        return np.arange(len(factors))
    order = np.argsort(factors, kind="stable")
    places = order[np.minimum(np.searchsorted(factors[order], wanted), len(order) - 1)]
    return places if np.array_equal(factors[places], wanted) else None


@dataclass(frozen=True)
class Reader:
    """What reads some channels.

    values:  what is known of these; factors: the position of each one's factor in S
    weight:  of a product, None for a multiplication, whose factors are not rounded
    important: of each output of the product, or of each channel that is multiplied, see `importances`
    """

    values: ChannelValues
    factors: np.ndarray
    weight: Weight | None
    important: np.ndarray

    @property
    def squares(self) -> np.ndarray:
        """(channels,) by how much the square of an error of a channel grows in the results."""
        if self.weight is None:
            return np.broadcast_to(self.important, self.factors.shape)
        return self.weight.input_squares(self.important)


def best_scales(readers: Sequence[Reader], fixed: np.ndarray, symmetric: bool = False) -> np.ndarray:
    """The S (factors,) with the least noise in the results of the weights that read these channels.

    fixed: which factors are 1; symmetric: whether the tensors' integers are
    """
    return _Search(readers, fixed, symmetric).best()


@dataclass(frozen=True)
class _Setting:
    """Where S comes from.

    below:  a / (a + b); of_data, of_weights: α, β
    levels: of each reader, what the ranges of its channels are divided by before the largest of all readers are taken:
            a reader whose level is lower decides about more factors
    """

    below: float
    of_data: float
    of_weights: float
    levels: tuple[float, ...]


class _Search:
    """For the best S: first with ranges as they are, and with those of each reader divided by its largest, then with
    one reader's level after the other moved."""

    def __init__(self, readers: Sequence[Reader], fixed: np.ndarray, symmetric: bool) -> None:
        self._readers, self._fixed = readers, fixed
        self._below_zero = (0.5,) if symmetric else _BELOW_ZERO
        self._noises = [_Noise(reader, symmetric) for reader in readers]
        self._needed = [reader.values.needed for reader in readers]
        read = self._largest_of(
            [np.sqrt(r.squares) if r.weight is None else r.weight.input_ranges() for r in readers],
        )
        self._read = np.where(read > 0, read, 1.0)
        self._best: _Setting | None = None
        self._scales = np.ones(len(fixed))
        self._noise = self._noise_of(self._scales)

    def best(self) -> np.ndarray:
        """S"""
        alike = tuple(1.0 for _ in self._readers)
        own = tuple(max(float(end.max(initial=0.0)) for end in ends) or 1.0 for ends in self._needed)
        for levels in (alike, own)[: len(self._readers)]:
            for below, of_data, of_weights in itertools.product(self._below_zero, _OF_DATA, _OF_WEIGHTS):
                self._try(_Setting(below, of_data, of_weights, levels))
        for _ in range(_ROUNDS if len(self._readers) > 1 else 0):
            before = self._noise
            for i, by in itertools.product(range(len(self._readers)), _LEVELS):
                setting = self._best or _Setting(0.5, 1.0, 0.0, own)
                levels = setting.levels
                self._try(replace(setting, levels=(*levels[:i], levels[i] * by, *levels[i + 1 :])))
            if self._noise > _STILL_BETTER * before:
                break
        return self._scales

    def _try(self, setting: _Setting) -> None:
        scales = self._scales_of(setting)
        noise = np.inf if scales is None else self._noise_of(scales)
        if scales is not None and noise < self._noise:
            self._best, self._scales, self._noise = setting, scales, noise

    def _noise_of(self, scales: np.ndarray) -> float:
        return sum(noise.of(scales) for noise in self._noises)

    def _scales_of(self, setting: _Setting) -> np.ndarray | None:
        below_zero, above_zero = (
            self._largest_of([ends[end] / level for ends, level in zip(self._needed, setting.levels, strict=True)])
            for end in range(2)
        )
        if setting.below == 0 and below_zero.any():
            return None
        largest = np.maximum(above_zero / (1 - setting.below), below_zero / setting.below if setting.below else 0.0)
        if largest.max() <= 0:
            return None
        largest = np.maximum(largest, _LEAST * largest.max())
        log = setting.of_data * np.log(largest) - setting.of_weights * np.log(self._read)
        log -= log[self._fixed].max() if self._fixed.any() else log.mean()
        return np.where(self._fixed, 1.0, np.exp(log))

    def _largest_of(self, found: Sequence[np.ndarray]) -> np.ndarray:
        largest = np.zeros(len(self._fixed))
        for reader, array in zip(self._readers, found, strict=True):
            np.maximum.at(largest, reader.factors, array)
        return largest


class _Noise:
    """What rounding adds to the results of one reader, as a function of S."""

    def __init__(self, reader: Reader, symmetric: bool) -> None:
        self._reader, self._symmetric, self._squares = reader, symmetric, reader.squares
        if reader.weight is not None:
            by_group = reader.weight.by_group
            outputs = by_group.shape[1]
            step = -(-outputs // _MOST_OUTPUTS)
            by_group = by_group[:, ::step]
            important = np.broadcast_to(reader.important, reader.weight.outputs).reshape(len(by_group), outputs)
            self._important = important[:, ::step]
            self._largest = np.abs(by_group).max(axis=3)  # (groups, outputs, inputs)
            self._taps = by_group.shape[3] * outputs / by_group.shape[1]

    def of(self, found: np.ndarray) -> float:
        """found: S"""
        values, scales = self._reader.values, found[self._reader.factors]
        low, high = (max(0.0, float((end / scales).max())) for end in values.ends)
        low, high = (max(low, high),) * 2 if self._symmetric else (low, high)
        lost = values.clipped(scales, (low, high))
        of_data = ((np.square(scales * (low + high) / 255) / 12 + lost) * self._squares).sum()
        if self._reader.weight is None:
            return float(of_data)
        steps = (self._largest * scales.reshape(len(self._largest), 1, -1)).max(axis=2) / 127
        squares = (values.square / scales**2).reshape(len(self._largest), -1).sum(axis=1) * self._taps
        return float(of_data + ((np.square(steps) * self._important).sum(axis=1) * squares).sum() / 12)


def _channel_values(
    factored: QnnModule, groups: Sequence[Group], dataset: Any, config: QConfig
) -> tuple[dict[str, ChannelValues], np.ndarray]:
    """What is known of each tensor of these groups that is quantized, and Σ y² of each output, whatever single layers
    are kept in: the ranges that a search has found hold for the factors of its result. Inside `shared_engines` it takes
    the program that compares ranges."""
    axes = {name: along.axis for group in groups for name, along in group.tensors.items()}
    annotated = measurable(annotate(factored, replace(config, overrides={})))
    names = [site.name for site in sites(annotated) if site.role != "weight"]
    instrumented = comparable(annotated, {}, names)
    size = batch_size_of(factored.inputs)
    counts: dict[str, int] = defaultdict(int)
    lows: dict[str, list[np.ndarray]] = defaultdict(list)
    highs: dict[str, list[np.ndarray]] = defaultdict(list)
    squares: dict[str, list[np.ndarray]] = defaultdict(list)
    energies = np.zeros(len(factored.outputs))
    with shared_engines():
        engine = shared_engine_of(instrumented.module)
        for index, batch in enumerate(itertools.islice(batches(dataset, factored.inputs), _MOST_BATCHES)):
            with batch_named(index):
                arrays = list(engine.run(list(batch)).values())
            energies += [float(np.square(array, dtype=np.float64).sum()) for array in arrays[: len(energies)]]
            for of, channels_last, array in zip(instrumented.sites, instrumented.channels_last, arrays, strict=True):
                for name in of:
                    if name not in axes:
                        continue
                    axis = axes[name]
                    if channels_last:
                        axis = channels_last_order(array.ndim).index(axis + array.ndim)
                    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
                    if rows.shape[1] <= size:
                        continue
                    lows[name].append(rows.min(axis=1))
                    highs[name].append(rows.max(axis=1))
                    squares[name].append(np.square(rows).mean(axis=1))
                    counts[name] += rows.shape[1]
    values = {}
    for name, count in counts.items():
        ends = -np.array(lows[name], np.float64), np.array(highs[name], np.float64)
        square = np.asarray(np.mean(squares[name], axis=0, dtype=np.float64))
        low, high = (end.max(axis=0) for end in ends)
        values[name] = ChannelValues((low, high), (gumbel_scale(ends[0]), gumbel_scale(ends[1])), square, count)
    return values, energies


# ---- where factors are inserted ----------------------------------------------------------------------------------


def factored_sites(module: QnnModule) -> list[str]:
    """The tensors behind which a multiplication by factors makes a group that can be scaled: those that are quantized,
    alone or joined with others, are in none yet, and that only homogeneous operators and products read."""
    function = module.ir["main"]
    observed = [call.args[0] for call, _ in observed_sites(annotate(module, QConfig()).ir).values()]
    marked = _with_sums(function, _before_joins(function, {str(v.name) for v in observed if isinstance(v, relax.Var)}))
    inside, axes = factored_tensors(function), _channel_axes(function)
    chosen = [
        str(var.name)
        for var, axis in axes.items()
        if var.name in marked and str(var.name) not in inside and shape_of(var)[axis] > 1
    ]
    while chosen:
        inside = factored_tensors(with_factors(module, chosen).ir["main"])
        left = [name for name in chosen if name in inside]
        if len(left) == len(chosen):
            break
        chosen = left
    return chosen


def _before_joins(function: relax.Function, names: Collection[str]) -> set[str]:
    """These tensors, and in place of those that are joined or moved from others, the others."""
    found = set(names)
    for binding in reversed(bindings_of(function)):
        value, name = binding.value, str(binding.var.name)
        if name in found and family_of(value, ()) in (Family.JOIN, Family.MOVE):
            found.remove(name)
            found.update(str(var.name) for var in variables_of(value))
    return found


def _with_sums(function: relax.Function, names: Collection[str]) -> set[str]:
    """These tensors, and others that are added to one of them, which must have the same factors."""
    found = set(names)
    sums = [[str(v.name) for v in variables_of(b.value)] for b in bindings_of(function) if op_name(b.value) == "add"]
    known = -1
    while known < (known := len(found)):
        found.update(name for added in sums if found & set(added) for name in added)
    return found


def with_factors(module: QnnModule, names: Collection[str]) -> QnnModule:
    """`module` with a multiplication by ones, a factor for each channel, behind the tensors of these names, which it
    takes over. Names that are not those of tensors with channels are left out."""
    if not names:
        return module
    axes = {str(var.name): axis for var, axis in _channel_axes(module.ir["main"]).items() if str(var.name) in names}
    new = Rebuild(module.ir["main"])
    with new.main():
        for binding in new.bindings:
            name, value = str(binding.var.name), new.substituted(binding.value)
            if name not in axes:
                new.bind(binding.var, value)
                continue
            shape = shape_of(binding.var)[axes[name] :]
            factors = constant(np.ones((shape[0], *(1 for _ in shape[1:])), np.float32))
            plain = new.builder.emit(value, name_hint=f"{name}_part")
            new.environment[binding.var] = new.builder.emit(relax.op.multiply(plain, factors), name_hint=name)
    return replace(module, ir=new.module())


def _channel_axes(function: relax.Function) -> dict[relax.Var, int]:
    """The axis of the channels of each float tensor that is computed from a product's result."""
    axes: dict[relax.Var, int] = {}
    for binding in bindings_of(function):
        axis = _channel_axis(binding.var, binding.value, axes)
        if axis is not None:
            axes[binding.var] = axis
    return axes


def _channel_axis(var: relax.Var, value: Any, axes: Mapping[relax.Var, int]) -> int | None:
    weight = weight_of(value, transposed=True)
    if weight is not None:
        return weight.output_axis
    if not isinstance(value, relax.Call) or not isinstance(var.ty, relax.TensorType) or str(var.ty.dtype) != "float32":
        return None
    for operand in variables_of(value):
        if operand not in axes:
            continue
        if traits_of(value).kind is Kind.POINTWISE:
            axis = axes[operand] if shape_of(operand) == shape_of(var) else None
        else:
            axis = channel_axis_behind(value, operand, axes[operand])
        if axis is not None and shape_of(var)[axis] == shape_of(operand)[axes[operand]]:
            return axis
    return None
