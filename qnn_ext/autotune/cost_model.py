"""MetaSchedule's cost model on our design spaces: XGBModel with the decisions themselves as features. It learns times
by regression, where `RankModel` learns only which configuration is faster.

Its own features come from loop nests and cannot see inside a tensorized kernel; a `PyFeatureExtractor` gives it ours. A
configuration becomes a measure candidate of a MetaSchedule design space with a single decision, its index, written on
the block as an annotation. (With `sample_categorical` over a thousand configurations, each candidate would take 25 ms.)
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule

from ..errors import TuningError
from .measure import Result
from .space import Configuration, Space
from .task import Task

DECISION = "qnn_ext.configuration"
BLOCK = "product"


def design_space(count: int) -> tvm.IRModule:
    """A stand-in for a task in MetaSchedule: a function of one block, on which the decision is written."""
    source = te.placeholder((count,), "int32")
    result = te.compute((count,), lambda index: source[index], name=BLOCK)
    return tvm.IRModule({"main": te.create_prim_func([source, result])})


def decide(schedule: Schedule, decision: int) -> None:
    """Write the index of a configuration on the block of a design space."""
    schedule.annotate(schedule.get_sblock(BLOCK), DECISION, decision)


def require_xgboost() -> ModuleType:
    """The package. Raises TuningError if it is missing."""
    try:
        return import_module("xgboost")
    except ImportError:
        raise TuningError(
            "the tuner 'xgb' needs xgboost: pip install 'qnn-ext[tune]'; the tuners ga, random and gridsearch do not "
            "need it"
        ) from None


class CostModel:
    """Predicts from measured configurations which others are fast.

    features: a row for each configuration of the space; by default `space.features`
    threads:  that train the trees
    """

    WARMUP = 4

    def __init__(
        self, task: Task, space: Space, seed: int = 0, features: np.ndarray | None = None, threads: int = 1
    ) -> None:
        require_xgboost()
        from tvm.s_tir import meta_schedule

        logging.getLogger("tvm.s_tir.meta_schedule").setLevel(logging.WARNING)
        self._schedules = meta_schedule
        self._index = {item: index for index, item in enumerate(space.configurations)}
        self._module = design_space(len(space))
        with _without_intrinsics():  # num_threads is given, or MetaSchedule would ask psutil for it
            self._context = meta_schedule.TuneContext(
                self._module, target=task.target, task_name=task.name, num_threads=1, rand_state=seed + 1
            )
        self._model = meta_schedule.cost_model.XGBModel(
            extractor=_extractor(space.features if features is None else features),
            config=meta_schedule.cost_model.xgb_model.XGBConfig(seed=seed, nthread=threads),
            num_warmup_samples=self.WARMUP,
            num_tuning_cores=1,
        )
        self._samples = 0

    @property
    def trained(self) -> bool:
        """Whether there were enough samples to predict anything."""
        return self._samples >= self.WARMUP

    def update(self, results: Sequence[Result]) -> None:
        """Learn from results without error: their time over the default's."""
        valid = [result for result in results if not result.error]
        if valid:
            runs = [self._schedules.runner.RunnerResult([result.ratio], None) for result in valid]
            self._model.update(self._context, self._candidates([result.configuration for result in valid]), runs)
            self._samples += len(valid)

    def predict(self, configurations: Sequence[Configuration]) -> np.ndarray:
        """A score for each, higher for faster configurations."""
        return np.asarray(self._model.predict(self._context, self._candidates(configurations)))

    def _candidates(self, configurations: Sequence[Configuration]) -> list[Any]:
        found = []
        for configuration in configurations:
            schedule = Schedule(self._module)
            decide(schedule, self._index[configuration])
            found.append(self._schedules.MeasureCandidate(schedule, []))
        return found


@contextmanager
def _without_intrinsics() -> Iterator[None]:
    """Put an empty package in place of TVM's tensor intrinsics. A TuneContext imports these, and parsing those of GPUs
    takes up to a minute; our kernels are already tensorized by then."""
    name = "tvm.s_tir.tensor_intrin"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]


def _extractor(features: np.ndarray) -> Any:
    """A feature extractor that looks up the row of a candidate's configuration."""
    from tvm.s_tir.meta_schedule.feature_extractor import PyFeatureExtractor

    @derived_object
    class Decisions(PyFeatureExtractor):  # type: ignore[misc]
        def extract_from(self, context: Any, candidates: Any) -> Any:
            rows = [features[_decision(candidate.sch)] for candidate in candidates]
            return [tvm.runtime.tensor(np.ascontiguousarray(row[None])) for row in rows]

    return Decisions()


def _decision(schedule: Schedule) -> int:
    return int(schedule.get(schedule.get_sblock(BLOCK)).annotations[DECISION])
