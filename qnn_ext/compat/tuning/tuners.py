"""autotvm.tuner: tuners and callbacks with autotvm's arguments."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ... import autotune
from ...autotune.measure import Decision, Result
from ...errors import TuningWarning
from ..absent import refuse
from .logs import results_of
from .measuring import MeasureInput, MeasureOption, result_of
from .tasks import ConfigEntity, Task

UserCallback = Callable[["Tuner", list[MeasureInput], list[Any]], None]


class Tuner:
    """Base of all tuners.

    best_config, best_flops, best_iter: the fastest so far, its operations per second, and when it was measured
    """

    kind: type[autotune.Tuner] = autotune.RandomTuner

    def __init__(self, task: Task, **options: Any) -> None:
        """options: of the tuner of qnn_ext.autotune, whose errors for wrong values show here"""
        self.task, self._options = task, options
        self.kind(task.native, **options)
        self.reset()
        self._history: list[tuple[Any, Any]] = []
        self.decision: Decision | None = None

    @property
    def space(self) -> Any:
        return self.task.config_space

    def load_history(self, data_set: Iterable[tuple[Any, Any]], min_seed_records: int = 500) -> None:
        """Results of this task, from `record.load_from_file`: they count as trials and are not measured again."""
        self._history.extend(data_set)

    def tune(
        self,
        n_trial: int,
        measure_option: MeasureOption | None = None,
        early_stopping: int | None = None,
        callbacks: Sequence[Any] = (),
        si_prefix: str = "G",
    ) -> None:
        """Measure up to `n_trial` configurations, and decide by a last race against the default.

        callbacks: those of autotvm.callback, or functions of (tuner, inputs, results)
        si_prefix: of AutoTVM's debugging output; `progress_bar` has one of its own
        """
        native = self.kind(self.task.native, **self._options)
        option = measure_option.native() if measure_option is not None else None
        hooks = [_Known(self._history), _Best(self), *(self._hook(callback) for callback in callbacks if callback)]
        self.decision = native.tune(n_trial, option, early_stopping, hooks)

    def reset(self) -> None:
        """Forget the best."""
        self.best_config: ConfigEntity | None = None
        self.best_flops, self.best_iter = 0.0, 0

    def _hook(self, callback: Any) -> Any:
        return callback if hasattr(callback, "decision") else _Adapted(self, callback)

    def inputs_of(self, results: Sequence[Result]) -> list[MeasureInput]:
        """What was measured, in autotvm's form."""
        return [
            MeasureInput(self.task.target, self.task, ConfigEntity(self.space.index_of(one), one))
            for one in (result.configuration for result in results)
        ]


class _Adapted:
    """A function of (tuner, inputs, results) as a callback of ours."""

    def __init__(self, tuner: Tuner, callback: UserCallback) -> None:
        self._tuner, self._callback = tuner, callback

    def __call__(self, tuner: Any, results: list[Result]) -> None:
        if results:
            self._callback(self._tuner, self._tuner.inputs_of(results), [result_of(result) for result in results])


class _Best:
    """Keeps the fastest result in the tuner's fields."""

    def __init__(self, tuner: Tuner) -> None:
        self._tuner, self._count = tuner, 0

    def __call__(self, tuner: Any, results: list[Result]) -> None:
        for result in results:
            self._count += 1
            if result.gops * 1e9 > self._tuner.best_flops:
                self._tuner.best_flops, self._tuner.best_iter = result.gops * 1e9, self._count
                (entry,) = self._tuner.inputs_of([result])
                self._tuner.best_config = entry.config


class _Known:
    """Tells a tuner what is known of its task, as our log files do."""

    def __init__(self, history: Sequence[tuple[Any, Any]]) -> None:
        self._history = history

    def known(self, task: Any, space: Any) -> tuple[list[Result], Decision | None]:
        return results_of(self._history, task, space)

    def __call__(self, tuner: Any, results: list[Result]) -> None:
        pass


class XGBTuner(Tuner):
    """Boosted trees predict the times; arguments as of `qnn_ext.autotune.XGBTuner`. Raises TuningError without xgboost.

    feature_type: "curve" becomes "itervar", with a warning: there are no loops whose reuse could be sampled
    optimizer:    has no effect, with a warning if it is not the default: all configurations are ranked, none searched
    log_interval: of AutoTVM's debugging output
    """

    kind = autotune.XGBTuner

    def __init__(
        self,
        task: Task,
        plan_size: int = 64,
        feature_type: str = "itervar",
        loss_type: str = "reg",
        num_threads: int | None = None,
        optimizer: Any = "sa",
        diversity_filter_ratio: float | None = None,
        log_interval: int = 50,
    ) -> None:
        if feature_type == "curve":
            _warn(
                "feature_type='curve' becomes 'itervar': a tensorized kernel has no loops whose reuse could be sampled"
            )
            feature_type = "itervar"
        if optimizer != "sa":
            _warn("optimizer has no effect: a space has some hundred configurations, of which each is ranked")
        super().__init__(
            task,
            plan_size=plan_size,
            feature_type=feature_type,
            loss_type=loss_type,
            num_threads=num_threads or 1,
            diversity_filter_ratio=diversity_filter_ratio,
        )


def _warn(message: str) -> None:
    warnings.warn(f"XGBTuner: {message}", TuningWarning, stacklevel=3)


class GATuner(Tuner):
    """A genetic algorithm; arguments as of `qnn_ext.autotune.GATuner`."""

    kind = autotune.GATuner

    def __init__(self, task: Task, pop_size: int = 100, elite_num: int = 3, mutation_prob: float = 0.1) -> None:
        super().__init__(task, pop_size=pop_size, elite_num=elite_num, mutation_prob=mutation_prob)


class RandomTuner(Tuner):
    """Configurations at random.

    range_idx: the first and the last index in the task's config_space
    """

    kind = autotune.RandomTuner

    def __init__(self, task: Task, range_idx: tuple[int, int] | None = None) -> None:
        super().__init__(task, range_idx=range_idx)


class GridSearchTuner(Tuner):
    """All configurations in the order of their predicted cost; range_idx as of `RandomTuner`."""

    kind = autotune.GridSearchTuner

    def __init__(self, task: Task, range_idx: tuple[int, int] | None = None) -> None:
        super().__init__(task, range_idx=range_idx)


# ---- callbacks ---------------------------------------------------------------------------------------------------


def log_to_file(file_out: Any, protocol: str = "json") -> Any:
    """Append every result to a log."""
    if hasattr(file_out, "write"):
        refuse("log_to_file(a file object)", "give the path: records are appended whole, also by several processes")
    return autotune.log_to_file(file_out)


def progress_bar(total: int, prefix: str = "", si_prefix: str = "G") -> Any:
    """One line of progress."""
    return autotune.progress_bar(total, prefix, si_prefix)


class Monitor:
    """Collects the operations per second of each trial."""

    def __init__(self) -> None:
        self.reset()

    def __call__(self, tuner: Tuner, inputs: list[MeasureInput], results: list[Any]) -> None:
        for given, result in zip(inputs, results, strict=True):
            self.scores.append(0.0 if result.error_no else given.task.flop / float(np.mean(result.costs)))
            self.timestamps.append(time.time())

    def reset(self) -> None:
        self.scores: list[float] = []
        self.timestamps: list[float] = []

    def trial_scores(self) -> np.ndarray:
        return np.array(self.scores)

    def trial_timestamps(self) -> np.ndarray:
        return np.array(self.timestamps)
