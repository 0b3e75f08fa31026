"""Running models on samples and counting, in this process or on shards of the data wherever a map calls."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from ..errors import InputError
from ..module import QnnModule, TensorSpec
from ..quantize.shards import Shards, shard_named
from ..running.engine import Engine
from .frameworks import Call, Framework, Unavailable
from .labels import Labels
from .metrics import Agreeing, Answers, Collected, Metric
from .samples import Sample, Samples

FRAMEWORK, FLOAT, INTEGERS = "framework", "float", "int8"

Show = Callable[..., None]


def mapped(data: Any) -> bool:
    """Whether the data are read elsewhere."""
    return isinstance(data, Shards) and data.map is not None


@dataclass(frozen=True)
class Ports:
    """What goes into a model, and what comes out."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]

    @classmethod
    def of(cls, model: QnnModule | Engine) -> Ports:
        return cls(model.inputs, model.outputs)


@dataclass(frozen=True)
class Reading:
    """How data become samples: arguments of `labels.Labels` and `samples.Samples`."""

    labels: Any = None
    classes: Sequence[str] | str | os.PathLike | None = None
    label_offset: int = 0
    number: int | None = None
    normalize: str = "auto"
    limit: int | None = None

    def check(self, data: Any) -> None:
        """Raise InputError for what Shards cannot have: labels by position, and a limit."""
        if isinstance(data, Shards) and self._labels().count is not None:
            raise InputError("data in Shards have their labels in each shard, or in a file with lines `file label`")
        if isinstance(data, Shards) and self.limit is not None:
            raise InputError("data in Shards have no limit: give fewer shards")

    def samples(self, data: Any, inputs: Sequence[TensorSpec]) -> Iterator[Sample]:
        """All samples, shard by shard."""
        if not isinstance(data, Shards):
            yield from self.of(data, inputs)
            return
        for index, shard in enumerate(data.shards):
            with shard_named(index):
                yield from self.of(shard, inputs)

    def of(self, data: Any, inputs: Sequence[TensorSpec]) -> Samples:
        """The samples of data that are no Shards."""
        return Samples(data, inputs, self._labels(), self.normalize, self.limit)

    def count(self, data: Any, inputs: Sequence[TensorSpec]) -> int | None:
        """How many samples there are, if that is known without reading them."""
        return None if isinstance(data, Shards) else self.of(data, inputs).count

    def _labels(self) -> Labels:
        return Labels(self.labels, self.classes, self.label_offset, self.number)


@dataclass(frozen=True)
class Counting:
    """What is counted: the best classes of an output, or a metric of the user's."""

    metric: Metric | None
    classifies: int | None
    ranks: Sequence[int]

    def meter(self, outputs: Sequence[TensorSpec]) -> Answers | Collected:
        if self.metric is None:
            return Answers(self.ranks, self.classifies or 0)
        return Collected(self.metric, outputs)


@dataclass
class Measured:
    """What was counted on a part of the data, by the name of the run; and why the framework was not run."""

    count: int
    meters: dict[str, Any]
    agreeing: dict[str, Agreeing]
    missing: str

    def merge(self, other: Measured) -> Measured:
        """Both together; what one of them misses is left out."""
        for mine, its in ((self.meters, other.meters), (self.agreeing, other.agreeing)):
            for name in list(mine):
                if name in its:
                    mine[name].merge(its[name])
                else:
                    del mine[name]
        self.count += other.count
        self.missing = self.missing or other.missing
        return self


