"""Tuning a whole model: all tasks one after the other, those with most work first, with live progress and a report."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

from tvm.target import Target

from ..compiling.build import TargetLike, compile_module
from ..errors import TargetError, TuningError, TuningWarning
from ..module import QnnModule
from ..running.engine import Engine
from ..targets.backend import THREADS, threads_of
from ..targets.names import description_of, make_target
from ..topi_int8 import DenseWorkload
from .callbacks import LogFile
from .measure import Decision, LocalBuilder, LocalRunner, MeasureOption, Result, RPCRunner, check_target, measure_option
from .progress import TuningProgress
from .records import Callback, append, apply_history_best, line_of
from .report import Outcome, Report
from .task import Task, extract_from_program, make_task
from .timing import Timer, race
from .tuner import Tuner
from .tuners import make_tuner

TRIALS = 32
SLOWER = 1.02  # a tuned model slower by more than this factor keeps its defaults
TURNS = 12
TURN_SECONDS = 0.02


def default_tuner() -> str:
    """ "xgb" if xgboost is installed, else "ga"."""
    return "xgb" if find_spec("xgboost") else "ga"


def tune(
    module: QnnModule,
    target: TargetLike = "native",
    trials: int = TRIALS,
    log: str | os.PathLike[str] = "tuning.jsonl",
    runner: LocalRunner | None = None,
    builder: LocalBuilder | None = None,
    tuner: str | None = None,
    threads: int | None = None,
    early_stopping: int | None = None,
    seed: int = 0,
    progress: bool = False,
    callbacks: Sequence[Callback] = (),
    options: Mapping[str, Any] | None = None,
) -> Report:
    """Tune every task of a model and report the gains.

    target, threads: as for `qnn_ext.build`; with an RPCRunner, those of its boards
    trials:          configurations to measure for each task, including those already in the log
    log:             records are appended here as they are measured; tuning again with the same log skips them
    runner, builder: default: this machine, closed afterwards
    tuner:           "xgb", "ga", "random" or "gridsearch"; default: "xgb" if xgboost is installed, else "ga"
    early_stopping:  go on to the next task after this many measurements without improvement
    progress:        show live progress on stderr
    options:         of the tuner: arguments of its class, {"plan_size": 16}

    A configuration other than the default is chosen only if it wins a race with the default; and if the whole model
    turns out slower with all choices, the defaults are chosen. Raises TargetError for a GPU, and for a CPU whose code
    the runner cannot run; TuningError if the model has nothing to tune or nothing is left to measure on; by then
    everything measured is in the log.
    """
    resolved = make_target(target, threads)
    check_target(resolved, remote=isinstance(runner, RPCRunner))
    tasks = extract_from_program(module, resolved)
    if not tasks:
        raise TuningError(
            f"{module.source}: there is nothing to tune: none of its kernels has a choice of configurations for this "
            "target"
        )
    name, log_file = tuner or default_tuner(), LogFile(log)
    option = measure_option(builder, runner)
    outcomes: list[Outcome] = []
    try:
        with TuningProgress(tasks, trials, _peaks(tasks, option), progress) as live:
            for task in tasks:
                tuning = make_tuner(name, task, seed, **(options or {}))
                outcomes.append(tune_task(tuning, trials, option, early_stopping, [log_file, live, *callbacks]))
        before, after = whole_model(module, resolved, log, outcomes, option)
    finally:
        if runner is None:
            option.runner.close()
        if builder is None:
            option.builder.close()
    return Report(outcomes, live.peaks, before, after)


def tune_task(
    tuner: Tuner,
    trials: int,
    option: MeasureOption,
    early_stopping: int | None,
    callbacks: Sequence[Callback],
) -> Outcome:
    """Tune one task; arguments as for `tune`."""
    started = time.monotonic()
    decision = tuner.tune(trials, option, early_stopping, callbacks)
    errors = [result.error for result in tuner.results.values() if result.error]
    return Outcome(tuner.task, decision, tuple(tuner.curve), tuner.new, tuple(errors), time.monotonic() - started)


# ---- the fastest a product can be --------------------------------------------------------------------------------


def _peaks(tasks: Sequence[Task], option: MeasureOption) -> dict[tuple[str, str], float]:
    """GOP/s by operand dtypes, for a dense layer whose operands stay in the L1 cache, on all threads.

    Measured, because nothing else tells how many dot products a core does per cycle, and its clock rate.
    """
    peaks: dict[tuple[str, str], float] = {}
    for task in tasks:
        dtypes = (task.workload.data_dtype, task.workload.weight_dtype)
        if dtypes not in peaks:
            peaks[dtypes] = _peak(_one_thread(task.target), dtypes, option) * threads_of(task.target.attrs)
    return peaks


def _peak(target: Target, dtypes: tuple[str, str], option: MeasureOption) -> float:
    task = make_task(DenseWorkload(28, 512, 32, *dtypes), target)
    built = option.builder.build(task, [None])[0] if task else None
    if task is None or not isinstance(built, str):
        return 0.0
    raced: list[Result] = option.runner.race(task, [(None, built)], rounds=1)
    return max((result.gops for result in raced), default=0.0)


@lru_cache(maxsize=16)
def _one_thread(target: Target) -> Target:
    return Target({**description_of(target), THREADS: 1})


# ---- the model as a whole ----------------------------------------------------------------------------------------


def whole_model(
    module: QnnModule,
    target: Target,
    log: str | os.PathLike[str],
    outcomes: Sequence[Outcome],
    option: MeasureOption,
) -> tuple[float, float]:
    """Seconds of the model with the defaults and with the log, in turns; zeros if it cannot be run here.

    If it is slower with the log, the defaults are chosen.
    """
    changed = [outcome for outcome in outcomes if outcome.decision and outcome.decision.best.ratio < 1]
    if type(option.runner) is not LocalRunner:
        return 0.0, 0.0
    try:
        default = compile_module(module, target)
        if not changed:
            return (default.time(number=1, repeat=3).best,) * 2
        with warnings.catch_warnings(), apply_history_best(log):
            warnings.simplefilter("ignore", TuningWarning)  # already given when the log was read for tuning
            tuned = compile_module(module, target)
        before, after = times_in_turns([default, tuned])
    except TargetError:  # tuned for another CPU
        return 0.0, 0.0
    if after > SLOWER * before:
        warnings.warn(
            f"the model takes {after * 1e3:.3f} ms with the tuned kernels and {before * 1e3:.3f} ms with the defaults, "
            "although each kernel was faster on its own: the defaults are kept",
            TuningWarning,
            stacklevel=3,
        )
        for outcome in changed:
            append(log, line_of(*_back_to_default(outcome)))
        return before, before
    return before, after


def _back_to_default(outcome: Outcome) -> tuple[Result, int]:
    decision: Decision | None = outcome.decision
    assert decision is not None
    best = decision.best
    default = make_tuner("gridsearch", outcome.task).space.default
    return Result(outcome.task, default, best.reference, best.reference), decision.measured


def times_in_turns(engines: Sequence[Engine]) -> list[float]:
    """The least time in seconds of one call of each engine, timed in turns."""
    timers: list[Timer] = [partial(_seconds, engine) for engine in engines]
    return race(timers, TURNS, TURN_SECONDS, hopeless=float("inf"))


def _seconds(engine: Engine, number: int) -> float:
    return engine.time(number=number, repeat=2).best
