"""Compares one recipe across interpreter, engines and frameworks. Runs in a worker process (`workers.py`)."""

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
from tests.fuzz.rounding import is_explained

from .recipe import Case, FrameworkRefuses, Frontend, Oracle, Recipe, draw_recipe
from .rules import FLOAT_SUMS, ROUNDED, UNBOUNDED_SUMS, Rule

FRONTENDS = ("tflite", "xnnpack", "onnx", "pytorch", "pt2e", "mxnet")
GPU_PREFIX = "sm_"


@dataclass(frozen=True)
class Task:
    """A worker's job: the recipe, or the seed that it is drawn from; for which targets, with which oracles.

    threads: number of threads of the engines
    skip:    oracles that killed the process before
    """

    frontend: str
    seed: int
    targets: tuple[str, ...]
    threads: int = 1
    skip: tuple[str, ...] = ()
    recipe: Recipe | None = None


@dataclass
class Outcome:
    """The outcome of a task.

    kind:      "equal", "refused" (by a QnnError, or a framework that runs the model to write it), "mismatch" (values),
               "error" (an exception that is not a QnnError) or "died" (the process)
    what:      the stage concerned, possibly an oracle's or a target's name
    against:   for each oracle and target: "equal", "within bounds" of rules, "equal in part" where a rule without a
               bound exempts some outputs, the rule's reason where all are exempt or it explains what differs,
               "refused", or "differs"
    operators: operator counts of the model
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
    """Build, import, interpret, compare. `report` is called with every stage before it begins."""
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
        except Exception as error:  # whatever it is, it is a finding, and the run continues
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
            if self.frontend.encloses:
                rules = [None if steady else UNBOUNDED_SUMS for steady in case.steady]
                self._hold(target, wanted, results, rules)
                self._hold_within(target, case, results)
            else:
                rules = [None if steady else FLOAT_SUMS for steady in case.steady]
                self._hold(target, wanted, results, rules, Errors(module, case, approximate=False))

    def _ask(self, oracle: Oracle, case: Case, expected: list[list[np.ndarray]]) -> None:
        with self._stage(oracle.name):
            try:
                found = oracle.run(case)
            except FrameworkRefuses:
                self.outcome.against[oracle.name] = "refused"
                return
        with self._stage("interpret"):
            module = oracle.load(case)
            if oracle.load is not self.frontend.load:
                expected = interpret(module, case)
        expected, found = unsigned_zeros(expected), unsigned_zeros(found)
        if oracle.enclose is None or not first_difference(expected, found, case.accidents):
            self._hold(oracle.name, expected, found, case.accidents, Errors(module, case, approximate=True))
            return
        self.outcome.against[oracle.name] = ROUNDED.reason
        problem = first_outside(oracle.enclose(case), expected, found)
        if problem:
            self._differs(oracle.name, problem)

    def _hold_within(self, name: str, case: Case, found: list) -> None:
        """Float sums: each kernel has its own order, but bounds are known where an oracle derives them."""
        for oracle in self.frontend.oracles:
            if oracle.enclose is not None and self.outcome.against.get(oracle.name, "refused") != "refused":
                problem = first_outside(oracle.enclose(case), found)
                if problem and self.outcome.against[name] != "differs":
                    self._differs(name, problem)

    def _hold(
        self, name: str, expected: list, found: list, accidents: Sequence[Rule | None], errors: Errors | None = None
    ) -> None:
        """Compare all outputs, each within the bounds of its rule."""
        problem = first_difference(expected, found, accidents, errors)
        exempt = [rule for rule in accidents if rule and not rule.bounded]
        if exempt:
            verdict = exempt[0].reason if len(exempt) == len(accidents) else "equal in part"
        else:
            verdict = "within bounds" if first_difference(expected, found, [None] * len(accidents)) else "equal"
        self.outcome.against[name] = verdict
        if problem:
            self._differs(name, problem)

    def _differs(self, name: str, problem: str) -> None:
        self.outcome.against[name] = "differs"
        self.outcome.kind = "mismatch"
        self.outcome.detail += f"{name}: {problem}\n"


# ---- runs --------------------------------------------------------------------------------------------------------


def call_all(runner: Any, case: Case) -> list[list[np.ndarray]]:
    """The outputs of every trial; state carries over between trials only in cases about state."""
    results = []
    for values in case.trials:
        if not case.stateful:
            runner.reset_state()
        results.append([np.array(value) for value in runner.run(values).values()])
    return results


def interpret(module: QnnModule, case: Case) -> list[list[np.ndarray]]:
    """The oracle's outputs."""
    with np.errstate(all="ignore"):
        return call_all(Interpreter(module), case)


