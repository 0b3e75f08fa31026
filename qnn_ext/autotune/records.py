"""The tuning log: one JSON object per line, appended as soon as it is measured; files merge by concatenation.

A record holds everything it depends on: format, kernel, workload, target. Records that do not fit are ignored with one
warning and never applied. MetaSchedule's JSONDatabase cannot be merged like this: its records name their workload by
line number in a second file, and it refuses a file with a torn last line.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import tvm
from tvm.target import Target

from ..errors import TuningError, TuningWarning
from ..files.reading import read_bytes
from ..files.storage import append_line
from ..topi_int8 import Workload
from ..topi_int8.strategy import Implementation, KnownChoice, tiles_from
from ..topi_int8.workload import workload_from, workload_to
from .measure import Decision, Result
from .space import Configuration, Space, space_for, space_of
from .task import Task, record_target, target_key

FORMAT = 1
MARGIN = 0.97  # the required ratio to the default for a configuration that no final race has confirmed


@dataclass(frozen=True)
class Record:
    """One line of a log.

    key:       kernel, workload and target, as `Task.key`
    fields:    those of the configuration
    seconds, reference, error: as in `Result`
    decided:   for a decision, the number of configurations it chose from; 0 for a measurement
    """

    key: tuple[Any, ...]
    fields: dict[str, Any]
    seconds: float
    reference: float
    error: str
    decided: int = 0

    @property
    def ratio(self) -> float:
        """Time relative to the default's."""
        return self.seconds / self.reference if not self.error else float("inf")


@dataclass(frozen=True)
class Log:
    """The contents of a log, and why lines were ignored: reason -> how many."""

    path: Path
    records: list[Record]
    ignored: Counter[str] = field(default_factory=Counter)

    def warn(self) -> None:
        """One warning for everything that was ignored."""
        if self.ignored:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.ignored.most_common())
            text = f"{self.path}: {sum(self.ignored.values())} records ignored: {reasons}"
            warnings.warn(text, TuningWarning, stacklevel=3)

    @cached_property
    def by_key(self) -> dict[tuple[Any, ...], list[Record]]:
        """The records of each task."""
        found: dict[tuple[Any, ...], list[Record]] = {}
        for record in self.records:
            found.setdefault(record.key, []).append(record)
        return found


Source: TypeAlias = "str | os.PathLike[str] | Iterable[str | bytes | Record]"
"""Where records come from: a log's path, an open file, lines, records."""


def line_of(result: Result, decided: int = 0) -> str:
    """A result as a line of a log. With `decided`, the configuration chosen from that many."""
    task = result.task
    data = {
        "format": FORMAT,
        "kernel": task.kernel,
        "workload": workload_to(task.workload),
        "target": target_key(task.target),
        "configuration": asdict(result.configuration),
        "seconds": result.seconds,
        "reference": result.reference,
        "error": result.error,
        "decided": decided,
        "time": round(time.time(), 1),
        "tvm": tvm.__version__,
    }
    return json.dumps(data, ensure_ascii=False)


def read_log(path: str | os.PathLike[str]) -> Log:
    """The records of a log, without damaged lines and without a last line whose writer was killed.

    Raises TuningError if the file cannot be read or contains no record at all.
    """
    path = Path(path)
    try:
        lines = read_bytes(path, TuningError).split(b"\n")
    except TuningError as error:
        raise TuningError(f"cannot read the tuning log {error}") from None
    return _log(path, lines)


def log_of(source: Source) -> Log:
    """The records of a log by its path, of an open file, or of a sequence of lines or records.

    Raises TuningError as `read_log` does.
    """
    if isinstance(source, (str, os.PathLike)):
        return read_log(source)
    items = list(source)
    path = Path(str(getattr(source, "name", "records")))
    log = _log(path, [item for item in items if not isinstance(item, Record)])
    return Log(path, [*(item for item in items if isinstance(item, Record)), *log.records], log.ignored)


def _log(path: Path, lines: Sequence[str | bytes]) -> Log:
    last = lines[-1] if lines else b""  # empty, or partly written by a process that was killed
    records, ignored = [], Counter[str]()
    for line in lines:
        if not line.strip():
            continue
        try:
            records.append(parse_line(line))
        except Stale as reason:
            ignored[str(reason)] += 1
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            unfinished = line is last and line[:1] in ("{", b"{")
            ignored["in an unfinished last line" if unfinished else "unreadable"] += 1
    if set(ignored) == {"unreadable"} and not records:
        raise TuningError(f"{path} is not a tuning log: none of its lines is a record")
    if set(ignored) == {FOREIGN} and not records:
        raise TuningError(f"{path} is a log of TVM's AutoTVM, whose templates are gone: tune again, with `autotune`")
    return Log(path, records, ignored)


class Stale(Exception):
    """Why a record no longer applies."""


FOREIGN = "of TVM's AutoTVM"


def parse_line(line: str | bytes) -> Record:
    """The record in a line of a log. Raises Stale, and ValueError, KeyError or TypeError for what is no record."""
    data = json.loads(line)
    if isinstance(data, dict) and "format" not in data and {"input", "config", "result"} <= data.keys():
        raise Stale(FOREIGN)
    return _parse(data)


