"""What a search for accuracy tries: settings of quantization, each with layers kept in 16 bits or in float.

A `Setting` is a configuration and what simulating it needs, a `State` the layers that are kept, and `Layers` says how
much of the multiply-accumulates a state leaves in 8 bits, and by which path of states noise falls. `control` searches
among them.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import NothingMarkedError, QuantizationWarning
from ..module import QnnModule
from ..op.macs import macs_of
from ..passes.bodies import named_bindings
from .analysis import QuantizedLayer, quantized_layers
from .annotate import annotate, sites
from .bias_correction import mean_errors
from .calibrate import calibrate
from .config import QConfig
from .dataset import Batches
from .engines import Runner, Shared, engine_of, shared_engine_of
from .readers import OwnReaders, with_own_readers
from .search import overridden
from .stages import Stages, stages
from .switchable import Observed, observations
from .table import CalibrationTable
from .tentative import settings_of, tentative

_ENOUGH = 0.9  # of the noise that float would remove: then 16 bits will do


@dataclass(frozen=True)
class State:
    """Layers that are not in 8 bits, by name."""

    wide: frozenset[str] = frozenset()
    in_float: frozenset[str] = frozenset()

    def key(self) -> list[list[str]]:
        return [sorted(self.wide), sorted(self.in_float)]

    def layers(self) -> dict[str, tuple[str, ...]]:
        """As fields of a trial."""
        return {"in_16_bits": tuple(sorted(self.wide)), "in_float": tuple(sorted(self.in_float))}


class Setting:
    """A configuration, and what simulating it with any layers kept needs; all of it is made when first asked for."""

    def __init__(
        self, name: str, config: QConfig, module: QnnModule, data: Batches, like: Setting | None = None
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
        return self._calibrated(kept(self.config, State(wide=frozenset(names))))

    def _calibrated(self, config: QConfig) -> tuple[QnnModule, CalibrationTable]:
        annotated = annotate(self._stages["fold"], config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", QuantizationWarning)
            return annotated, calibrate(annotated, self._data, config)

    def table(self, state: State) -> CalibrationTable:
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
    def layers(self) -> Layers:
        annotated = self._stages["annotate"]
        found = quantized_layers(annotated, list(self.narrow.values()))
        return Layers(annotated, found, self.narrow, set(self._own.sites.values()))

    @cached_property
    def _own(self) -> OwnReaders:
        """What is simulated: a layer in float reads what others read in 8 bits, but before that is rounded."""
        return with_own_readers(self._stages["calibrate"])

    def module(self, state: State) -> QnnModule:
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


class Layers:
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

    def bits(self, state: State) -> dict[str, int]:
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

    def share(self, state: State) -> float:
        """Of the multiply-accumulates in 8 bits; 1 if there are none."""
        return self.narrow_macs(state, self.bits(state)) / self.total if self.total else 1.0

    def narrow_macs(self, state: State, bits: Mapping[str, int]) -> int:
        """Of the layers that read nothing wider."""
        return sum(
            macs
            for name, macs in self.macs.items()
            if name not in state.in_float and all(bits[site] == 8 for site in self.reads[name])
        )

    def path(self, noise: Mapping[str, float], keep: str, cheapest: bool = True) -> list[State]:
        """States that each keep one layer more: always the one that removes most noise, for its multiply-accumulates if
        `cheapest`. In the last one something is still quantized."""
        state = State()
        states: list[State] = []
        smallest = 1e-3 * self.total / max(1, len(self.reads)) or 1.0
        left = dict(noise)
        while True:
            bits = self.bits(state)
            before = self.narrow_macs(state, bits)
            best: tuple[float, State] | None = None
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
        self, state: State, name: str, bits: Mapping[str, int], noise: Mapping[str, float], keep: str
    ) -> Iterator[tuple[State, float]]:
        """How a layer can be kept, and the noise that removes."""
        if name in state.in_float:
            return
        as_float = State(state.wide - {name}, state.in_float | {name})
        in_float = self._removed(as_float, name, bits, noise)
        as_wide = State(state.wide | {name}, state.in_float)
        widened = 0.0 if name in state.wide else self._removed(as_wide, name, bits, noise)
        if keep == "int16" or (keep == "auto" and name not in state.wide and widened >= _ENOUGH * in_float):
            yield as_wide, widened
        else:
            yield as_float, in_float

    def _removed(self, state: State, name: str, bits: Mapping[str, int], noise: Mapping[str, float]) -> float:
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


def kept(config: QConfig, state: State) -> QConfig:
    """The configuration with layers kept in 16 bits and in float. 16 bits have steps enough for the largest values,
    which a calibrator for 8 bits may clip."""
    wide = {"precision": "int16", "calibrate_mode": "minmax"}
    added = {name: wide for name in sorted(state.wide)}
    return overridden(config, {**added, **{name: {"precision": "float32"} for name in sorted(state.in_float)}})
