"""Accuracy control: a requested accuracy with as many multiply-accumulates in 8 bits as possible.

0. If filters of a spectrum are in float, the configuration with them in 8 bits is tried, then with them in 16 bits.
1. Settings of 8-bit quantization itself (calibrators, equalization, smoothing, rounding of weights, bias correction)
   are tried one after the other, each on top of the best so far, until one is accurate enough.
2. If none is, layers are kept in 16 bits or in float, in order of the noise they put into the model's outputs for each
   of their multiply-accumulates. How many are needed is found by bisection, every trial measured on the whole model;
   then those that turn out not to be needed are put back.

Trials are simulations in float by one compiled program; the result is accepted by what its integers compute. For
weights in groups `control_groups` searches.
"""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from tvm import IRModule

from ..compiling.coverage import coverage, macs_of
from ..errors import NothingMarkedError, QuantizationError, QuantizationWarning
from ..module import QnnModule
from ..passes.bodies import named_bindings
from .analysis import QuantizedLayer, quantized_layers
from .annotate import annotate, float_filters, sites
from .balance import factored_sites
from .bias_correction import mean_errors
from .calibrate import calibrate
from .choose import affordable
from .config import QConfig, resolve_config
from .control_groups import GroupSearch
from .dataset import Batches, batches
from .engines import Runner, Shared, engine_of, shared_engine_of, shared_engines
from .judge import Goal, Judge, Metric
from .readers import OwnReaders, with_own_readers
from .rescale import can_balance, settled
from .scales import groups_of
from .search import (
    BETTER,
    FIRST,
    MOST_PUT_BACK,
    Controlled,
    Search,
    first_enough,
    layer_count,
    named,
    overridden,
    shown,
)
from .smooth import smoothed_groups
from .stages import Stages, float_module, folded, stages
from .switchable import Observed, observations
from .table import CalibrationTable
from .tentative import settings_of, tentative
from .trials import Trial

KEEP = ("auto", "int16", "float32")
GOOD_SHARE = 0.9
_FEW = 4  # batches on which the noise of large models is measured
_ENOUGH = 0.9  # of the noise that float would remove: then 16 bits will do
_SETTINGS_TRIED = 3  # with layers kept, if the best setting leaves less than GOOD_SHARE in 8 bits
_MOST_TRIED = 6  # states whose integers are tried in order of what is in 8 bits
_LEAST_MARGIN = 0.1  # dB

# fields of QConfig and the values tried, if the user left them alone
_SETTINGS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("weight_rounding", ("gptq", "adaround")),
    ("calibrate_mode", ("output_error", "minmax", "percentile")),
    ("balance", (True,)),
    ("equalize", (True,)),
    ("smooth", (0.5,)),
    ("bias_correction", (True,)),
)


