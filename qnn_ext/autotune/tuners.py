"""The tuners: which configurations of a task each of them measures next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from inspect import signature
from typing import Any

import numpy as np

from ..errors import TuningError
from .measure import Result
from .space import Configuration
from .task import Task
from .tuner import BATCH, Tuner, generation_of


class _IndexTuner(Tuner):
    """Base of tuners that may be confined to a part of the space.

    range_idx: the first and the last place, in the order of predicted cost; by default the whole space
    """

    def __init__(self, task: Task, seed: int = 0, range_idx: tuple[int, int] | None = None) -> None:
        super().__init__(task, seed)
        first, last = range_idx or (0, len(self.space) - 1)
        if not 0 <= first <= last < len(self.space):
            raise TuningError(f"range_idx must lie within 0 … {len(self.space) - 1}, found ({first}, {last})")
        self.candidates = self.candidates[first : last + 1]


class GridSearchTuner(_IndexTuner):
    """All configurations in the order of their predicted cost."""

    def propose(self, count: int, left: list[Configuration]) -> list[Configuration]:
        return left[:count]


class RandomTuner(_IndexTuner):
    """Configurations at random, each at most once."""

    def propose(self, count: int, left: list[Configuration]) -> list[Configuration]:
        return self.random.sample(left, count)


class GATuner(Tuner):
    """A genetic algorithm: children of the fastest so far, with decisions changed.

    It starts with the configurations of least predicted cost. A child that is illegal or already known is replaced by
    the nearest legal one.

    pop_size:      children in a generation, all of the same parents; no more than `generation_of` allows
    elite_num:     the fastest so far, which are the parents
    mutation_prob: how likely each decision of a child is changed; None: always one of them, drawn at random
    """

    def __init__(
        self,
        task: Task,
        seed: int = 0,
        pop_size: int = BATCH,
        elite_num: int = 8,
        mutation_prob: float | None = None,
    ) -> None:
        super().__init__(task, seed)
        if not 1 <= elite_num <= pop_size or not 0 <= (mutation_prob or 0) <= 1:
            raise TuningError(
                "a genetic algorithm takes 1 ≤ elite_num ≤ pop_size and 0 ≤ mutation_prob ≤ 1, found "
                f"{elite_num}, {pop_size} and {mutation_prob}"
            )
        self.pop_size, self.elite_num, self.mutation_prob = (
            generation_of(pop_size, self.space),
            elite_num,
            mutation_prob,
        )
        self._parents: list[Result] = []
        self._born = 0

    def propose(self, count: int, left: list[Configuration]) -> list[Configuration]:
        if self._born % self.pop_size == 0 or not self._parents:
            valid = sorted((r for r in self.results.values() if not r.error), key=lambda r: r.ratio)
            self._parents = valid[: self.elite_num] if len(self.results) >= self.pop_size else []
        count = min(count, self.pop_size - self._born % self.pop_size)
        self._born += count
        if not self._parents:
            return left[:count]
        features = {item: self._genes(item) for item in left}
        children: list[Configuration] = []
        for _ in range(count):
            child = self._child()
            nearest = min(features, key=lambda item: float(np.abs(features[item] - child).sum()))
            children.append(nearest)
            del features[nearest]
        return children

    def _child(self) -> np.ndarray:
        """Each decision from one of two parents, some of them changed."""
        mother, father = (self._genes(parent.configuration) for parent in self.random.choices(self._parents, k=2))
        child = np.where([self.random.random() < 0.5 for _ in mother], mother, father)
        if self.mutation_prob is None:
            changed = [self.random.randrange(len(child))]
        else:
            changed = [gene for gene in range(len(child)) if self.random.random() < self.mutation_prob]
        for gene in changed:
            child[gene] += self.random.choice((-1.0, 1.0)) * self.random.choice((0.5, 1.0))
        return child

    def _genes(self, configuration: Configuration) -> np.ndarray:
        return np.log2(1.0 + np.asarray(list(asdict(configuration).values()), np.float64))


FEATURES = ("itervar", "knob")
LOSSES = ("reg", "rank", "rank-binary")


class XGBTuner(Tuner):
    """Boosted trees predict the times of configurations not yet measured; those with the best predictions are measured
    next, and some random ones.

    It starts with configurations of least predicted cost and as many spread over the rest.

    plan_size:    configurations chosen at once, before the trees are fitted again; at most what `generation_of` allows
    feature_type: what the trees see of a configuration: "knob", its decisions; "itervar", also their logarithms and the
                  predicted cost
    loss_type:    "reg", by MetaSchedule's regression of times; "rank", which of two is faster; "rank-binary", which
                  belong to the faster half
    num_threads:  that train the trees
    diversity_filter_ratio: of this times as many best predictions, those are chosen that differ in many decisions, by
                  `diverse`; None: the best ones

    Raises TuningError for other values, and without xgboost.
    """

    CHANCE = 4  # one in this many is drawn at random

    def __init__(
        self,
        task: Task,
        seed: int = 0,
        plan_size: int = BATCH,
        feature_type: str = "itervar",
        loss_type: str = "reg",
        num_threads: int = 1,
        diversity_filter_ratio: float | None = None,
    ) -> None:
        super().__init__(task, seed)
        if feature_type not in FEATURES:
            raise TuningError(
                f"feature_type must be one of {', '.join(FEATURES)}, found {feature_type!r}: a tensorized kernel "
                "has no loops from which other features could be computed"
            )
        if loss_type not in LOSSES:
            raise TuningError(f"loss_type must be one of {', '.join(LOSSES)}, found {loss_type!r}")
        if plan_size < 1 or (diversity_filter_ratio is not None and diversity_filter_ratio < 1):
            raise TuningError(
                "plan_size and diversity_filter_ratio must be at least 1, found "
                f"{plan_size} and {diversity_filter_ratio}"
            )
        from .cost_model import CostModel
        from .rank_model import RankModel

        features = self.space.features if feature_type == "itervar" else self.space.decisions
        self.plan_size, self._wider = generation_of(plan_size, self.space), diversity_filter_ratio
        self._model: CostModel | RankModel
        if loss_type == "reg":
            self._model = CostModel(task, self.space, seed, features, num_threads)
        else:
            self._model = RankModel(self.space, features, loss_type == "rank-binary", seed, num_threads)
        self._new: list[Result] = []
        self._plan: list[Configuration] = []

    def learn(self, results: Sequence[Result]) -> None:
        self._new.extend(results)

    def propose(self, count: int, left: list[Configuration]) -> list[Configuration]:
        if not self._plan:
            self._model.update(self._new)
            self._new = []
            self._plan = self._planned(min(self.plan_size, len(left)), left)
        chosen, self._plan = self._plan[:count], self._plan[count:]
        return chosen

    def _planned(self, count: int, left: list[Configuration]) -> list[Configuration]:
        drawn = max(1, count // self.CHANCE)
        if not self._model.trained:
            first = left[: count - count // 2]
            rest = left[len(first) :]
            return [*first, *self.random.sample(rest, min(len(rest), count - len(first)))]
        score = self._model.predict(left)
        ranked = [left[index] for index in np.argsort(-score, kind="stable")]
        best = ranked[: count - drawn]
        if self._wider is not None:
            best = diverse(ranked[: int(self._wider * len(best))], len(best))
        rest = [item for item in ranked if item not in best]
        return [*best, *self.random.sample(rest, drawn)]


def diverse(ranked: Sequence[Configuration], count: int) -> list[Configuration]:
    """`count` configurations, the best first: each adds most decisions not seen in those before it, the better one of
    equals."""
    left = [(item, set(asdict(item).items())) for item in ranked]
    chosen: list[Configuration] = []
    seen: set[tuple[str, Any]] = set()
    while len(chosen) < count:
        index = max(range(len(left)), key=lambda place: len(left[place][1] - seen))
        item, decisions = left.pop(index)
        chosen.append(item)
        seen |= decisions
    return chosen


TUNERS: dict[str, type[Tuner]] = {
    "xgb": XGBTuner,
    "ga": GATuner,
    "random": RandomTuner,
    "gridsearch": GridSearchTuner,
}


def make_tuner(name: str, task: Task, seed: int = 0, **options: Any) -> Tuner:
    """A tuner by name, with options of its own. Raises TuningError for unknown names and options, and for "xgb" without
    xgboost."""
    if name not in TUNERS:
        raise TuningError(f"unknown tuner {name!r}: use {', '.join(TUNERS)}")
    known = list(signature(TUNERS[name]).parameters)[2:]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise TuningError(f"the tuner {name!r} has no option {unknown[0]!r}; it has {', '.join(known)}")
    return TUNERS[name](task, seed, **options)
