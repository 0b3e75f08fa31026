"""The design space of a task: the legal configurations of its kernel's schedule template, cheapest prediction first.

A configuration is a value of the template's own tile type, so tuned tiles take the same code path as the default ones:
the default is the configuration that `build` uses on its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..topi_int8 import Workload
from ..topi_int8.strategy import Implementation
from .task import Task

Configuration = Any
"""A frozen dataclass of integers, such as `microkernel.Tile`."""


@dataclass(frozen=True)
class Space:
    """All configurations of a task.

    costs: configuration -> predicted cost in arbitrary units, cheapest first; the first is the default
    """

    costs: dict[Configuration, float]

    @property
    def default(self) -> Configuration:
        """The configuration that `build` uses without tuning."""
        return next(iter(self.costs))

    @cached_property
    def configurations(self) -> list[Configuration]:
        return list(self.costs)

    @cached_property
    def features(self) -> np.ndarray:
        """(configurations, features) float32: every decision, its logarithm, the logarithm of the predicted cost."""
        rows = []
        for configuration, cost in self.costs.items():
            values = [float(value) for value in asdict(configuration).values()]
            logs = [math.log2(1 + value) for value in values]
            rows.append([*values, *logs, sum(logs), math.log(cost)])
        return np.asarray(rows, np.float32)

    @property
    def decisions(self) -> np.ndarray:
        """(configurations, decisions) float32."""
        return self.features[:, : len(asdict(self.default))]

    def parse(self, fields: Mapping[str, Any]) -> Configuration | None:
        """The configuration with these fields; None if the space does not contain it (any more)."""
        return self._by_fields.get(tuple(sorted(fields.items())))

    @cached_property
    def _by_fields(self) -> dict[tuple[tuple[str, Any], ...], Configuration]:
        return {tuple(sorted(asdict(item).items())): item for item in self.costs}

    def __len__(self) -> int:
        return len(self.costs)


def space_of(task: Task) -> Space:
    """The design space of a task. Raises TuningError if the target does not have its kernel."""
    implementation = task.implementation
    return space_for(implementation, task.workload)


def space_for(implementation: Implementation, workload: Workload) -> Space:
    """All tiles in the order of their predicted cost, then their variants, with other decisions set too."""
    assert implementation.tiles is not None
    costs = dict(implementation.tiles(workload))
    if implementation.variants is not None:
        for tile, cost in list(costs.items()):
            costs |= dict.fromkeys(implementation.variants(workload, tile), cost)
    return Space(costs)


def text_of(configuration: Configuration) -> str:
    """A configuration as text for tables: 1×7×2."""
    return "×".join(str(value) for value in asdict(configuration).values())
