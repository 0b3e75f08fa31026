"""What is counted: right answers among the best k classes, a metric of the user's own, agreement with a framework."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..module import TensorSpec
from .samples import Sample

Metric = Callable[[Any, Any], Any]
"""(outputs, labels) -> a number or a dict of numbers by name. outputs: real values, (samples, …), a dict by name if the
model has several; labels: an array, None if there are none."""


def load_metric(text: str) -> Metric:
    """The function that `module:function` or `path/to/file.py:function` names. Raises InputError; runs the file."""
    source, colon, name = text.rpartition(":")
    if not colon or not source or not name:
        raise InputError(f"a metric is module:function or file.py:function, found {text!r}")
    try:
        module = _file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except Exception as error:
        raise InputError(f"metric {text}: {source} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise InputError(
            f"metric {text}: there is no function {name!r} in {source}; it has {', '.join(names) or 'none'}"
        )
    metric: Metric = function
    return metric


def _file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"qnn_ext_metric_{path.stem}", path)
    assert spec is not None and spec.loader is not None  # for every name that ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their module
    spec.loader.exec_module(module)
    return module


def class_of(sample: Sample, classes: int) -> int:
    """The number of a sample's class. Raises InputError if its label is none."""
    if sample.label is None:
        raise InputError(
            f"{sample.where} has no label: give labels, sub-folders with the names of classes, or your own metric"
        )
    label = np.asarray(sample.label)
    if label.size != 1 or label.dtype.kind not in "iu":
        raise InputError(f"{sample.where}: a label must be the number of a class, found {sample.label!r}")
    index = int(label.reshape(()))
    if not 0 <= index < classes:
        raise InputError(
            f"{sample.where} has label {index}, but the model's classes are 0 … {classes - 1}; labels that count from "
            "elsewhere are shifted by an offset (--label-offset)"
        )
    return index


class Answers:
    """Counts samples whose label is among the best k classes; of equally good ones the first counts as better.

    classifies: which output has the classes, by its number
    """

    def __init__(self, ranks: Sequence[int], classifies: int) -> None:
        self._right = dict.fromkeys(ranks, 0)
        self._classifies = classifies
        self._count = 0

    def add(self, outputs: Sequence[np.ndarray], sample: Sample) -> None:
        scores = outputs[self._classifies].reshape(-1)
        index = class_of(sample, scores.size)
        better = int(np.count_nonzero(scores > scores[index]) + np.count_nonzero(scores[:index] == scores[index]))
        for rank in self._right:
            self._right[rank] += better < rank
        self._count += 1

    def merge(self, other: Answers) -> None:
        """Add what was counted on another part of the data."""
        self._count += other._count
        for rank, right in other._right.items():
            self._right[rank] += right

    def result(self) -> dict[str, float]:
        return {f"top-{rank}": right / self._count for rank, right in self._right.items()}


class Collected:
    """Keeps all outputs and labels for a metric of the user's own."""

    def __init__(self, metric: Metric, outputs: Sequence[TensorSpec]) -> None:
        self._metric = metric
        self._names = [spec.name for spec in outputs]
        self._values: list[list[np.ndarray]] = [[] for _ in outputs]
        self._labels: list[Any] = []

    def add(self, outputs: Sequence[np.ndarray], sample: Sample) -> None:
        for values, value in zip(self._values, outputs, strict=True):
            values.append(value)
        if sample.label is not None:
            self._labels.append(sample.label)

    def merge(self, other: Collected) -> None:
        """Add what follows in another part of the data."""
        for mine, its in zip(self._values, other._values, strict=True):
            mine += its
        self._labels += other._labels

    def result(self) -> dict[str, float]:
        name = getattr(self._metric, "__name__", type(self._metric).__name__)
        count = len(self._values[0])
        if self._labels and len(self._labels) < count:
            raise InputError(f"only {len(self._labels)} of {count} samples have a label")
        stacked = [np.stack(values) for values in self._values]
        outputs = stacked[0] if len(stacked) == 1 else dict(zip(self._names, stacked, strict=True))
        try:
            found = self._metric(outputs, np.asarray(self._labels) if self._labels else None)
            values = found if isinstance(found, Mapping) else {name: found}
            return {str(key): float(value) for key, value in values.items()}
        except Exception as error:
            raise InputError(f"metric {name!r} failed: {type(error).__name__}: {error}") from error


@dataclass
class Agreement:
    """How many samples two models agree on.

    same:  share with the same best class; None if they do not classify
    equal: share whose outputs are equal bit for bit
    """

    same: float | None
    equal: float


class Agreeing:
    """Compares each sample's outputs with a framework's."""

    def __init__(self, classifies: int | None) -> None:
        self._classifies = classifies
        self._same = self._equal = self._count = 0

    def add(self, expected: Sequence[np.ndarray], found: Sequence[np.ndarray]) -> None:
        self._count += 1
        self._equal += all(
            x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
            for x, y in zip(expected, found, strict=True)
        )
        if self._classifies is not None:
            at = self._classifies
            self._same += int(expected[at].argmax()) == int(found[at].argmax())

    def merge(self, other: Agreeing) -> None:
        """Add what was counted on another part of the data."""
        self._same += other._same
        self._equal += other._equal
        self._count += other._count

    def result(self) -> Agreement:
        same = None if self._classifies is None else self._same / self._count
        return Agreement(same, self._equal / self._count)