def control_accuracy(
    mod: QnnModule | IRModule,
    params: Mapping[str, Any] | None = None,
    dataset: Any = None,
    config: QConfig | None = None,
    *,
    validation_data: Any = None,
    min_sqnr: float | None = None,
    metric: Metric | None = None,
    max_drop: float | None = None,
    drop_type: str = "absolute",
    keep: str = "auto",
    samples: int = 64,
    sensitivity_samples: int | None = None,
    work: str | os.PathLike | None = None,
    progress: bool = False,
) -> Controlled:
    """Quantize a float model as accurately as requested, with as many multiply-accumulates in 8 bits as possible.

    If the configuration quantizes weights in groups, they get as few bits as possible instead.

    mod, params, dataset, config: as for `quantize`; fields of `config` that differ from their default stay as they are.
              Layers whose weights are in groups have the configuration's bits at least; those that must have more get
              4, then 8, then float. AWQ and GPTQ are tried if there is a dataset
    validation_data: as `dataset`: what accuracy is measured on. None: the data that calibrate
    min_sqnr: signal-to-noise ratio of every output that is required, in dB, on the first `samples` batches of
              `validation_data`. Those of a model with states form a sequence
    metric:   function of a model, which it calls like an Engine (`model(image)`, `model.run({...})`), that returns a
              number, higher for a better model. With states it is an Engine: `-perplexity(LanguageModel(model), texts)`
    max_drop: by how much the metric may be lower than that of the float model, in its units, or with drop_type
              "relative" as a share of it: 0.01 is one percent
    keep:     where layers go that need more than 8 bits. "int16": 16-bit activations times 8-bit weights; "float32";
              "auto": 16 bits if that is about as good as float. On CPUs with 8-bit dot products float is faster
    sensitivity_samples: batches on which the noise of each tensor, or layer in groups, is measured. None: 4, of small
              models up to `samples`, since few of them may have most of the noise, and of models with states `samples`
    work:     a folder in which each measurement is kept, so that an interrupted search goes on where it was; another
              folder for another metric
    progress: show what is being tried

    The result depends on nothing but the arguments. Warns with QuantizationWarning if less than 90 % of the
    multiply-accumulates are in 8 bits, or of the weights in groups. Raises AccuracyError if no setting is accurate
    enough: it names the best one and has the report. Raises QuantizationError as `quantize` does.

    Source: NNCF's quantize_with_accuracy_control, whose drop is measured in the same way.
    """
    goal = Goal(min_sqnr, metric, max_drop, drop_type)
    goal.check()
    config = resolve_config(config)
    if keep not in KEEP:
        raise QuantizationError(f"keep must be one of {', '.join(map(repr, KEEP))}, found {keep!r}")
    for name, value in (("samples", samples), ("sensitivity_samples", sensitivity_samples)):
        if value is None and name == "sensitivity_samples":
            continue
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
            raise QuantizationError(f"{name} must be a whole number of at least 1, found {value!r}")
    if config.do_simulation or (config.dynamic and not config.grouped):
        raise QuantizationError(
            "accuracy control needs calibrated integers, or weights in groups: leave out do_simulation, and dynamic or "
            "give it a group_size"
        )
    if config.grouped and keep == "int16":
        raise QuantizationError(
            "keep='int16' is for activations that calibration gives 8 bits: layers with weights in groups get 8 bits, "
            "then float; leave keep out"
        )
    module = float_module(mod, params)
    data = None if dataset is None else batches(dataset, module.inputs)
    judged = data if validation_data is None else batches(validation_data, module.inputs)
    few = sensitivity_samples or (samples if module.states else affordable(module, min(_FEW, samples), samples))
    if judged is None or (data is None and not config.grouped):
        raise QuantizationError("accuracy control needs data: give a dataset")
    with shared_engines(), shown(progress) as show:
        show("float model")
        judge = Judge(module, judged, samples, goal)
        if config.grouped:
            found = GroupSearch(module, data, judge, few, work, show, config).run()
        else:
            assert data is not None, "checked above"
            show("rescaled channels")
            better = settled(folded(module, config, data), config, data)
            found = _Search(module, data, judge, few, work, show, better, keep, config).run()
    chosen = found.report.chosen
    if chosen is not None and chosen.share < GOOD_SHARE:
        size = "weights in float" if config.grouped else "multiply-accumulates in more than 8 bits"
        warnings.warn(
            f"{found.report.goal} takes {100 * (1 - chosen.share):.0f} % of the {size}: see the report for what was "
            "tried",
            QuantizationWarning,
            stacklevel=2,
        )
    return found


# ---- settings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _State:
    """Layers that are not in 8 bits, by name."""

    wide: frozenset[str] = frozenset()
    in_float: frozenset[str] = frozenset()

    def key(self) -> list[list[str]]:
        return [sorted(self.wide), sorted(self.in_float)]

    def layers(self) -> dict[str, tuple[str, ...]]:
        """As fields of a trial."""
        return {"in_16_bits": tuple(sorted(self.wide)), "in_float": tuple(sorted(self.in_float))}


