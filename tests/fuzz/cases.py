"""Cases: a seed file and mutations, drawn from (seed, number) and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .formats import Format

_SMALL = 12_000  # bytes; larger seeds are drawn in one of fifty cases
_COUNTS = (1, 1, 1, 1, 2, 2, 3, 5)


@dataclass(frozen=True)
class Case:
    """How a file is made.

    source:    name of the seed file
    mutations: (mutator's name, its own seed), applied in order
    run:       whether it is also built and run if accepted
    """

    source: str
    mutations: tuple[tuple[str, int], ...]
    run: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values, for pipes and files."""
        return {"source": self.source, "mutations": self.mutations, "run": self.run}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Case:
        """The inverse of `to_json`."""
        return Case(data["source"], tuple((name, seed) for name, seed in data["mutations"]), data["run"])


class Corpus:
    """The seed files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.files = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
        if not self.files:
            raise ValueError(f"{folder} holds no seed files")
        small = [name for name, data in self.files.items() if len(data) <= _SMALL]
        large = [name for name, data in self.files.items() if len(data) > _SMALL]
        self._small, self._large = small or large, large or small

    def case(self, form: Format, seed: int, number: int, run_every: int) -> Case:
        """Case number `number` of a run with this seed."""
        chance = random.Random(f"{seed}/{number}")
        source = chance.choice(self._large if chance.random() < 0.02 else self._small)
        mutations = [(chance.choice(form.mutators)[0], chance.getrandbits(32)) for _ in range(chance.choice(_COUNTS))]
        return Case(source, tuple(mutations), bool(run_every) and number % run_every == 0)

    def content(self, form: Format, case: Case) -> bytes:
        """The file content of a case."""
        return mutated(form, self.files[case.source], case.mutations)


def mutated(form: Format, data: bytes, mutations: Sequence[tuple[str, int]]) -> bytes:
    """The data with mutations applied."""
    mutators = dict(form.mutators)
    for name, seed in mutations:
        data = mutators[name](data, random.Random(seed))
    return data


def record(case: Case) -> str:
    """The case as a line of JSON."""
    return json.dumps(case.to_json())
