"""The accuracy of a network in its framework, built in float and built in integers, on the same labelled data.

found = qnn_ext.accuracy(qnn_ext.from_onnx("model.onnx"), "photos/", framework=onnx_runtime("model.onnx"))
found["int8"].metrics["top-1"]
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from ..building import build
from ..compiling.build import TargetLike
from ..errors import InputError
from ..module import QnnModule, TensorSpec
from ..processes.cores import default_threads
from ..quantize.config import QConfig, resolve_config
from ..quantize.stages import is_quantized
from ..running.engine import Engine
from .frameworks import Framework
from .measuring import FLOAT, FRAMEWORK, INTEGERS, Counting, Measuring, Ports, Reading, Show, mapped
from .metrics import Agreement, Metric, class_of
from .samples import Sample

Model: TypeAlias = QnnModule | Engine

CALIBRATE = 100
_RANKS = (1, 5)
_SAME, _EQUAL = "same top-1 as the framework", "equal to the framework bit for bit"

SHARES = (*(f"top-{rank}" for rank in _RANKS), _SAME, _EQUAL)
"""The figures that are shares of the samples."""


@dataclass(frozen=True)
class Column:
    """One way to run the network.

    name:      "framework", "float" or "int8"
    title:     for tables
    metrics:   by name: "top-1" and "top-5" as shares, or what the user's own metric returns. Empty with a reason
    agreement: with the framework; None for the framework itself, or without one
    missing:   why it was not run; empty if it was
    """

    name: str
    title: str
    metrics: dict[str, float]
    agreement: Agreement | None = None
    missing: str = ""


@dataclass(frozen=True)
class Accuracy:
    """The columns of one model, and what they were measured on.

    calibrated: what the integers were calibrated on, in words; empty if the model was quantized before
    engines:    the builds that were run, by column
    """

    model: str
    samples: int
    columns: tuple[Column, ...]
    calibrated: str
    engines: dict[str, Engine]

    def __getitem__(self, name: str) -> Column:
        """The column "framework", "float" or "int8"."""
        return next(column for column in self.columns if column.name == name)

    def rows(self) -> list[tuple[str, list[float | None]]]:
        """Each figure with its value in each column: metrics, then agreement with the framework."""
        names = dict.fromkeys(name for column in self.columns for name in column.metrics)
        rows = [(name, [column.metrics.get(name) for column in self.columns]) for name in names]
        for name, text in (("same", _SAME), ("equal", _EQUAL)):
            values = [None if one.agreement is None else getattr(one.agreement, name) for one in self.columns]
            if any(value is not None for value in values):
                rows.append((text, values))
        return rows


def accuracy(
    model: Model,
    data: Any,
    labels: Any = None,
    *,
    classes: Sequence[str] | str | os.PathLike | None = None,
    label_offset: int = 0,
    metric: Metric | None = None,
    framework: Framework | None = None,
    float_model: QnnModule | None = None,
    calibration: Any = None,
    calibrate: int = CALIBRATE,
    qconfig: QConfig | None = None,
    target: TargetLike = "native",
    num_threads: int | None = None,
    normalize: str = "auto",
    limit: int | None = None,
    progress: bool = False,
) -> Accuracy:
    """Run a network on labelled data in its framework, as a float build and as an integer build, side by side.

    model:        a float module, which is built as it is and quantized; or a quantized module or an engine, which are
                  the integer build, while the float build is that of `float_model`
    data:         an .npz or .npy file, a folder of such files or of photos, or arrays: see `samples.Samples`; or
                  `quantize.Shards` of them, with labels in each, which are run where their map calls
    labels, classes, label_offset: the right answers, see `labels.Labels`; by default those in the data, or the
                  sub-folders' names
    metric:       (outputs, labels) → a number, or a dict of numbers by name, in place of top-1 and top-5. outputs:
                  real values, (samples, …); a dict by name if the model has several
    framework:    the file in its own runtime, of `qnn_ext.evaluation.frameworks`
    float_model:  the float version of a quantized model. Its inputs may have another layout if the data are photos
    calibration:  data for `quantize`; default: the first `calibrate` samples of `data`
    qconfig:      how to quantize
    target, num_threads: as for `build`; this machine must be able to run it
    normalize:    how pixels become values, see `qnn_ext.images`
    limit:        how many samples to use; default: all
    progress:     show a bar on stderr

    Samples go through a model one by one, or as many at a time as its batch; the last batch is filled up. Top-1 and
    top-5 take the first output with several values for each sample. Raises InputError for data, labels and metrics that
    do not fit, and what `build` and `quantize` raise. A framework that cannot run the model leaves its column empty.
    """
    if not isinstance(model, (QnnModule, Engine)):
        raise InputError(f"a model is a QnnModule or an Engine, found {type(model).__name__}")
    if isinstance(data, Iterator):
        raise InputError("the data can be read only once: give a list, a path, or a function that returns an iterable")
    classifies = _classifier(model.outputs)
    if metric is None and classifies is None:
        raise InputError("no output has several values for each sample, so there is no top-1: give a metric")
    classes_known = None if metric is not None or classifies is None else _values(model.outputs[classifies])

    ranks = [rank for rank in _RANKS if rank < (classes_known or 0)]
    counting = Counting(metric, classifies, ranks)
    reading = Reading(labels, classes, label_offset, classes_known, normalize, limit)
    reading.check(data)
    if not mapped(data):  # what does not fit is found before anything is built
        for first in itertools.islice(reading.samples(data, model.inputs), 1):
            if classes_known is not None:
                class_of(first, classes_known)
    with _shown(progress) as show:
        calibrating = Reading(normalize=normalize) if calibration is not None else reading
        samples = partial(calibrating.samples, data if calibration is None else calibration, model.inputs)
        engines = _builds(model, float_model, samples, calibrate, qconfig, (target, num_threads), show)
        measuring = Measuring(
            Ports.of(model),
            None if float_model is None else Ports.of(float_model),
            engines,
            framework,
            num_threads or default_threads(),
            counting,
            reading,
        )
        show(f"running {_name(model)}", reading.count(data, model.inputs))
        found = measuring.on_all(data, show)
    missing = {
        FRAMEWORK: found.missing or "no framework was given",
        FLOAT: "the model is quantized; its float version was not given",
    }
    meters, agreeing, count = found.meters, found.agreeing, found.count
    titles = {FRAMEWORK: framework.title if framework else "framework", FLOAT: "float build", INTEGERS: "int8 build"}
    columns = [
        Column(name, title, meters[name].result(), agreeing[name].result() if name in agreeing else None)
        if name in meters
        else Column(name, title, {}, missing=missing[name])
        for name, title in titles.items()
    ]
    calibrated = ""
    if isinstance(model, QnnModule) and not is_quantized(model):
        calibrated = f"the first {min(calibrate, count)} samples of the data"
        if calibration is not None:
            calibrated = f"at most {calibrate} samples of other data"
    return Accuracy(_name(model), count, tuple(columns), calibrated, engines)


def _name(model: Model) -> str:
    return model.source if isinstance(model, QnnModule) else model.source_name


# ---- what is run -------------------------------------------------------------------------------------------------


def _builds(
    model: Model,
    float_model: QnnModule | None,
    calibrating: Callable[[], Iterable[Sample]],
    calibrate: int,
    qconfig: QConfig | None,
    where: tuple[TargetLike, int | None],
    show: Show,
) -> dict[str, Engine]:
    """The engines by column."""
    engines: dict[str, Engine] = {}
    if isinstance(model, Engine):
        engines[INTEGERS] = model
    elif is_quantized(model):
        show(f"building {model.source}")
        engines[INTEGERS] = build(model, *where)
    else:
        if float_model is not None:
            raise InputError(f"{model.source} is a float model itself, so there is no other float version of it")
        float_model = model
        show(f"quantizing {model.source}")
        engines[INTEGERS] = build(
            model,
            *where,
            qconfig=qconfig or resolve_config(None),
            dataset=lambda: (tuple(sample.values) for sample in itertools.islice(calibrating(), calibrate)),
        )
    if float_model is not None:
        _check_outputs(model, float_model)
        show(f"building {float_model.source} in float")
        engines[FLOAT] = build(float_model, *where)
    return engines


def _check_outputs(model: Model, float_model: QnnModule) -> None:
    """Raise InputError if the float version of a model has other outputs."""
    wanted, found = ([_values(spec) for spec in one.outputs] for one in (model, float_model))
    if wanted != found:
        raise InputError(
            f"{float_model.source} is no float version of {_name(model)}: its outputs are "
            f"{', '.join(map(str, float_model.outputs))}, not {', '.join(map(str, model.outputs))}"
        )


def _values(spec: TensorSpec) -> int:
    """How many values one sample has."""
    return math.prod(spec.shape[1:])


def _classifier(outputs: Sequence[TensorSpec]) -> int | None:
    """The number of the first output that is a vector of several values for each sample."""
    vectors = (index for index, spec in enumerate(outputs) if 1 < _values(spec) == max(spec.shape[1:], default=0))
    return next(vectors, None)


@contextmanager
def _shown(wanted: bool) -> Iterator[Show]:
    """A function (text, total) that shows what is being done, and with None advances a bar, on stderr if wanted."""
    if not wanted:
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(text: str | None, total: int | None = None) -> None:
            if text is None:
                bar.update(task, advance=1, total=total)
            else:
                bar.reset(task, description=text.replace("[", "("), total=total)

        yield show