class _Setting:
    """A configuration, and what simulating it with any layers kept needs; all of it is made when first asked for."""

    def __init__(
        self, name: str, config: QConfig, module: QnnModule, data: Batches, like: _Setting | None = None
    ) -> None:
        """like: a setting with the same ranges"""
        self.name, self.config = name, config
        self._module, self._data, self._like = module, data, like

    @cached_property
    def _stages(self) -> Stages:
        simulated = replace(self.config, do_simulation=True, partition_conversions="disabled")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QuantizationWarning)  # the result's own are shown
            return stages(self._module, None, self._data, simulated, self._known_ranges())

    def _known_ranges(self) -> CalibrationTable | None:
        """The ranges that calibration has found for the other setting; None if they are not known yet."""
        if self._like is None or "_stages" not in vars(self._like):
            return None
        table = self._like._stages.table
        same = self._like.config.weight_rounding == self.config.weight_rounding
        return table if same else replace(table, roundings={})

    @cached_property
    def narrow(self) -> dict[str, Observed]:
        """Every site in 8 bits."""
        found = observations(self._stages["calibrate"], self._stages.table, self.config, loops=True)
        return {one.site.name: one for one in found}

    @cached_property
    def wide(self) -> dict[str, Observed]:
        """Every activation in 16 bits."""
        found = observations(self._in_16_bits[0], self._in_16_bits[1], self.config, loops=True)
        return {one.site.name: one for one in found if one.site.value is None}

    @cached_property
    def _in_16_bits(self) -> tuple[QnnModule, CalibrationTable]:
        """The module with every activation marked for 16 bits, and its ranges."""
        names = {one.site.layer for one in self.narrow.values()}
        return self._calibrated(kept(self.config, _State(wide=frozenset(names))))

    def _calibrated(self, config: QConfig) -> tuple[QnnModule, CalibrationTable]:
        annotated = annotate(self._stages["fold"], config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QuantizationWarning)
            return annotated, calibrate(annotated, self._data, config)

    def table(self, state: _State) -> CalibrationTable:
        """The ranges of the configuration with these layers kept: those that are simulated. "auto" would choose anew
        for the rest, by errors that those layers no longer cause."""
        config = kept(self.config, state)
        narrow, wide = self._stages.table, self._in_16_bits[1] if state.wide else CalibrationTable()
        annotated = annotate(self._stages["fold"], config)
        found = {site.name: (wide if site.bits > 8 else narrow).ranges.get(site.name) for site in sites(annotated)}
        others = self._calibrated(config)[1] if None in found.values() else narrow
        roundings = {name: steps for name, steps in narrow.roundings.items() if name in found}
        known = {name: value or others[name] for name, value in found.items()}
        ranges = replace(narrow, ranges=known, biases={}, roundings=roundings)
        if config.bias_correction != "auto":
            return ranges
        return replace(ranges, biases=mean_errors(annotated, ranges, self._data, config, cautious=True))

    @cached_property
    def exact(self) -> dict[str, np.ndarray]:
        """The float values of weights."""
        return {site.name: site.value for site in sites(self._stages["annotate"]) if site.value is not None}

    @cached_property
    def layers(self) -> _Layers:
        annotated = self._stages["annotate"]
        found = quantized_layers(annotated, list(self.narrow.values()))
        return _Layers(annotated, found, self.narrow, set(self._own.sites.values()))

    @cached_property
    def _own(self) -> OwnReaders:
        """What is simulated: a layer in float reads what others read in 8 bits, but before that is rounded."""
        return with_own_readers(self._stages["calibrate"])

    def module(self, state: _State) -> QnnModule:
        """The simulation with these layers kept: with the sites of the result, whatever else reads them."""
        try:
            bits = {site.name: site.bits for site in sites(annotate(self._stages["fold"], kept(self.config, state)))}
        except NothingMarkedError:
            bits = {}
        quantized = {}
        for name, found in self.narrow.items():
            if name in bits:
                quantized[name] = found if bits[name] <= 8 else self.wide.get(name, found)
        own = {name: site for name, (site, layer) in self._own.sites.items() if layer not in state.in_float}
        return self._simulated(quantized, own)

    def alone(self, site: str) -> QnnModule:
        """The float model with one site quantized."""
        return self._simulated({site: self.narrow[site]}, {name: read for name, (read, _) in self._own.sites.items()})

    def alone_runner(self, site: str) -> Runner:
        """What runs `alone`. All sites but a few share a module, and differ in values of its constants."""
        runner, constants = self._exact_runner
        names = [site, *(name for name, (read, _) in self._own.sites.items() if read == site)]
        if site in self.layers.squared or not all(runner.knows(constants.get(name, [None])) for name in names):
            return engine_of(self.alone(site), stepped=True)
        settings = settings_of(self.narrow[site])
        values = {one: value for name in names for one, value in zip(constants[name], settings, strict=True)}
        return runner.with_constants(values)

    @cached_property
    def _exact_runner(self) -> tuple[Shared, dict[str, list[Any]]]:
        """What runs the simulation with nothing quantized, and the constants of each site."""
        constants: dict[str, list[Any]] = {}
        return shared_engine_of(tentative(self._own.module, {}, self.exact, constants=constants)), constants

    def _simulated(self, quantized: Mapping[str, Observed], own: Mapping[str, str]) -> QnnModule:
        """own: sites of single readers that are quantized as this site is, if it is."""
        read = {name: quantized[site] for name, site in own.items() if site in quantized}
        return tentative(self._own.module, {**quantized, **read}, self.exact)


