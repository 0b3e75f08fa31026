"""Taking turns: every worker runs for a short while, again and again, in an order drawn anew for each round.

A busy moment of the machine then affects all alike, and the median over the rounds ignores it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .worker import Worker, WorkerError


@dataclass(frozen=True)
class Times:
    """Seconds per call: one value per turn, and the minimum over all parts of turns."""

    seconds: tuple[float, ...]
    least: float

    @property
    def median(self) -> float:
        """What is compared."""
        return float(np.median(self.seconds))

    @property
    def quartiles(self) -> tuple[float, float]:
        """The quartiles: a quarter of the turns was faster than the first, a quarter slower than the second."""
        low, high = np.quantile(self.seconds, (0.25, 0.75))
        return float(low), float(high)


def take_turns(
    workers: Mapping[str, Worker], rounds: int, seconds_per_turn: float, seed: int = 0
) -> tuple[dict[str, Times], dict[str, str]]:
    """The times of every worker that survived, and what went wrong with the others."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in workers}
    failures: dict[str, str] = {}
    numbers: dict[str, int] = {}

    def turn(name: str, number: int) -> tuple[float, float]:
        try:
            return workers[name].ask("turn", number)
        except WorkerError as error:
            failures[name] = str(error)
            return 0.0, 0.0

    for name in workers:
        _, least = turn(name, 2)
        numbers[name] = max(1, min(20_000, round(seconds_per_turn / max(least, 1e-7))))
    draw = random.Random(seed)
    for _ in range(rounds):
        order = [name for name in workers if name not in failures]
        draw.shuffle(order)
        for name in order:
            taken[name].append(turn(name, numbers[name]))
    times = {name: _times(values) for name, values in taken.items() if name not in failures}
    return times, failures


def _times(turns: Sequence[tuple[float, float]]) -> Times:
    return Times(tuple(mean for mean, _ in turns), min(least for _, least in turns))
