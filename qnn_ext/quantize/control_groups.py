"""Accuracy control for weights in groups: a requested accuracy with as few bits of weights as possible.

1. Settings that take no more bits (scales, AWQ, GPTQ) are tried one after the other, each on top of the best so far,
   until one is accurate enough.
2. If none is, layers get more bits, 4 or 8, or stay in float: always the layer and the number of bits that remove most
   noise from the model's outputs for the bits they add. The noise of a layer is measured with it alone quantized. How
   many layers are needed is found by bisection; then those that turn out not to be needed are put back.

Every trial is the model that would be the result, compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..module import QnnModule
from .config import QConfig
from .dataset import Batches
from .engines import engine_of
from .grouped.simulation import Simulation
from .search import BETTER, FIRST, MOST_PUT_BACK, Controlled, Search, first_enough, layer_count, named, overridden
from .stages import folded
from .trials import Trial

IN_FLOAT = 32
_LEVELS = (2, 4, 8, IN_FLOAT)

# fields of QConfig and the values tried, if the user left them alone; those of NEEDING_DATA only if there are data
_SETTINGS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("weight_scale", ("mse", "hqq")),
    ("smooth", ("awq",)),
    ("weight_rounding", ("gptq",)),
)
_NEEDING_DATA = ("smooth", "weight_rounding")

Raised = Mapping[str, int]  # layer → its bits, of those that have more than configured


class _Layers:
    """bits: as configured, by layer; sizes: how many weights each has"""

    def __init__(self, bits: Mapping[str, int], sizes: Mapping[str, int]) -> None:
        self.bits, self.sizes = bits, sizes
        self.total = sum(sizes.values())

    def size(self, raised: Raised) -> dict[str, float]:
        """`share` and `bits` of a trial."""
        bits = {**self.bits, **raised}
        in_float = sum(self.sizes[name] for name, found in bits.items() if found == IN_FLOAT)
        return {
            "share": 1 - in_float / self.total,
            "bits": sum(self.sizes[name] * found for name, found in bits.items()) / self.total,
        }

    def path(self, noise: Mapping[str, Mapping[int, float]]) -> list[Raised]:
        """Each with one layer raised further: always what removes most noise for the bits it adds. In the last one
        something is still quantized. noise: layer → bits → its noise alone"""
        raised: Raised = {}
        states: list[Raised] = []
        while True:
            steps = [
                (self._gain(name, now, then, noise[name]), name, then)
                for name, now in {**self.bits, **raised}.items()
                for then in _LEVELS
                if then > now
            ]
            gain, name, then = max(steps, key=lambda step: step[0], default=(0.0, "", 0))
            raised = {**raised, name: then}
            if gain <= 0 or all(raised.get(layer) == IN_FLOAT for layer in self.bits):
                return states
            states.append(raised)

    def _gain(self, name: str, now: int, then: int, noise: Mapping[int, float]) -> float:
        return (noise[now] - noise.get(then, 0.0)) / ((then - now) * self.sizes[name])


@dataclass
class _Setting:
    name: str
    config: QConfig
    module: QnnModule
    data: Batches | None

    @cached_property
    def simulation(self) -> Simulation:
        return Simulation(folded(self.module, self.config, self.data), self.config, self.data)

    @cached_property
    def layers(self) -> _Layers:
        return _Layers(self.simulation.layers, self.simulation.sizes)


class GroupSearch(Search):
    def run(self) -> Controlled:
        """Raises AccuracyError if nothing is accurate enough."""
        best: tuple[Trial, _Setting] | None = None
        for trial, setting in self._settings():
            if trial.reached:
                return self.chosen(trial, setting.config)
            best = trial, setting
        assert best is not None, "the configuration itself is tried"
        setting = best[1]

        def enough(raised: Raised) -> bool:
            return self._trial(setting, raised).reached

        path = setting.layers.path(self._noise(setting))
        first = first_enough(path, enough)
        if first is None:
            raise self.unreached()
        raised = self._put_back(setting, path[first], enough)
        return self.chosen(self._trial(setting, raised), _raised(setting.config, raised))

    def _settings(self) -> Iterator[tuple[Trial, _Setting]]:
        """Each setting that is better than those before, with its trial."""
        default = QConfig()
        best = self._setting(FIRST, self.config)
        trial = self._trial(best, {})
        yield trial, best
        for name, values in _SETTINGS:
            if getattr(self.config, name) != getattr(default, name) or (name in _NEEDING_DATA and self.data is None):
                continue
            base = best
            for value in values:
                setting = self._setting(named(base.name, name, value), replace(base.config, **{name: value}))
                found = self._trial(setting, {})
                if found.reached or found.sqnr > trial.sqnr + BETTER:
                    trial, best = found, setting
                    yield trial, best

    def _setting(self, name: str, config: QConfig) -> _Setting:
        return _Setting(name, config, self.module, self.data)

    def _trial(self, setting: _Setting, raised: Raised) -> Trial:
        by_bits = {level: tuple(sorted(name for name, bits in raised.items() if bits == level)) for level in _LEVELS}
        parts = [f"{layer_count(len(by_bits[bits]))} in {bits} bits" for bits in (4, 8) if by_bits[bits]]
        parts += [f"{layer_count(len(by_bits[IN_FLOAT]))} in float"] if by_bits[IN_FLOAT] else []
        return self.integers(
            ", ".join([setting.name, *parts]),
            _raised(setting.config, raised),
            lambda done: setting.layers.size(raised),
            in_4_bits=by_bits[4],
            in_8_bits=by_bits[8],
            in_float=by_bits[IN_FLOAT],
        )

    def _noise(self, setting: _Setting) -> dict[str, dict[int, float]]:
        """Layer → bits → noise in the outputs when it alone has so many."""
        layers, simulation = setting.layers, setting.simulation
        for number, name in enumerate(layers.bits):
            self.show(f"{setting.name}: noise of layer {number + 1} of {len(layers.bits)}")
            self.report.noise[name] = found = {}
            for bits in _LEVELS[:-1]:
                if bits < layers.bits[name]:
                    continue

                def measure(name: str = name, bits: int = bits) -> dict[str, Any]:
                    runner = engine_of(simulation.alone(name, bits), stepped=True)
                    return {"noise": self.judge.noise(runner, self.few)}

                value, _ = self.journal.value(["noise", repr(setting.config), name, bits], measure)
                found[bits] = float(value["noise"])
        return self.report.noise

    def _put_back(self, setting: _Setting, raised: Raised, enough: Callable[[Raised], bool]) -> Raised:
        """The state with fewer bits for layers that do not need them, those with most bits added tried first."""
        layers = setting.layers

        def added(name: str) -> int:
            return (raised[name] - layers.bits[name]) * layers.sizes[name]

        for name in sorted(raised, key=lambda name: (-added(name), name))[:MOST_PUT_BACK]:
            others = {other: bits for other, bits in raised.items() if other != name}
            between = [{name: bits} for bits in _LEVELS if layers.bits[name] < bits < raised[name]]
            less = next((state for more in ({}, *between) if enough(state := {**others, **more})), None)
            raised = raised if less is None else less
        return raised


def _raised(config: QConfig, raised: Raised) -> QConfig:
    fields = {bits: {"nbit_weight": bits} if bits < IN_FLOAT else {"precision": "float32"} for bits in _LEVELS}
    return overridden(config, {name: fields[raised[name]] for name in sorted(raised)})
