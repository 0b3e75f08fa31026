"""What tuning gained: a before/after table, and the curve of the best time over trials."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..errors import TuningError
from ..files.storage import replacing
from .measure import Decision
from .space import text_of
from .task import Task


@dataclass(frozen=True)
class Outcome:
    """How one task ended.

    decision: what was chosen; None if the task could not be measured
    curve:    least time relative to the default's after each trial
    new:      how many of the trials were measured now rather than already known
    errors:   those of the configurations that failed
    seconds:  how long it took
    """

    task: Task
    decision: Decision | None
    curve: tuple[float, ...]
    new: int
    errors: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Report:
    """The outcomes of all tasks of a model.

    peaks:         GOP/s of a product whose operands stay in the L1 cache, by their dtypes
    before, after: seconds of the whole model with the defaults and with the log, timed in turns; 0 if it was not run
                   here
    """

    outcomes: Sequence[Outcome]
    peaks: Mapping[tuple[str, str], float]
    before: float
    after: float

    def rows(self) -> list[list[str]]:
        """The table: one row per task with layers, times, GOP/s, share of the peak and configuration."""
        rows = []
        for outcome in self.outcomes:
            task, decision = outcome.task, outcome.decision
            row = [task.name, str(task.weight)]
            if decision is None:
                rows.append([*row, *[""] * 5, "not measured"])
                continue
            best = decision.best
            gops = task.gops / best.seconds
            peak = self.peaks.get((task.workload.data_dtype, task.workload.weight_dtype), 0.0)
            row += [f"{best.reference * 1e6:.3g}", f"{best.seconds * 1e6:.3g}", f"{1 / best.ratio:.2f}"]
            row += [f"{gops:.0f}", f"{gops / peak:.0%}" if peak else "", text_of(best.configuration)]
            rows.append(row)
        return rows

    HEADER = ("task", "layers", "default µs", "tuned µs", "×", "GOP/s", "peak", "configuration")

    def markdown(self) -> str:
        """The table in Markdown, with the summary below it."""
        lines = ["| " + " | ".join(self.HEADER) + " |", "|---|" + "---:|" * 6 + "---|"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows()]
        return "\n".join([*lines, "", self.summary()])

    def summary(self) -> str:
        """One line: how many tasks changed, and the time this saves in the products and in the model."""
        decided = [(outcome.task, outcome.decision.best) for outcome in self.outcomes if outcome.decision]
        changed = sum(best.ratio < 1 for _, best in decided)
        default, tuned = (
            sum(task.weight * getattr(best, name) for task, best in decided) for name in ("reference", "seconds")
        )
        text = f"{changed} of {len(self.outcomes)} tasks changed"
        if default:
            text += f"; products {default * 1e3:.3f} → {tuned * 1e3:.3f} ms"
        if self.before:
            text += f"; model {self.before * 1e3:.3f} → {self.after * 1e3:.3f} ms"
        measured = sum(outcome.new for outcome in self.outcomes)
        return text + f"; {measured} configurations measured in {sum(item.seconds for item in self.outcomes):.0f} s"

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Plot the best time relative to the default's over trials, for each task that changed and for all together.

        Raises TuningError if matplotlib is not installed or the picture cannot be written.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            raise TuningError("a plot needs matplotlib: pip install 'qnn-ext[bench]'") from None
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        length = max((len(outcome.curve) for outcome in self.outcomes), default=0)
        total, weights = np.zeros(length + 1), 0.0
        for outcome in self.outcomes:
            curve = np.concatenate([[1.0], np.asarray(outcome.curve)])
            curve = np.concatenate([curve, np.full(length + 1 - len(curve), curve[-1])])
            weight = outcome.task.weight * (outcome.decision.best.reference if outcome.decision else 0.0)
            total, weights = total + weight * curve, weights + weight
            if curve[-1] < 1:
                axes.step(range(length + 1), curve, where="post", linewidth=0.8, label=outcome.task.name)
        if weights:
            axes.step(range(length + 1), total / weights, where="post", color="black", linewidth=2, label="all tasks")
        axes.set(xlabel="trials", ylabel="best time / default's time", title="Tuning")
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize="x-small")
        form = Path(path).suffix[1:] or "png"
        known = figure.canvas.get_supported_filetypes()
        if form not in known:
            raise TuningError(f"a plot must have one of the formats {', '.join(sorted(known))}, found {form!r}: {path}")
        with replacing(path, TuningError) as file:
            figure.savefig(file, format=form)
