"""One recipe held against everything: interpreter, engines, frameworks. Runs in a worker process (`workers.py`)."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

import qnn_ext
from qnn_ext import Interpreter, QnnError
from qnn_ext.module import QnnModule

from .recipe import Case, FrameworkRefuses, Frontend, Oracle, Recipe, draw_recipe
from .rules import FLOAT_SUMS

FRONTENDS = ("tflite", "xnnpack", "onnx", "pytorch", "mxnet")
GPU_PREFIX = "sm_"


@dataclass(frozen=True)
class Task:
    """What a worker shall do: the recipe, or the seed that it is drawn from; for which targets, with which oracles.

    threads: of the engines
    skip:    oracles that ended the process before
    """

    frontend: str
    seed: int
    targets: tuple[str, ...]
    threads: int = 1
    skip: tuple[str, ...] = ()
    recipe: Recipe | None = None


@dataclass
class Outcome:
    """What came of a task.

    kind:      "equal", "refused" (by a QnnError, or a framework that runs the model to write it), "mismatch" (values),
               "error" (an exception that is no QnnError) or "died" (the process)
    what:      the stage that it is about, an oracle's or a target's name among them
    against:   for each oracle and target: "equal", "equal in part" where a rule exempts some outputs, the rule where
               one exempts all, "refused", or "differs"
    operators: of the model
    """

    recipe: Recipe
    kind: str = "equal"
    what: str = ""
    detail: str = ""
    against: dict[str, str] = field(default_factory=dict)
    operators: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> bool:
        return self.kind in ("mismatch", "error", "died")


def frontend_of(name: str) -> Frontend:
    """The generators and oracles of a frontend; imports its framework."""
    frontend: Frontend = import_module(f"{__package__}.{name}").FRONTEND
    return frontend


def judge(task: Task, report: Callable[[str], None] = lambda stage: None) -> Outcome:
    """Build, import, interpret, compare. `report` hears of every stage before it begins."""
    frontend = frontend_of(task.frontend)
    recipe = task.recipe or draw_recipe(frontend, task.seed)
    return _Trial(frontend, recipe, task, Outcome(recipe), report).run()


@dataclass
class _Trial:
    frontend: Frontend
    recipe: Recipe
    task: Task
    outcome: Outcome
    report: Callable[[str], None]

    def run(self) -> Outcome:
        try:
            self._compare()
            self.outcome.what = ", ".join(
                name for name, verdict in self.outcome.against.items() if verdict == "differs"
            )
        except (QnnError, FrameworkRefuses) as error:
            self.outcome.kind, self.outcome.detail = "refused", str(error)
        except Exception as error:  # whatever it is, it is a finding, and the run goes on
            self.outcome.kind = "error"
            self.outcome.detail = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-4)}"
        return self.outcome

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        self.report(name)
        self.outcome.what = name
        start = time.perf_counter()
        yield
        self.outcome.seconds[name] += time.perf_counter() - start

    def _compare(self) -> None:
        with self._stage("generate"):
            case = self.frontend.make(self.recipe)
        with self._stage("import"):
            module = self.frontend.load(case)
        self.outcome.operators = case.operators
        with self._stage("interpret"):
            expected = interpret(module, case)
        for oracle in self.frontend.oracles:
            if oracle.name not in self.task.skip and oracle.applies(case):
                self._ask(oracle, case, expected)
        for target in self.task.targets:
            with self._stage(target):
                results = run_engine(module, case, target, self.task.threads)
            results, wanted = unsigned_zeros(results), unsigned_zeros(expected)
            self._hold(target, wanted, results, ["" if steady else FLOAT_SUMS for steady in case.steady])

    def _ask(self, oracle: Oracle, case: Case, expected: list[list[np.ndarray]]) -> None:
        with self._stage(oracle.name):
            try:
                found = oracle.run(case)
            except FrameworkRefuses:
                self.outcome.against[oracle.name] = "refused"
                return
        if oracle.load is not self.frontend.load:
            with self._stage("interpret"):
                expected = interpret(oracle.load(case), case)
        self._hold(oracle.name, unsigned_zeros(expected), unsigned_zeros(found), case.accidents)

    def _hold(self, name: str, expected: list, found: list, accidents: Sequence[str]) -> None:
        """Compare the outputs that no rule exempts."""
        problem = first_difference(expected, found, accidents)
        rules = [rule for rule in accidents if rule]
        verdict = rules[0] if rules and all(accidents) else "equal in part" if rules else "equal"
        self.outcome.against[name] = "differs" if problem else verdict
        if problem:
            self.outcome.kind = "mismatch"
            self.outcome.detail += f"{name}: {problem}\n"


# ---- runs --------------------------------------------------------------------------------------------------------


def call_all(runner: Any, case: Case) -> list[list[np.ndarray]]:
    """The outputs of every trial; states go on from trial to trial only in cases that are about them."""
    results = []
    for values in case.trials:
        if not case.stateful:
            runner.reset_state()
        results.append([np.array(value) for value in runner.run(values).values()])
    return results


def interpret(module: QnnModule, case: Case) -> list[list[np.ndarray]]:
    """What the oracle says."""
    with np.errstate(all="ignore"):
        return call_all(Interpreter(module), case)


def run_engine(module: QnnModule, case: Case, target: str, threads: int) -> list[list[np.ndarray]]:
    """The outputs of compiled code. A GPU's is emulated; its states stay at their initial values, so that of a stateful
    case the first trial alone is comparable."""
    if target.startswith(GPU_PREFIX):
        from tests.cuda.models import run_model

        count = len(module.outputs)
        trials = case.trials[:1] if case.stateful else case.trials
        return [run_model(module, target, values)[:count] for values in trials]
    return call_all(qnn_ext.build(module, target, num_threads=threads), case)


# ---- equality ----------------------------------------------------------------------------------------------------


def first_difference(
    expected: Sequence[Sequence[np.ndarray]], found: Sequence[Sequence[np.ndarray]], accidents: Sequence[str]
) -> str:
    """The first output that differs, in words; empty where all that no rule exempts are equal bit for bit."""
    for trial, (wanted, given) in enumerate(zip(expected, found, strict=False)):
        if len(wanted) != len(given):
            return f"{len(wanted)} outputs, found {len(given)}"
        for index, (one, two) in enumerate(zip(wanted, given, strict=True)):
            if one.shape != two.shape or one.dtype != two.dtype:
                return f"output {index}: {one.dtype}{one.shape}, found {two.dtype}{two.shape}"
            if accidents[index] or bits(one) == bits(two):
                continue
            differs = np.flatnonzero(~((one == two) | ((one != one) & (two != two))).reshape(-1))
            differs = differs if differs.size else np.arange(min(3, one.size))  # signs of zero
            some = ", ".join(f"[{i}] {one.flat[i]} ≠ {two.flat[i]}" for i in differs[:4])
            return f"trial {trial}, output {index}, {one.dtype}{one.shape}: {differs.size} differ: {some}"
    return ""


def unsigned_zeros(trials: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """Outputs as they are compared: see `rules.SIGN_OF_ZERO`."""
    return [[array + np.array(0, array.dtype) if array.dtype.kind == "f" else array for array in t] for t in trials]


def bits(array: np.ndarray) -> bytes:
    """The bytes of an array, all NaN alike."""
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.tobytes()
