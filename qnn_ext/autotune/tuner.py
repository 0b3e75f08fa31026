"""Tuners: which configurations of a task to measure next, and the loop that measures, records and decides.

The default is never measured as a candidate: it takes turns with every candidate, so its time is known from the first
one on. After the last candidate, the fastest few race the default once more, for longer; only a winner of that is
chosen.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence

from ..errors import TuningWarning
from .measure import Decision, MeasureOption, Result, measure
from .measure import measure_option as this_machine
from .records import Callback
from .space import Configuration, Space, space_of
from .task import Task

BATCH = 8  # candidates measured between updates of the tuner
FINALISTS = 3
GAIN = 0.99  # a candidate must win the final race by this factor, or the default stays


class Tuner:
    """Base of all tuners. Subclasses say what to measure next in `propose`."""

    def __init__(self, task: Task, seed: int = 0) -> None:
        self.task = task
        self.space = space_of(task)
        self.candidates = self.space.configurations
        """What may be measured, in the order of predicted cost."""
        self.results: dict[Configuration, Result] = {}
        self.new = 0
        """How many were measured by this tuner, not read from a log."""
        self.curve: list[float] = []
        """Least time over the default's after each measurement."""
        self.random = random.Random(seed)

    # ---- what a tuner decides ------------------------------------------------------------------------------------

    def propose(self, count: int, left: list[Configuration]) -> list[Configuration]:
        """Up to `count` configurations to measure next, out of those `left`, which are in order of predicted cost."""
        raise NotImplementedError

    def learn(self, results: Sequence[Result]) -> None:
        """Take note of new results."""

    # ---- the loop ------------------------------------------------------------------------------------------------

    @property
    def best(self) -> Result | None:
        """The fastest so far; None before the first result without error."""
        valid = [result for result in self.results.values() if not result.error]
        return min(valid, key=lambda result: result.ratio, default=None)

    def next_batch(self, count: int) -> list[Configuration]:
        """The configurations to measure next; empty when the space is exhausted."""
        taken = {*self.results, self.space.default}
        left = [item for item in self.candidates if item not in taken]
        return self.propose(count, left) if len(left) > count else left

    def update(self, results: Sequence[Result]) -> None:
        """Take note of results, measured or from a log."""
        for result in results:
            self.results[result.configuration] = result
            self.curve.append(min(self.curve[-1] if self.curve else 1.0, result.ratio))

    def tune(
        self,
        n_trial: int,
        measure_option: MeasureOption | None = None,
        early_stopping: int | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Decision | None:
        """Measure up to `n_trial` configurations and decide.

        n_trial:        includes those already in a log (see `log_to_file`), which are not measured again
        measure_option: builder and runner; default: this machine, closed afterwards
        early_stopping: stop after this many without improvement
        callbacks:      called with the tuner and each new result, see `callbacks`

        Returns None if not even the default could be measured. Raises TuningError if there is nothing (left) to measure
        on; by then everything measured is in the log, as after KeyboardInterrupt.
        """
        option = measure_option or this_machine()
        try:
            return self._tune(n_trial, option, early_stopping, callbacks)
        finally:
            if measure_option is None:
                option.close()

    def _tune(
        self, n_trial: int, option: MeasureOption, early_stopping: int | None, callbacks: Sequence[Callback]
    ) -> Decision | None:
        remembered = self._recall(callbacks)
        default: str | None = None
        while len(self.results) < n_trial and not self._stale(early_stopping):
            batch = self.next_batch(min(BATCH, n_trial - len(self.results)))
            default = default or self._build_default(option)
            if not batch or default is None:
                break
            fresh = []
            for result in measure(self.task, batch, option, default):
                fresh.append(result)
                self.new += 1
                self.update([result])
                for callback in callbacks:
                    callback(self, [result])
            self.learn(fresh)
        if remembered is not None and not self.new:
            return remembered
        default = default or self._build_default(option)
        decision = self._decide(option, default) if default else None
        for callback in callbacks:
            if decision is not None and hasattr(callback, "decision"):
                callback.decision(decision)
        return decision

    def _build_default(self, option: MeasureOption) -> str | None:
        """The default's library; None, with a warning, if it cannot be built."""
        (default,) = option.builder.build(self.task, [None])
        if isinstance(default, Result):
            warnings.warn(
                f"{self.task.name}: not tuned, as its default configuration fails: {default.error}",
                TuningWarning,
                stacklevel=4,
            )
            return None
        return default

    def _recall(self, callbacks: Sequence[Callback]) -> Decision | None:
        """Take over the results in logs; returns the last decision in them."""
        decision = None
        for callback in callbacks:
            if hasattr(callback, "known"):
                results, before = callback.known(self.task, self.space)
                results = [result for result in results if result.configuration != self.space.default]
                self.update(results)
                self.learn(results)
                decision = before or decision
        for callback in callbacks:
            callback(self, [])
        return decision

    def _stale(self, early_stopping: int | None) -> bool:
        """Whether the last `early_stopping` results have not improved anything."""
        if early_stopping is None or len(self.curve) <= early_stopping:
            return False
        return self.curve[-1] >= self.curve[-1 - early_stopping]

    def _decide(self, option: MeasureOption, default: str) -> Decision | None:
        """Race the fastest few and the default once more, in turns with each other."""
        valid = sorted((r for r in self.results.values() if r.ratio < 1), key=lambda result: result.ratio)
        finalists = [result.configuration for result in valid[:FINALISTS]]
        libraries = [
            (configuration, built)
            for configuration, built in zip(finalists, option.builder.build(self.task, finalists), strict=True)
            if isinstance(built, str)
        ]
        raced = option.runner.race(self.task, [(self.space.default, default), *libraries])
        if not raced:
            return None
        best = min(raced, key=lambda result: result.ratio)
        return Decision(best if best.ratio < GAIN else raced[0], len(self.results) + 1)


def generation_of(wanted: int, space: Space) -> int:
    """How many configurations are chosen at once: no more than an eighth of the space, so that there is time to learn
    from them, but always one batch."""
    return min(wanted, max(BATCH, len(space) // 8))
