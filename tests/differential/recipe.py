"""The description of a random graph: a seed, how its numbers are drawn, and steps that can be dropped one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np

from .rules import Rule

MOST_STEPS = 8
SCALES = ("power_of_two", "ordinary", "ordinary", "extreme")
HOSTILE_SHARE = 0.03


@dataclass(frozen=True)
class Step:
    """One operator; all its randomness follows from `seed`, so that it is unchanged when others are dropped."""

    operator: str
    seed: int


@dataclass(frozen=True)
class Recipe:
    """A graph before it is built.

    scales:  "power_of_two": float32 sums of products are exact, so every order of summation gives the same bits;
             "ordinary"; "extreme": 1e-30 … 1e30, including multipliers that vanish or saturate
    hostile: whether inputs include what frameworks leave undefined: NaN, infinities, zero divisors, out-of-range
             indices
    size:    the greatest extent of a dimension
    """

    frontend: str
    seed: int
    dtype: str
    scales: str
    hostile: bool
    size: int
    steps: tuple[Step, ...]

    def without(self, position: int) -> Recipe:
        """The recipe without one of its steps."""
        return replace(self, steps=self.steps[:position] + self.steps[position + 1 :])

    def __str__(self) -> str:
        names = " → ".join(step.operator for step in self.steps)
        marks = f"{self.dtype}, {self.scales}{', hostile' if self.hostile else ''}, size {self.size}"
        return f"{self.frontend} seed {self.seed} ({marks}): {names}"


@dataclass
class Case:
    """A recipe's model and the inputs it is run on.

    content:   what the frontend imports
    trials:    the inputs of several calls, in model order
    operators: the operators that the model holds
    accidents: for each output, None or the rule of `rules.py` by which its bits are an accident of the framework
    steady:    for each output, whether the engine must equal the interpreter bit for bit; False after a float sum,
               whose order depends on the kernel
    stateful:  whether the trials are consecutive calls that pass a state on
    """

    content: Any
    trials: list[list[np.ndarray]]
    operators: Counter[str]
    accidents: Sequence[Rule | None]
    steady: list[bool]
    stateful: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


class FrameworkRefuses(RuntimeError):
    """The framework does not run the model."""


@dataclass(frozen=True)
class Oracle:
    """A framework: how qnn_ext imports the case to compute as it does, and how it runs the case itself.

    applies: whether it can judge a case
    enclose: for every trial and output, the least and the greatest value that rounding explains (NaN: any); used where
             results are not equal
    """

    name: str
    load: Callable[[Case], Any]
    run: Callable[[Case], list[list[np.ndarray]]]
    applies: Callable[[Case], bool] = lambda case: True
    enclose: Callable[[Case], list[list[tuple[np.ndarray, np.ndarray]]]] | None = None


@dataclass(frozen=True)
class Frontend:
    """Generators and oracles of one frontend.

    operators: the names that a step may have, each naming the operator that it generates
    supported: all operators that the frontend has converters for
    excluded:  those that are not generated, with the reason
    load:      the import where no oracle prescribes one
    """

    name: str
    operators: Sequence[str]
    dtypes: tuple[str, ...]
    make: Callable[[Recipe], Case]
    load: Callable[[Case], Any]
    supported: tuple[str, ...] = ()
    excluded: Mapping[str, str] = field(default_factory=dict)
    oracles: tuple[Oracle, ...] = ()

    @property
    def encloses(self) -> bool:
        """Whether an oracle gives bounds on float sums."""
        return any(oracle.enclose is not None for oracle in self.oracles)


def draw_recipe(frontend: Frontend, seed: int) -> Recipe:
    """The recipe of a seed. The first operator cycles through the table, so that none is left out."""
    rng = np.random.default_rng([crc32(frontend.name.encode()), seed])
    count = int(rng.integers(1, MOST_STEPS, endpoint=True))
    names = [frontend.operators[seed % len(frontend.operators)]]
    names += [str(name) for name in rng.choice(frontend.operators, count - 1)]
    seeds = rng.integers(0, 2**31, count)
    return Recipe(
        frontend=frontend.name,
        seed=seed,
        dtype=str(rng.choice(frontend.dtypes)),
        scales=str(rng.choice(SCALES)),
        hostile=bool(rng.random() < HOSTILE_SHARE),
        size=int(rng.choice([2, 5, 9, 19, 40], p=[0.1, 0.3, 0.3, 0.2, 0.1])),
        steps=tuple(Step(name, int(s)) for name, s in zip(names, seeds, strict=True)),
    )
