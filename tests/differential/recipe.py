"""What describes a random graph: a seed, how its numbers are drawn, and steps that can be dropped one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np

MOST_STEPS = 8
SCALES = ("power_of_two", "ordinary", "ordinary", "extreme")
HOSTILE_SHARE = 0.03


@dataclass(frozen=True)
class Step:
    """One operator; all that is random about it follows from `seed`, so that it stays when others are dropped."""

    operator: str
    seed: int


@dataclass(frozen=True)
class Recipe:
    """A graph before it is built.

    scales:  "power_of_two": float32 sums of products are exact, so every order of summation gives the same bits;
             "ordinary"; "extreme": of 1e-30 … 1e30, multipliers that vanish or saturate among them
    hostile: whether inputs hold what frameworks leave undefined: NaN, infinities, divisors of zero, indices outside
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
        """The recipe with one step less."""
        return replace(self, steps=self.steps[:position] + self.steps[position + 1 :])

    def __str__(self) -> str:
        names = " → ".join(step.operator for step in self.steps)
        marks = f"{self.dtype}, {self.scales}{', hostile' if self.hostile else ''}, size {self.size}"
        return f"{self.frontend} seed {self.seed} ({marks}): {names}"


@dataclass
class Case:
    """A recipe's model with what it is run on.

    content:   what the frontend imports
    trials:    the inputs of several calls, in model order
    operators: the operators that the model holds
    accidents: for each output "", or the rule of `rules.py` by which its bits are an accident of the framework
    steady:    for each output whether the engine must equal the interpreter bit for bit; False where a float sum,
               whose order is the kernel's, comes before
    stateful:  whether the trials are consecutive calls that pass a state on
    """

    content: Any
    trials: list[list[np.ndarray]]
    operators: Counter[str]
    accidents: list[str]
    steady: list[bool]
    stateful: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


class FrameworkRefuses(RuntimeError):
    """The framework does not run the model."""


@dataclass(frozen=True)
class Oracle:
    """A framework: how qnn_ext imports the case to compute as it does, and how it runs the case itself.

    applies: whether it can say anything about a case
    """

    name: str
    load: Callable[[Case], Any]
    run: Callable[[Case], list[list[np.ndarray]]]
    applies: Callable[[Case], bool] = lambda case: True


@dataclass(frozen=True)
class Frontend:
    """Generators and oracles of one frontend.

    operators: the names that a step may have, each that of an operator it generates
    supported: all operators that the frontend has converters for
    excluded:  those of them that are not generated, with the reason
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


def draw_recipe(frontend: Frontend, seed: int) -> Recipe:
    """The recipe of a seed. The first operator goes round the table, so that none is left out."""
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
