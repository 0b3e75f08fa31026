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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from tvm import IRModule

from ..compiling.coverage import coverage
from ..errors import NothingMarkedError, QuantizationError, QuantizationWarning
from ..module import QnnModule
from .annotate import float_filters
from .channel_groups import groups_of
from .choose import affordable
from .config import QConfig, resolve_config
from .control_groups import GroupSearch
from .control_settings import Setting, State, kept
from .dataset import Batches, batches
from .engines import engine_of, shared_engines
from .inserted_factors import factored_sites
from .judge import Goal, Judge, Metric
from .kept_back import Others, kept_back
from .progress import shown
from .rescale import can_balance, settled
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
)
from .smooth import smoothed_groups
from .stages import Stages, float_module, folded
from .trials import Trial

KEEP = ("auto", "int16", "float32")
GOOD_SHARE = 0.9
_FEW = 4  # batches on which the noise of large models is measured
_SETTINGS_TRIED = 3  # with layers kept, if the best setting leaves less than GOOD_SHARE in 8 bits
_MOST_TRIED = 6  # states whose integers are tried in order of what is in 8 bits
_LEAST_MARGIN = 0.1  # dB
_FAR = 15.0  # dB below the goal: more than settings gain over what "auto" has found

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
    validation_data: as `dataset`: what accuracy is measured on. None: `dataset`; for min_sqnr, of 8 batches or more
              every fourth does not calibrate then, of a sequence the last ones
    min_sqnr: signal-to-noise ratio of every output that is required, in dB, on the first `samples` batches of
              `validation_data`; without these on the batches that do not calibrate, and on all of `dataset` with noise
              taken for one standard error more. The batches of a model with states form a sequence
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
    with shared_engines(), shown(progress, numbered=True) as show:
        show("float model")
        unseen: list[int] = []
        if min_sqnr is not None and validation_data is None and data is not None:
            unseen = kept_back(data, samples, sequence=bool(module.states))
        judge = Judge(module, judged, samples, goal, unseen)
        data = Others(data, unseen) if data is not None and unseen else data
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
        self._calibrated: dict[str, Setting] = {}  # what ranges depend on → the first setting with these
        self._usual: list[list[float]] = []  # noise of the first setting, see Judge
        self._simulated: dict[str, list[State]] = {}  # name of a setting → what was accurate enough
        self._reason = ""  # why not all settings are tried

    def run(self) -> Controlled:
        """Raises AccuracyError if nothing is accurate enough."""
        tried: list[tuple[Trial, Setting]] = []
        for trial, setting in itertools.chain(self._with_filters(), self._settings()):
            tried.append((trial, setting))
            if trial.reached:
                integers = self._integers(setting, State())
                if integers.reached:
                    return self.chosen(integers, setting.config, partial(setting.table, State()))
        tried.sort(key=lambda pair: -pair[0].sqnr)
        found: list[tuple[float, Setting, list[State]]] = []
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
        raise self.unreached(", or allow layers in float (keep='auto')" if self._keep == "int16" else "", self._reason)

    # ---- settings of 8 bits

    def _with_filters(self) -> Iterator[tuple[Trial, Setting]]:
        """The settings with the filters of spectra in 8 and in 16 bits, which are in float by default, if there are
        any. Often they are most of a network's multiply-accumulates, and 16 bits take half as long as float."""
        filters = float_filters(folded(self.module, self.config, self._data), self.config)
        if not filters:
            return
        for bits in (8,) if self._keep == "float32" else (8, 16):
            config = overridden(self.config, {name: {"precision": f"int{bits}"} for name in filters})
            setting = self._setting(f"{', '.join(filters)} in {bits} bits", config)
            yield self._trial(setting, State()), setting

    def _settings(self) -> Iterator[tuple[Trial, Setting]]:
        """Each setting with its trial. Those that come later build on the best of the earlier ones."""
        default = QConfig()
        best = self._setting(FIRST, self.config)
        trial = self._trial(best, State())
        yield trial, best
        if self._is_far(trial):
            self._reason = f"8 bits are more than {_FAR:g} dB below it, which no other setting makes up for"
            return
        for name, values in _SETTINGS:
            if name != "weight_rounding" and self._is_limited(best):
                self._reason = "with every layer in 16 bits, too, 8-bit weights are not accurate enough"
                return
            if getattr(self._given, name) != getattr(default, name):
                continue
            base = best
            for value in values:
                if getattr(base.config, name) == value or not self._applies(base, name):
                    continue
                setting = self._setting(named(base.name, name, value), replace(base.config, **{name: value}))
                found = self._trial(setting, State())
                yield found, setting
                if found.sqnr > trial.sqnr + BETTER:
                    trial, best = found, setting

    def _is_far(self, trial: Trial) -> bool:
        """Whether only layers in more bits may reach the goal: after all that "auto" measures has been settled."""
        least, auto = self.judge.goal.min_sqnr, self._given.calibrate_mode == "auto" and not self.module.states
        return auto and least is not None and trial.sqnr < least - _FAR

    def _is_limited(self, setting: Setting) -> bool:
        """Whether 16 bits in every layer would not be enough, where no layer may be in float."""
        if self._keep != "int16":
            return False
        return not self._trial(setting, State(wide=frozenset(setting.layers.reads))).reached

    def _applies(self, setting: Setting, field: str) -> bool:
        """Whether there is anything for balancing, equalization and smoothing to do. Balanced channels stay so."""
        if field not in ("balance", "equalize", "smooth"):
            return True
        if setting.config.balance:
            return False
        plain = folded(self.module, setting.config, self._data)
        if field == "balance":
            return can_balance(setting.config) and bool(groups_of(plain.ir["main"]) or factored_sites(plain))
        return bool(groups_of(plain.ir["main"]) if field == "equalize" else smoothed_groups(plain))

    def _setting(self, name: str, config: QConfig) -> Setting:
        if config.bias_correction == "auto":  # biases would come with the table
            return Setting(name, config, self.module, self._data)
        ranges = repr(replace(config, weight_rounding="nearest", bias_correction=False))
        like = self._calibrated.get(ranges)
        new = Setting(name, config, self.module, self._data, like)
        if like is None:
            self._calibrated[ranges] = new
        return new

    # ---- trials

    def _trial(self, setting: Setting, state: State) -> Trial:
        """What the simulation of the whole model gives. A setting must be better than the first one on most batches."""
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
        if state == State() and "noise" in figures:
            self._usual = self._usual or figures["noise"]
            figures = self.judge.like(figures, self._usual)
        trial = self.noted(described, figures, compiled=False, repeated=known, **state.layers())
        if trial.reached:
            self._simulated.setdefault(setting.name, []).append(state)
        return trial

    def _integers(self, setting: Setting, state: State) -> Trial:
        """What the integers give."""

        def size(done: Stages) -> dict[str, float]:
            return {"share": coverage(done.result).share_in_8_bits}

        config, table = kept(setting.config, state), partial(setting.table, state)
        return self.integers(_described(setting, state), config, size, table, **state.layers())

    # ---- layers

    def _accepted(self, setting: Setting, states: list[State]) -> Controlled | None:
        """The first state whose integers are accurate enough, of all that simulate accurately those with most in 8 bits
        first: errors fall differently in integers. Simulations that are better by as much as integers are worse give
        further ones. After some, the states of the path follow."""
        margin, tried = 0.0, 0
        least = self.judge.goal.min_sqnr
        pending = [*self._simulated.get(setting.name, ()), *states]
        done: list[State] = []
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

    def _with_layers(self, setting: Setting, margin: float) -> list[State]:
        """States in which the simulation is accurate enough, by `margin` dB more than required: the smallest, then
        those of the path behind it."""

        def enough(state: State) -> bool:
            trial = self._trial(setting, state)
            return trial.reached and trial.sqnr >= (self.judge.goal.min_sqnr or -np.inf) + margin

        if self._is_limited(setting):
            return []
        noise = self._noise(setting)
        for cheapest in (True, False):  # what is expensive and noisy may have to go, too
            path = setting.layers.path(noise, self._keep, cheapest)
            first = first_enough(path, enough)
            if first is not None:
                return [self._put_back(setting, path[first], enough), *path[first:]]
        return []

    def _noise(self, setting: Setting) -> dict[str, float]:
        """Site → noise in the outputs when it alone is quantized."""
        found = {}
        for number, site in enumerate(setting.narrow):
            self.show(f"{setting.name}: noise of tensor {number + 1} of {len(setting.narrow)}")

            def measure(site: str = site) -> dict[str, Any]:
                return {"noise": self.judge.noise(setting.alone_runner(site), self.few)}

            value, _ = self.journal.value(["noise", repr(setting.config), site], measure)
            found[site] = float(value["noise"])
        return found

    def _put_back(self, setting: Setting, state: State, enough: Callable[[State], bool]) -> State:
        """The state without layers that it does not need, those with most multiply-accumulates tried first."""
        layers = setting.layers
        names = sorted(state.wide | state.in_float, key=lambda name: (-layers.macs[name], name))
        for name in names[:MOST_PUT_BACK]:
            less = State(state.wide - {name}, state.in_float - {name})
            if layers.share(less) > layers.share(state) and enough(less):
                state = less
        return state


def _described(setting: Setting, state: State) -> str:
    parts = [setting.name]
    parts += [f"{layer_count(len(state.wide))} in 16 bits"] if state.wide else []
    parts += [f"{layer_count(len(state.in_float))} in float"] if state.in_float else []
    return ", ".join(parts)