class _Layers:
    """The layers that can be kept, what each reads, and what keeping them costs."""

    def __init__(
        self,
        annotated: QnnModule,
        found: Sequence[QuantizedLayer],
        observed: Mapping[str, Observed],
        direct: Collection[tuple[str, str]],
    ) -> None:
        """direct: the sites that a layer in float reads before they are rounded for others: (site, layer)"""
        self._direct = direct
        self._owner = {name: one.site.layer for name, one in observed.items()}
        # sites that are both factors of a product: quantized, it has an accumulator, and its bias is rounded
        self.squared = {
            site for layer in found if len(layer.sites) == 1 and "matmul" in layer.operator for site in layer.sites
        }
        self._weights = {name for name, one in observed.items() if one.site.value is not None}
        self.reads: dict[str, set[str]] = {layer.name: set(layer.sites) for layer in found}
        for site, layer in self._owner.items():
            self.reads.setdefault(layer, set()).add(site)
        self.readers: dict[str, set[str]] = {site: {layer} for site, layer in self._owner.items()}
        for layer, read in self.reads.items():
            for site in read:
                self.readers[site].add(layer)
        at = {layer.result: layer.name for layer in found}
        self.macs = dict.fromkeys(self.reads, 0)
        self.total = 0
        for name, binding, rounds in named_bindings(annotated.ir["main"]):
            count = (macs_of(binding.value) or 0) * rounds
            owner = at.get(name) if name == binding.var.name else name  # a product in a loop is a layer of its own
            self.total += count
            if owner in self.macs:
                self.macs[owner] += count

    def bits(self, state: _State) -> dict[str, int]:
        """Site → 8, 16, or 32 for float."""
        found = {}
        for site, readers in self.readers.items():
            if site in self._weights:
                found[site] = 32 if self._owner[site] in state.in_float else 8
            elif readers <= state.in_float:
                found[site] = 32
            else:
                found[site] = 16 if readers & state.wide else 8
        return found

    def share(self, state: _State) -> float:
        """Of the multiply-accumulates in 8 bits; 1 if there are none."""
        return self.narrow_macs(state, self.bits(state)) / self.total if self.total else 1.0

    def narrow_macs(self, state: _State, bits: Mapping[str, int]) -> int:
        """Of the layers that read nothing wider."""
        return sum(
            macs
            for name, macs in self.macs.items()
            if name not in state.in_float and all(bits[site] == 8 for site in self.reads[name])
        )

    def path(self, noise: Mapping[str, float], keep: str, cheapest: bool = True) -> list[_State]:
        """States that each keep one layer more: always the one that removes most noise, for its multiply-accumulates if
        `cheapest`. In the last one something is still quantized."""
        state = _State()
        states: list[_State] = []
        smallest = 1e-3 * self.total / max(1, len(self.reads)) or 1.0
        left = dict(noise)
        while True:
            bits = self.bits(state)
            before = self.narrow_macs(state, bits)
            best: tuple[float, _State] | None = None
            for name in self.reads:
                for new, gain in self._actions(state, name, bits, left, keep):
                    cost = before - self.narrow_macs(new, self.bits(new)) + smallest if cheapest else 1.0
                    if gain > 0 and (best is None or gain / cost > best[0]):
                        best = gain / cost, new
            if best is None:
                return states
            state = best[1]
            if min(self.bits(state).values()) == 32:
                return states
            states.append(state)

    def _actions(
        self, state: _State, name: str, bits: Mapping[str, int], noise: Mapping[str, float], keep: str
    ) -> Iterator[tuple[_State, float]]:
        """How a layer can be kept, and the noise that removes."""
        if name in state.in_float:
            return
        as_float = _State(state.wide - {name}, state.in_float | {name})
        in_float = self._removed(as_float, name, bits, noise)
        as_wide = _State(state.wide | {name}, state.in_float)
        widened = 0.0 if name in state.wide else self._removed(as_wide, name, bits, noise)
        if keep == "int16" or (keep == "auto" and name not in state.wide and widened >= _ENOUGH * in_float):
            yield as_wide, widened
        else:
            yield as_float, in_float

    def _removed(self, state: _State, name: str, bits: Mapping[str, int], noise: Mapping[str, float]) -> float:
        after = self.bits(state)
        removed = 0.0
        for site in self.reads[name]:
            remaining = _remaining(after[site])
            removed += noise[site] * (_remaining(bits[site]) - remaining)
            if name in state.in_float and (site, name) in self._direct:
                removed += noise[site] * remaining / len(self.readers[site])
        return removed


