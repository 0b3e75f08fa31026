"""Live progress of tuning a model: the current task, its best GOP/s and share of the peak, and the time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .measure import Decision, Result
from .space import text_of
from .task import Task


class TuningProgress:
    """A callback for the tuners of all tasks of a model. Shows two bars on a terminal, elsewhere one line per task."""

    def __init__(self, tasks: Sequence[Task], trials: int, peaks: Mapping[tuple[str, str], float], shown: bool) -> None:
        self.peaks = dict(peaks)
        self._console = Console(stderr=True, highlight=False)
        self._shown, self._trials = shown, trials
        bars = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._all = Progress(*bars, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
        self._one = Progress(*bars, TextColumn("{task.fields[best]}"))
        self._total = self._all.add_task("all tasks", total=trials * len(tasks))
        self._done = 0
        self._current: Any = None
        self._bar = self._one.add_task("", total=trials, best="")
        self._live = Live(Group(self._all, self._one), console=self._console, transient=True)

    def __enter__(self) -> TuningProgress:
        if self._shown and self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            self._live.stop()

    def __call__(self, tuner: Any, results: Sequence[Result]) -> None:
        if tuner is not self._current:
            self._finish()
            self._current = tuner
            total = min(self._trials, len(tuner.space) - 1)
            self._one.update(self._bar, description=tuner.task.name, total=total, completed=0, best="")
        best = tuner.best
        self._one.update(self._bar, completed=len(tuner.results), best=self._text(best) if best else "")
        self._all.update(self._total, completed=self._done + min(self._trials, len(tuner.results)))

    def decision(self, decision: Decision) -> None:
        """The end of a task."""
        if self._shown:
            best = decision.best
            gain = f"{1 / best.ratio:.2f}× the default" if best.ratio < 1 else "the default is kept"
            text = f"{best.task.name}: {self._text(best)}, {text_of(best.configuration)}, {gain}"
            self._console.print(text, markup=False)

    def share(self, result: Result) -> float:
        """GOP/s relative to the peak; 0 if that is unknown."""
        workload = result.task.workload
        peak = self.peaks.get((workload.data_dtype, workload.weight_dtype), 0.0)
        return result.gops / peak if peak else 0.0

    def _text(self, result: Result) -> str:
        share = self.share(result)
        return f"{result.gops:.0f} GOP/s" + (f", {share:.0%} of peak" if share else "")

    def _finish(self) -> None:
        """Count a task as complete even if its space was smaller or it stopped early."""
        if self._current is not None:
            self._done += self._trials
            self._all.update(self._total, completed=self._done)
