"""What searches for a required accuracy have in common: measurements that are kept, trials that are noted, layers that
are treated apart. Which settings and layers there are to try is for `control` and `control_groups`."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ..compiling.build import compile_module
from ..errors import AccuracyError
from ..module import QnnModule
from .config import QConfig
from .dataset import Batches
from .judge import Judge, digest_of
from .stages import Stages, stages
from .table import CalibrationTable, fingerprint
from .trials import Journal, SearchReport, Trial

BETTER = 0.05  # dB that a setting must gain to be kept
MOST_PUT_BACK = 12

Candidate = TypeVar("Candidate")
MakeTable = Callable[[], CalibrationTable]


@dataclass(frozen=True)
class Controlled:
    """The result of a search. stages: of quantization with `config`, the one chosen, in which `balance`,
    `equalize` and `smooth` are no longer "auto", and with its calibration table `stages.table`; report: what was
    tried."""

    stages: Stages
    config: QConfig
    report: SearchReport


class Search:
    """Quantizations of one module, measured and noted.

    data: that calibrate, None for none; few: batches on which noise is measured; work: folder of the journal
    show: is told what is being tried; config: what is tried first
    """

    def __init__(
        self,
        module: QnnModule,
        data: Batches | None,
        judge: Judge,
        few: int,
        work: str | os.PathLike | None,
        show: Callable[[str], None],
        config: QConfig,
    ) -> None:
        self.module, self.data, self.judge, self.few, self.show = module, data, judge, few, show
        self.config = config
        seen = "" if data is None else digest_of(data)
        self.journal = Journal(work, repr([fingerprint(module), seen, judge.digest, few, judge.reference]))
        self.report = SearchReport(judge.described, judge.reference)
        self._last: tuple[QConfig, Stages] | None = None

    def integers(
        self,
        described: str,
        config: QConfig,
        size: Callable[[Stages], Mapping[str, float]],
        table: MakeTable | None = None,
        **layers: tuple[str, ...],
    ) -> Trial:
        """What the integers of a configuration give. table: makes its ranges, None: calibration does; size, layers:
        further fields of the trial"""

        def measure() -> dict[str, Any]:
            started = time.perf_counter()
            done = self._quantized(config, table)
            figures = self.judge.figures(compile_module(done.result))
            return {**figures, **size(done), "seconds": time.perf_counter() - started}

        self.show(f"integers: {described}")
        figures, known = self.journal.value(["integers", repr(config), table is not None], measure)
        return self.noted(described, figures, compiled=True, repeated=known, **layers)

    def noted(self, described: str, figures: Mapping[str, Any], **about: Any) -> Trial:
        """The trial with these figures of the journal."""
        measured = {**figures, "sqnr": np.inf if figures["sqnr"] is None else float(figures["sqnr"])}
        reached = self.judge.goal.reached(measured["sqnr"], measured["metric"], self.judge.reference)
        measured.pop("noise", None)
        trial = Trial(setting=described, reached=reached, **{"in_16_bits": (), "in_float": (), **measured, **about})
        if all(_identity(one) != _identity(trial) for one in self.report.trials):
            self.report.trials.append(trial)
        return trial

    def _quantized(self, config: QConfig, table: MakeTable | None) -> Stages:
        """The stages of a configuration; the last ones are kept."""
        if self._last is None or self._last[0] != config:
            self._last = config, stages(self.module, None, self.data, config, None if table is None else table())
        return self._last[1]

    def chosen(self, trial: Trial, config: QConfig, table: MakeTable | None = None) -> Controlled:
        """The result, once its trial of integers is accurate enough. table: as of `integers`"""
        self.report.chosen = trial
        return Controlled(self._quantized(config, table), config, self.report)

    def unreached(self, remedy: str = "", reason: str = "") -> AccuracyError:
        """No trial is accurate enough. reason: why there are not more of them"""
        best = self.report.best
        return AccuracyError(
            f"no setting tried reaches {self.report.goal}; the best was {best.summary if best else 'none'}."
            f"{f' Others were not tried: {reason}.' if reason else ''} Lower the goal, or give more data{remedy}",
            self.report,
        )


def first_enough(path: Sequence[Candidate], enough: Callable[[Candidate], bool]) -> int | None:
    """The place of the first candidate that is accurate enough, if those behind it are too; None if the last is not."""
    if not path or not enough(path[-1]):
        return None
    low, high = 0, len(path) - 1  # path[high] is accurate enough
    while low < high:
        middle = (low + high) // 2
        if enough(path[middle]):
            high = middle
        else:
            low = middle + 1
    return high


def overridden(config: QConfig, layers: Mapping[str, Mapping[str, Any]]) -> QConfig:
    """The configuration with fields of layers by their names, behind its own overrides."""
    overrides = dict(config.overrides)
    for name, values in layers.items():
        pattern = glob.escape(name)
        overrides[pattern] = {**overrides.pop(pattern, {}), **values}
    return replace(config, overrides=overrides)


def named(base: str, field: str, value: Any) -> str:
    """A setting on top of another."""
    added = field if value is True else f"{field}={value}"
    return added if base == FIRST else f"{base}, {added}"


FIRST = "as configured"


def layer_count(count: int) -> str:
    """1 layer, 2 layers."""
    return f"{count} layer{'' if count == 1 else 's'}"


def _identity(trial: Trial) -> tuple[Any, ...]:
    return trial.setting, trial.in_16_bits, trial.in_float, trial.in_4_bits, trial.in_8_bits, trial.compiled
