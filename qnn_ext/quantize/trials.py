"""What a search for accuracy has measured: its trials, and the journal that lets an interrupted search go on."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import QuantizationError
from ..files.reading import read_text
from ..files.storage import append_line, make_folder

JOURNAL = "trials.jsonl"


@dataclass(frozen=True)
class Trial:
    """One setting of the whole model, measured.

    setting:  what differs from the configuration at the start
    in_16_bits, in_float: layers that this trial keeps there
    share:    of the multiply-accumulates whose operands both have at most 8 bits
    sqnr:     of the model's worst output, in dB; metric: of the user's function, None without one
    seconds:  that measuring took
    compiled: whether integers were measured, and not their simulation in float
    reached:  whether this is accurate enough
    repeated: whether the figures come from an earlier, interrupted search

    Of weights in groups, whose trials are all compiled:
    in_4_bits, in_8_bits: layers that this trial gives so many bits, which are more than configured
    bits:     of a weight in the mean, 32 in float; scales do not count. share: of the weights that are not in float
    """

    setting: str
    in_16_bits: tuple[str, ...]
    in_float: tuple[str, ...]
    share: float
    sqnr: float
    metric: float | None
    seconds: float
    compiled: bool
    reached: bool
    repeated: bool = False
    in_4_bits: tuple[str, ...] = ()
    in_8_bits: tuple[str, ...] = ()
    bits: float | None = None

    @property
    def summary(self) -> str:
        """The setting with its figures, in one line."""
        figures = "" if self.metric is None else f", metric {self.metric:.6g}"
        shown = "exact" if self.sqnr == math.inf else f"{self.sqnr:.1f} dB"
        size = f"{100 * self.share:.1f} % of the multiply-accumulates in 8 bits"
        if self.bits is not None:
            size = f"{self.bits:.2f} bits a weight"
        return f"{self.setting}: {shown}{figures}, {size}"


@dataclass
class SearchReport:
    """All that a search tried.

    goal:   what was requested, in words; reference: the metric of the float model
    trials: in order; chosen: the one of the result, measured on its integers, None if the goal was not reached
    noise:  of a search with weights in groups that came to layers: layer → bits → Σ over outputs of noise / signal when
            that layer alone has its weights in so many bits
    """

    goal: str
    reference: float | None
    trials: list[Trial] = field(default_factory=list)
    chosen: Trial | None = None
    noise: dict[str, dict[int, float]] = field(default_factory=dict)

    @property
    def in_groups(self) -> bool:
        """Whether weights in groups were tried."""
        return any(trial.bits is not None for trial in self.trials)

    @property
    def best(self) -> Trial | None:
        """The most accurate trial, by the metric if there is one. A simulation that reached a goal which no integers
        reached does not count."""
        found = [trial for trial in self.trials if trial.compiled or not trial.reached]
        return max(found, key=lambda t: (t.metric if t.metric is not None else 0.0, t.sqnr), default=None)


class Journal:
    """Figures by what they were measured of, kept in a file of a work folder if there is one.

    Each figure is appended to the file as soon as it is known, as one line, so that whatever ends the process loses at
    most the measurement it was in. context: identifies model, data and goal
    """

    def __init__(self, folder: str | os.PathLike | None, context: str) -> None:
        self._context = context
        self._known: dict[str, dict[str, Any]] = {}
        self._earlier: set[str] = set()
        self._path = None if folder is None else Path(folder) / JOURNAL
        if folder is not None and self._path is not None:
            make_folder(folder, QuantizationError)
            if self._path.exists():
                self._read(read_text(self._path, QuantizationError))
                self._earlier = set(self._known)

    def _read(self, text: str) -> None:
        for line in text.splitlines():
            try:
                record = json.loads(line)
                self._known[record["key"]] = dict(record["value"])
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # a line that a killed process did not finish

    def value(self, what: Any, measure: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], bool]:
        """The figures of `what` (JSON values), measured if they are not known, and whether they are from the file."""
        text = json.dumps([self._context, what], sort_keys=True, ensure_ascii=False)
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        if key in self._known:
            return self._known[key], key in self._earlier
        found = self._known[key] = measure()
        if self._path is not None:
            append_line(self._path, json.dumps({"key": key, "value": found}), QuantizationError)
        return found, False
