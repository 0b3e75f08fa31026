"""A cost model that learns an order instead of times: boosted trees with a pairwise loss, AutoTVM's "rank" losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .cost_model import CostModel, require_xgboost
from .measure import Result
from .space import Configuration, Space

_DEPTH, _RATE, _TREES = 3, 0.3, 60


class RankModel:
    """Predicts from measured configurations which others are fast; used like `CostModel`.

    features: a row for each configuration of the space
    binary:   learn only whether a configuration belongs to the faster half of those measured
    threads:  that train the trees
    """

    def __init__(self, space: Space, features: np.ndarray, binary: bool, seed: int = 0, threads: int = 1) -> None:
        self._xgboost = require_xgboost()
        self._features, self._binary = features, binary
        self._index = {item: index for index, item in enumerate(space.configurations)}
        self._options = {
            "objective": "rank:pairwise",
            "max_depth": _DEPTH,
            "eta": _RATE,
            "seed": seed,
            "nthread": threads,
        }
        self._rows: list[int] = []
        self._speeds: list[float] = []
        self._trees: Any = None

    @property
    def trained(self) -> bool:
        """Whether there were enough samples to predict anything."""
        return self._trees is not None

    def update(self, results: Sequence[Result]) -> None:
        """Learn from results without error."""
        valid = [result for result in results if not result.error]
        self._rows += [self._index[result.configuration] for result in valid]
        self._speeds += [1 / result.ratio for result in valid]
        if valid and len(self._rows) >= CostModel.WARMUP:
            speeds = np.asarray(self._speeds)
            labels = speeds > np.median(speeds) if self._binary else speeds.argsort().argsort() / len(speeds)
            data = self._xgboost.DMatrix(self._features[self._rows], labels.astype(np.float32))
            data.set_group([len(self._rows)])
            self._trees = self._xgboost.train(self._options, data, _TREES)

    def predict(self, configurations: Sequence[Configuration]) -> np.ndarray:
        """A score for each, higher for faster configurations."""
        rows = [self._index[item] for item in configurations]
        return np.asarray(self._trees.predict(self._xgboost.DMatrix(self._features[rows])))