@dataclass(frozen=True)
class Measuring:
    """The models and what is counted. Can be sent to another process if framework and metric can."""

    model: Ports
    float_model: Ports | None
    engines: dict[str, Engine]
    framework: Framework | None
    threads: int
    counting: Counting
    reading: Reading

    def on_all(self, data: Any, show: Show) -> Measured:
        """What is counted on all data. Raises InputError."""
        if not isinstance(data, Shards):
            return self.on(data, show)
        task = partial(_on_shard, self)
        if data.map is not None:
            engines = {name: engine.clone(data.num_threads) for name, engine in self.engines.items()}
            task = partial(_on_shard, replace(self, engines=engines, threads=data.num_threads))
        found = []
        for result in (data.map or map)(task, list(enumerate(data.shards))):
            found.append(result)
            for _ in range(result[1].count):
                show(None, None)
        return reduce(Measured.merge, (measured for _, measured in sorted(found, key=lambda one: one[0])))

    def on(self, data: Any, show: Show) -> Measured:
        """What is counted on data that are no Shards. Raises InputError."""
        samples = self.reading.of(data, self.model.inputs)
        runs, missing = {name: _run_engine(engine) for name, engine in self.engines.items()}, ""
        if self.framework is not None:
            opened = _opened(self.framework, self.model, samples, self.threads)
            if isinstance(opened, str):
                missing = opened
            else:
                runs[FRAMEWORK] = opened
        own = {name: run for name, run in runs.items() if name != FLOAT or self.float_model is None}
        passes = [_passed(samples, self.model, own)]
        if self.float_model is not None:
            others = self.reading.of(data, self.float_model.inputs)
            passes.append(_passed(others, self.float_model, {FLOAT: runs[FLOAT]}))
        meters = {name: self.counting.meter(self.model.outputs) for name in runs}
        agreeing = {
            name: Agreeing(self.counting.classifies) for name in runs if FRAMEWORK in runs and name != FRAMEWORK
        }
        count = 0
        for results in zip(*passes, strict=True):
            count += 1
            by_name = {name: result for _, found in results for name, result in found.items()}
            for name, result in by_name.items():
                meters[name].add(result.real, results[0][0])
                if name in agreeing:
                    agreeing[name].add(by_name[FRAMEWORK].raw, result.raw)
            show(None, samples.count)
        return Measured(count, meters, agreeing, missing)


def _on_shard(measuring: Measuring, item: tuple[int, Any]) -> tuple[int, Measured]:
    """What is counted on one shard, with its number."""
    index, shard = item
    with shard_named(index):
        return index, measuring.on(shard, lambda *_: None)


def _run_engine(engine: Engine) -> Call:
    def call(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        engine.reset_state()
        return list(engine.run(values).values())

    return call


def _opened(framework: Framework, model: Ports, samples: Samples, threads: int) -> Call | str:
    """The model in its framework, tried on one sample; or why that does not run it."""
    sample = next(iter(samples), None)
    if sample is None:
        return "there is no sample"
    values = _quantized([np.repeat(value, samples.batch, 0) for value in sample.values], model.inputs)
    try:
        call = framework.open(model.inputs, threads)
        found = [value.shape for value in call(values)]
    except Unavailable as error:
        return str(error)
    except Exception as error:  # each framework raises its own kinds
        return f"{framework.title} fails: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    outputs = model.outputs
    if len(found) != len(outputs) or not all(spec.may_be(one) for spec, one in zip(outputs, found, strict=True)):
        return f"{framework.title} returns shapes {found}, the imported model {[spec.dims for spec in outputs]}"
    return call


@dataclass(frozen=True)
class _Result:
    """A sample's outputs, as the model returns them and as real values, without the batch dimension."""

    raw: list[np.ndarray]
    real: list[np.ndarray]


def _passed(samples: Samples, model: Ports, runs: dict[str, Call]) -> Iterator[tuple[Sample, dict[str, _Result]]]:
    """Each sample and what each of the runs gives for it."""
    iterator = iter(samples)
    while chunk := list(itertools.islice(iterator, samples.batch)):
        filled = [*chunk, *chunk[-1:] * (samples.batch - len(chunk))]
        real = [np.concatenate(parts) for parts in zip(*(sample.values for sample in filled), strict=True)]
        values = _quantized(real if samples.batch > 1 else chunk[0].values, model.inputs)
        results = {name: _results(run(values), model.outputs, samples.batch) for name, run in runs.items()}
        for index, sample in enumerate(chunk):
            yield sample, {name: found[index] for name, found in results.items()}


def _quantized(values: Sequence[np.ndarray], inputs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Real values as the model takes them."""
    return [
        value if spec.qparams is None else spec.qparams.quantize(value)
        for value, spec in zip(values, inputs, strict=True)
    ]


def _results(raw: Sequence[np.ndarray], outputs: Sequence[TensorSpec], batch: int) -> list[_Result]:
    """The outputs of a batch, sample by sample."""
    for value, spec in zip(raw, outputs, strict=True):
        if batch > 1 and value.shape[:1] != (batch,):
            raise InputError(
                f"output {spec.name!r} of shape {value.shape} does not have the {batch} samples of a batch along its "
                "first dimension: import the model for a batch of 1"
            )
    real = [
        value if spec.qparams is None else spec.qparams.dequantize(value)
        for value, spec in zip(raw, outputs, strict=True)
    ]
    return [
        _Result([_of(value, at, batch) for value in raw], [_of(value, at, batch) for value in real])
        for at in range(batch)
    ]


def _of(value: np.ndarray, index: int, batch: int) -> np.ndarray:
    """A sample's part of an output."""
    return value[index] if value.shape[:1] == (batch,) else value
