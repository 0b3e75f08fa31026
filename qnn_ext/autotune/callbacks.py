"""Callbacks of tuners: the log, and a progress bar for one task."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..errors import TuningError
from .measure import Decision, Result
from .records import Log, append, known_results, line_of, read_log
from .space import Space
from .task import Task


class LogFile:
    """Appends every result to a log at once, and tells tuners what the log already contains."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._log: Log | None = None

    def known(self, task: Task, space: Space) -> tuple[list[Result], Decision | None]:
        """A task's results and last decision in the log, as it was when tuning began."""
        if self._log is None:
            self._log = read_log(self.path) if self.path.exists() else Log(self.path, [])
            self._log.warn()
        return known_results(self._log, task, space)

    def __call__(self, tuner: Any, results: list[Result]) -> None:
        for result in results:
            append(self.path, line_of(result))

    def decision(self, decision: Decision) -> None:
        """Append the decision."""
        append(self.path, line_of(decision.best, decision.measured))


def log_to_file(path: str | os.PathLike[str]) -> LogFile:
    """A callback that records all results in a log; with it, a tuner skips configurations that the log contains."""
    return LogFile(path)


SI_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


class ProgressBar:
    """One line on a terminal: number of configurations measured, the best operations per second, time left."""

    def __init__(self, total: int, prefix: str = "", si_prefix: str = "G") -> None:
        if si_prefix not in SI_PREFIXES:
            raise TuningError(f"si_prefix must be one of {list(SI_PREFIXES)}, found {si_prefix!r}")
        self._unit, self._scale = f"{si_prefix}OP/s", 1e9 / SI_PREFIXES[si_prefix]
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[best]}"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._total = total
        self._task = self._progress.add_task(prefix, total=total, best="")

    def __call__(self, tuner: Any, results: list[Result]) -> None:
        self._progress.start()
        best = tuner.best
        text = f"{best.gops * self._scale:.1f} {self._unit}, {1 / best.ratio:.2f}× the default" if best else ""
        self._progress.update(self._task, completed=len(tuner.results), best=text)
        if len(tuner.results) >= self._total:
            self._progress.stop()

    def decision(self, decision: Decision) -> None:
        """The end of the task."""
        self._progress.stop()


def progress_bar(total: int, prefix: str = "", si_prefix: str = "G") -> ProgressBar:
    """A callback that shows the progress of one task of `total` trials; si_prefix: of operations per second, "M"."""
    return ProgressBar(total, prefix, si_prefix)