def _parse(data: Mapping[str, Any]) -> Record:
    if data["format"] != FORMAT:
        raise Stale(f"of format {data['format']}, not {FORMAT}")
    try:
        workload = workload_from(data["workload"])
    except (KeyError, TypeError):
        raise Stale("of workloads that this version does not know") from None
    target = {name: tuple(value) if isinstance(value, list) else value for name, value in data["target"].items()}
    key = (str(data["kernel"]), workload, tuple(sorted(target.items())))
    configuration = dict(data["configuration"])
    hash((key, tuple(configuration.values())))  # TypeError if a value is a list or an object
    seconds, reference = float(data["seconds"]), float(data["reference"])
    if not data["error"] and not (seconds > 0 and reference > 0):
        raise ValueError("a time must be positive")
    return Record(key, configuration, seconds, reference, str(data["error"]), int(data["decided"]))


def append(path: str | os.PathLike[str], line: str) -> None:
    """Append a line in one write, after ending any line that a killed process left unfinished. Raises TuningError."""
    append_line(path, line, TuningError)


def known_results(log: Log, task: Task, space: Space) -> tuple[list[Result], Decision | None]:
    """What a log contains about a task: the latest result of each configuration, and the last decision."""
    results: dict[Configuration, Result] = {}
    decision = None
    for record in log.by_key.get(task.key(), ()):
        configuration = space.parse(record.fields)
        if configuration is None:
            continue
        result = Result(task, configuration, record.seconds, record.reference, record.error)
        if record.error.startswith("lost"):
            continue
        if record.decided:
            decision = Decision(result, record.decided)
        else:
            results[configuration] = result
    return list(results.values()), decision


# ---- what a build takes from a log -------------------------------------------------------------------------------


class History(KnownChoice):
    """Chooses the configurations of a build from a log. Called as `strategy.tiles_from` requires."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._chosen: dict[tuple[Any, ...], Configuration | None] = {}
        self._targets = {record.key[2] for record in log.records}
        self._warned: set[str] = set()
        self.applied: dict[str, Configuration] = {}
        """Workload -> configuration, of those that came from the log."""

    def __call__(self, item: Implementation, workload: Workload, target: Target) -> Configuration | None:
        task = Task(workload, target, item.name)
        key = task.key()
        if key not in self._chosen:
            self._warn_foreign(key[2])
            self._chosen[key] = self._choose(task, item)
        return self._chosen[key]

    def digest(self, target: Target) -> str:
        wanted = record_target(target)
        used = [record for record in self._log.records if record.key[2] == wanted]
        return hashlib.sha256(repr(used).encode()).hexdigest()

    def _choose(self, task: Task, item: Implementation) -> Configuration | None:
        records = self._log.by_key.get(task.key())
        if not records or item.tiles is None:
            return None
        space = space_for(item, task.workload)
        legal = [record for record in records if space.parse(record.fields) is not None]
        if len(legal) < len(records):
            self._warn("some configurations no longer exist, and their records are ignored: tune again")
        best = best_of(legal)
        chosen = best and space.parse(best.fields)
        if chosen is not None:
            self.applied[task.name] = chosen
        return chosen

    def _warn_foreign(self, target: tuple[Any, ...]) -> None:
        others = sum(record.key[2] != target for record in self._log.records)
        if others:
            self._warn(f"{others} of {len(self._log.records)} records are for other targets and are ignored")

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(f"{self._log.path}: {text}", TuningWarning, stacklevel=2)


def best_of(records: list[Record]) -> Record | None:
    """The record to apply: the decision from the most configurations, the latest of equals; without a decision, the
    fastest measurement, if it gains more than noise could. None: keep the default."""
    decisions = [record for record in records if record.decided and not record.error]
    if decisions:
        best = max(reversed(decisions), key=lambda record: record.decided)
        return best if best.ratio < 1 else None
    measured = [record for record in records if record.ratio < MARGIN]
    return min(measured, key=lambda record: record.ratio, default=None)


@contextmanager
def apply_history_best(path: Source) -> Iterator[History]:
    """Within the context, `qnn_ext.build` uses the best configurations of a tuning log.

    path: of the log; or an open file, or a sequence of its lines or of Records

    Products that the log does not have for this target keep their defaults. Raises TuningError if the log cannot be
    read; warns once about ignored records: those of other targets, formats or design spaces.
    """
    log = log_of(path)
    log.warn()
    history = History(log)
    with tiles_from(history):
        yield history


def best_configuration(path: str | os.PathLike[str], task: Task) -> Configuration | None:
    """The configuration that `apply_history_best` uses for a task; None: the default."""
    space = space_of(task)
    records = read_log(path).by_key.get(task.key(), [])
    best = best_of([record for record in records if space.parse(record.fields) is not None])
    return best and space.parse(best.fields)


Callback = Callable[[Any, list[Result]], None]
"""Called with the tuner and new results; an empty list means that the log already had some."""
