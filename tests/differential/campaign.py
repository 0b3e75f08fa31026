"""Many graphs: tasks by seed, outcomes counted, failures retried and reduced."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from .judge import Outcome, Task, frontend_of
from .recipe import Recipe
from .reduce import reduced
from .workers import Pool


@dataclass(frozen=True)
class Plan:
    """What to run: `graphs` seeds from `seed` on. The interpreter runs every graph and is compared with the framework.
    Compiling takes most of a graph's time, so one in `build` of them is compiled, for one of `targets` in turn, and one
    in `every` of those for all targets; GPUs are emulated, which takes seconds, so only these graphs run on one. The
    seed selects the graphs aperiodically, because operators take turns by seed as well."""

    frontend: str
    graphs: int
    seed: int = 0
    targets: tuple[str, ...] = ("native",)
    gpu: tuple[str, ...] = ()
    build: int = 1
    every: int = 20
    jobs: int = 1
    out: Path | None = None

    def tasks(self) -> Iterator[Task]:
        for seed in range(self.seed, self.seed + self.graphs):
            yield Task(self.frontend, seed, self._targets(seed), threads=1 + seed % 2)

    def _targets(self, seed: int) -> tuple[str, ...]:
        mixed, remainder = divmod(crc32(f"target of {seed}".encode()), self.build)
        if remainder or not self.targets:
            return ()
        turn, place = divmod(mixed, max(1, self.every))
        if self.every and place == 0:
            gpu = (self.gpu[turn % len(self.gpu)],) if self.gpu else ()
            return (*self.targets, *gpu)
        return (self.targets[turn % len(self.targets)],)


@dataclass
class Tally:
    """The counts of a campaign."""

    kinds: Counter[str] = field(default_factory=Counter)
    against: dict[str, Counter[str]] = field(default_factory=dict)
    operators: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    died_frameworks: Counter[str] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        self.kinds[outcome.kind] += 1
        for name, verdict in outcome.against.items():
            self.against.setdefault(name, Counter())[verdict] += 1
        self.seconds.update(outcome.seconds)
        if outcome.kind == "refused":
            self.refusals[outcome.detail[:160]] += 1
        elif not outcome.failed:
            self.operators.update(set(outcome.operators))

    def as_json(self) -> dict[str, Any]:
        return {
            "outcomes": dict(self.kinds),
            "against": {name: dict(counts) for name, counts in self.against.items()},
            "operators": dict(sorted(self.operators.items())),
            "frameworks that died": dict(self.died_frameworks),
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "failures": [failure_as_json(outcome) for outcome in self.failures],
        }


def failure_as_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "kind": outcome.kind,
        "what": outcome.what,
        "detail": outcome.detail,
        "recipe": asdict(outcome.recipe),
        "text": str(outcome.recipe),
    }


def run(plan: Plan, progress: Callable[[Tally], None] = lambda tally: None) -> Tally:
    """Run the campaign. Failures are reduced, kept in the tally, and written to `plan.out`."""
    tally = Tally()
    oracles = {oracle.name for oracle in frontend_of(plan.frontend).oracles}
    by_seed = {task.seed: task for task in plan.tasks()}
    with Pool(plan.jobs) as pool, Pool(1) as second:
        for outcome in pool.judge_all(by_seed.values()):
            task = by_seed[outcome.recipe.seed]
            skip: tuple[str, ...] = ()
            while outcome.kind == "died" and outcome.what in oracles - set(skip):
                tally.died_frameworks[outcome.what] += 1  # a crash of the framework is not a finding about qnn_ext
                skip = (*skip, outcome.what)
                outcome = second.judge(replace(task, skip=skip, recipe=outcome.recipe))
            if outcome.failed:
                retry = lambda recipe, task=task, skip=skip: second.judge(  # noqa: E731
                    replace(task, recipe=recipe, skip=skip)
                )
                small = reduced(outcome, retry)
                tally.failures.append(small)
                if plan.out:
                    write_failure(plan.out, small)
            tally.add(outcome)
            progress(tally)
    return tally


def write_failure(folder: Path, outcome: Outcome) -> None:
    """Writes the model, its inputs and what is wrong, named by the recipe's seed."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{outcome.recipe.frontend}-{outcome.recipe.seed}"
    stem.with_suffix(".json").write_text(json.dumps(failure_as_json(outcome), indent=1, default=str))
    if outcome.what == "generate":
        return
    case = frontend_of(outcome.recipe.frontend).make(outcome.recipe)
    if isinstance(case.content, bytes):
        stem.with_suffix(".model").write_bytes(case.content)
    arrays = {
        f"{trial}/{index}": array for trial, values in enumerate(case.trials) for index, array in enumerate(values)
    }
    np.savez(stem.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]


def recipe_from_json(described: dict[str, Any]) -> Recipe:
    """The recipe of a written failure."""
    from .recipe import Step

    return Recipe(**{**described, "steps": tuple(Step(**step) for step in described["steps"])})