def _remaining(bits: int) -> float:
    """The share of its noise in 8 bits that a tensor has with this many."""
    return {8: 1.0, 16: 2.0**-16, 32: 0.0}[bits]


def kept(config: QConfig, state: _State) -> QConfig:
    """The configuration with layers kept in 16 bits and in float. 16 bits have steps enough for the largest values,
    which a calibrator for 8 bits may clip."""
    wide = {"precision": "int16", "calibrate_mode": "minmax"}
    added = {name: wide for name in sorted(state.wide)}
    return overridden(config, {**added, **{name: {"precision": "float32"} for name in sorted(state.in_float)}})


# ---- the search --------------------------------------------------------------------------------------------------


class _Search(Search):
    def __init__(
        self,
        module: QnnModule,
        data: Batches,
        judge: Judge,
        few: int,
        work: str | os.PathLike | None,
        show: Callable[[str], None],
        config: QConfig,
        keep: str,
        given: QConfig,
    ) -> None:
        """given: the configuration before "auto" was settled"""
        super().__init__(module, data, judge, few, work, show, config)
        self._data, self._keep, self._given = data, keep, given
        self._calibrated: dict[str, _Setting] = {}  # what ranges depend on → the first setting with these
        self._simulated: dict[str, list[_State]] = {}  # name of a setting → what was accurate enough

    def run(self) -> Controlled:
        """Raises AccuracyError if nothing is accurate enough."""
        tried: list[tuple[Trial, _Setting]] = []
        for trial, setting in itertools.chain(self._with_filters(), self._settings()):
            tried.append((trial, setting))
            if trial.reached:
                integers = self._integers(setting, _State())
                if integers.reached:
                    return self.chosen(integers, setting.config, partial(setting.table, _State()))
        tried.sort(key=lambda pair: -pair[0].sqnr)
        found: list[tuple[float, _Setting, list[_State]]] = []
        for _, setting in tried[:_SETTINGS_TRIED]:
            states = self._with_layers(setting, 0.0)
            if states:
                found.append((setting.layers.share(states[0]), setting, states))
                if found[-1][0] >= GOOD_SHARE:
                    break
        for _, setting, states in sorted(found, key=lambda item: -item[0]):
            done = self._accepted(setting, states)
            if done is not None:
                return done
        raise self.unreached(", or allow layers in float (keep='auto')" if self._keep == "int16" else "")

    # ---- settings of 8 bits

    def _with_filters(self) -> Iterator[tuple[Trial, _Setting]]:
        """The settings with the filters of spectra in 8 and in 16 bits, which are in float by default, if there are
        any. Often they are most of a network's multiply-accumulates, and 16 bits take half as long as float."""
        filters = float_filters(folded(self.module, self.config, self._data), self.config)
        if not filters:
            return
        for bits in (8,) if self._keep == "float32" else (8, 16):
            config = overridden(self.config, {name: {"precision": f"int{bits}"} for name in filters})
            setting = self._setting(f"{', '.join(filters)} in {bits} bits", config)
            yield self._trial(setting, _State()), setting

    def _settings(self) -> Iterator[tuple[Trial, _Setting]]:
        """Each setting with its trial. Those that come later build on the best of the earlier ones."""
        default = QConfig()
        best = self._setting(FIRST, self.config)
        trial = self._trial(best, _State())
        yield trial, best
        for name, values in _SETTINGS:
            if getattr(self._given, name) != getattr(default, name):
                continue
            base = best
            for value in values:
                if getattr(base.config, name) == value or not self._applies(base, name):
                    continue
                setting = self._setting(named(base.name, name, value), replace(base.config, **{name: value}))
                found = self._trial(setting, _State())
                yield found, setting
                if found.sqnr > trial.sqnr + BETTER:
                    trial, best = found, setting

    def _applies(self, setting: _Setting, field: str) -> bool:
        """Whether there is anything for balancing, equalization and smoothing to do. Balanced channels stay so."""
        if field not in ("balance", "equalize", "smooth"):
            return True
        if setting.config.balance:
            return False
        plain = folded(self.module, setting.config, self._data)
        if field == "balance":
            return can_balance(setting.config) and bool(groups_of(plain.ir["main"]) or factored_sites(plain))
        return bool(groups_of(plain.ir["main"]) if field == "equalize" else smoothed_groups(plain))

    def _setting(self, name: str, config: QConfig) -> _Setting:
        if config.bias_correction == "auto":  # biases would come with the table
            return _Setting(name, config, self.module, self._data)
        ranges = repr(replace(config, weight_rounding="nearest", bias_correction=False))
        like = self._calibrated.get(ranges)
        new = _Setting(name, config, self.module, self._data, like)
        if like is None:
            self._calibrated[ranges] = new
        return new

    # ---- trials

    def _trial(self, setting: _Setting, state: _State) -> Trial:
        """What the simulation of the whole model gives."""
        described = _described(setting, state)
        self.show(described)
        started = time.perf_counter()
        figures, known = self.journal.value(
            ["simulation", repr(setting.config), state.key()],
            lambda: {
                **self.judge.figures(engine_of(setting.module(state))),
                "share": setting.layers.share(state),
                "seconds": time.perf_counter() - started,
            },
        )
        trial = self.noted(described, figures, compiled=False, repeated=known, **state.layers())
        if trial.reached:
            self._simulated.setdefault(setting.name, []).append(state)
        return trial

    def _integers(self, setting: _Setting, state: _State) -> Trial:
        """What the integers give."""

        def size(done: Stages) -> dict[str, float]:
            return {"share": coverage(done.result).share_in_8_bits}

        config, table = kept(setting.config, state), partial(setting.table, state)
        return self.integers(_described(setting, state), config, size, table, **state.layers())

    # ---- layers

    def _accepted(self, setting: _Setting, states: list[_State]) -> Controlled | None:
        """The first state whose integers are accurate enough, of all that simulate accurately those with most in 8 bits
        first: errors fall differently in integers. Simulations that are better by as much as integers are worse give
        further ones. After some, the states of the path follow."""
        margin, tried = 0.0, 0
        least = self.judge.goal.min_sqnr
        pending = [*self._simulated.get(setting.name, ()), *states]
        done: list[_State] = []
        while pending := [state for state in pending if state not in done]:
            state = max(pending, key=setting.layers.share) if tried < _MOST_TRIED else pending[0]
            done.append(state)
            try:
                trial = self._integers(setting, state)
            except NothingMarkedError:  # sums and joins, which are quantized beside products only
                continue
            if trial.reached:
                return self.chosen(trial, kept(setting.config, state), partial(setting.table, state))
            tried += 1
            if least is not None and trial.sqnr < least and tried < _MOST_TRIED:
                margin = max(margin, self._trial(setting, state).sqnr - trial.sqnr) + _LEAST_MARGIN
                following = self._with_layers(setting, margin)
                pending = [*self._simulated.get(setting.name, ()), *(following or states)]
            elif tried == _MOST_TRIED:
                pending = states
        return None

    def _with_layers(self, setting: _Setting, margin: float) -> list[_State]:
        """States in which the simulation is accurate enough, by `margin` dB more than required: the smallest, then
        those of the path behind it."""

        def enough(state: _State) -> bool:
            trial = self._trial(setting, state)
            return trial.reached and trial.sqnr >= (self.judge.goal.min_sqnr or -np.inf) + margin

        noise = self._noise(setting)
        for cheapest in (True, False):  # what is expensive and noisy may have to go, too
            path = setting.layers.path(noise, self._keep, cheapest)
            first = first_enough(path, enough)
            if first is not None:
                return [self._put_back(setting, path[first], enough), *path[first:]]
        return []

    def _noise(self, setting: _Setting) -> dict[str, float]:
        """Site → noise in the outputs when it alone is quantized."""
        found = {}
        for number, site in enumerate(setting.narrow):
            self.show(f"{setting.name}: noise of tensor {number + 1} of {len(setting.narrow)}")

            def measure(site: str = site) -> dict[str, Any]:
                return {"noise": self.judge.noise(setting.alone_runner(site), self.few)}

            value, _ = self.journal.value(["noise", repr(setting.config), site], measure)
            found[site] = float(value["noise"])
        return found

    def _put_back(self, setting: _Setting, state: _State, enough: Callable[[_State], bool]) -> _State:
        """The state without layers that it does not need, those with most multiply-accumulates tried first."""
        layers = setting.layers
        names = sorted(state.wide | state.in_float, key=lambda name: (-layers.macs[name], name))
        for name in names[:MOST_PUT_BACK]:
            less = _State(state.wide - {name}, state.in_float - {name})
            if layers.share(less) > layers.share(state) and enough(less):
                state = less
        return state


def _described(setting: _Setting, state: _State) -> str:
    parts = [setting.name]
    parts += [f"{layer_count(len(state.wide))} in 16 bits"] if state.wide else []
    parts += [f"{layer_count(len(state.in_float))} in float"] if state.in_float else []
    return ", ".join(parts)