def run_engine(module: QnnModule, case: Case, target: str, threads: int) -> list[list[np.ndarray]]:
    """The outputs of compiled code. GPUs are emulated, and their states stay at their initial values, so that only the
    first trial of a stateful case is comparable."""
    if target.startswith(GPU_PREFIX):
        from tests.cuda.models import run_model

        count = len(module.outputs)
        trials = case.trials[:1] if case.stateful else case.trials
        return [run_model(module, target, values)[:count] for values in trials]
    return call_all(qnn_ext.build(module, target, num_threads=threads), case)


# ---- equality ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Errors:
    """Which elements rounding errors explain; approximate: and those of functions, which frameworks approximate."""

    module: QnnModule
    case: Case
    approximate: bool

    def explain(self, trial: int, output: int, found: np.ndarray) -> np.ndarray:
        """Which elements of an output may have the values found."""
        trials = self.case.trials[: trial + 1] if self.case.stateful else [self.case.trials[trial]]
        return is_explained(self.module, trials, self.module.outputs[output].name, found, self.approximate)


def first_difference(
    expected: Sequence[Sequence[np.ndarray]],
    found: Sequence[Sequence[np.ndarray]],
    accidents: Sequence[Rule | None],
    errors: Errors | None = None,
) -> str:
    """A description of the first output with an element beyond its rule's bounds; empty if there is none. Outputs
    without a rule must be equal bit for bit."""
    for trial, (wanted, given) in enumerate(zip(expected, found, strict=False)):
        if len(wanted) != len(given):
            return f"{len(wanted)} outputs, found {len(given)}"
        for index, (one, two) in enumerate(zip(wanted, given, strict=True)):
            if one.shape != two.shape or one.dtype != two.dtype:
                return f"output {index}: {one.dtype}{one.shape}, found {two.dtype}{two.shape}"
            if bits(one) == bits(two):
                continue
            same = _same(one, two)
            rule = accidents[index]
            if rule:
                same |= rule.allows(one, two)
                if rule.rounding and errors and not same.all():
                    same |= errors.explain(trial, index, two)
                if same.all():
                    continue
            differs = np.flatnonzero(~same)
            differs = differs if differs.size else np.arange(min(3, one.size))  # signs of zero
            some = ", ".join(f"[{i}] {one.flat[i]} ≠ {two.flat[i]}" for i in differs[:4])
            return f"trial {trial}, output {index}, {one.dtype}{one.shape}: {differs.size} differ: {some}"
    return ""


def _same(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Which elements are equal; NaN equals NaN."""
    return np.asarray((one == two) | ((one != one) & (two != two)))


def first_outside(
    bounds: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]],
    expected: Sequence[Sequence[np.ndarray]],
    found: Sequence[Sequence[np.ndarray]] = (),
) -> str:
    """A description of the first output with a value beyond its bounds. Values equal to `found` bit for bit need
    none."""
    for trial, (ends, outputs) in enumerate(zip(bounds, expected, strict=False)):
        for index, ((low, high), output) in enumerate(zip(ends, outputs, strict=True)):
            if low.shape != output.shape or low.dtype != output.dtype:
                return f"output {index}: {output.dtype}{output.shape}, expected {low.dtype}{low.shape}"
            inside = ((low <= output) & (output <= high)) | (low != low) | (high != high)
            if found:
                inside |= _same(output, found[trial][index])
            outside = np.flatnonzero(~inside)
            if outside.size:
                some = ", ".join(f"[{i}] {output.flat[i]} not in {low.flat[i]} … {high.flat[i]}" for i in outside[:4])
                return f"trial {trial}, output {index}, {low.dtype}{low.shape}: {outside.size} differ: {some}"
    return ""


def unsigned_zeros(trials: list[list[np.ndarray]]) -> list[list[np.ndarray]]:
    """Outputs in the form in which they are compared: see `rules.SIGN_OF_ZERO`."""
    return [[array + np.array(0, array.dtype) if array.dtype.kind == "f" else array for array in t] for t in trials]


def bits(array: np.ndarray) -> bytes:
    """The bytes of an array, with all NaN made the same."""
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return array.tobytes()
