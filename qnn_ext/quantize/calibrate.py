"""Calibrate: find the ranges of all sites of an annotated module, of weights from their values, of others from data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from warnings import warn

import numpy as np

from ..compiling.build import compile_module
from ..errors import QuantizationError, QuantizationWarning
from ..module import QnnModule
from . import choose
from .alternatives import Alternatives, Table
from .annotate import Site, sites
from .calibrators import CALIBRATORS, Auto, Calibrator, OutputError, Settings, make_calibrator
from .choose import Fold, choose_alternative, choose_ranges, comparable
from .collect import Reader, collect, collect_shards
from .config import QConfig, current_config
from .dataset import Batches, ShardedBatches, batch_size_of, batches
from .engines import engine_of, shared_engines
from .instrument import instrument
from .measurable import measurable
from .progress import shown
from .ranges import Range
from .table import CalibrationTable
from .weights import weight_range


def calibrate(
    annotated: QnnModule, dataset: Any = None, config: QConfig | None = None, progress: bool = False
) -> CalibrationTable:
    """The range of every site of an annotated module.

    dataset:  as `dataset.batches` takes it, also in Shards. None will do if every range is fixed, or chosen as by
              "global_scale", which is then what "auto" means
    config:   the QConfig, by default that of the innermost `with qconfig(...)`
    progress: show a progress bar

    Raises QuantizationError: no data where the mode needs them, an empty data set, NaN or infinities, naming the site.
    """
    config = config or current_config() or QConfig()
    found = sites(annotated)
    fixed = {site.name: _fixed_range(site, config) for site in found}
    unknown = [site for site in found if fixed[site.name] is None]
    assigned = _assign(unknown, config, batch_size_of(annotated.inputs), dataset is not None)
    reading = [name for name, calibrator in assigned.items() if calibrator.needs_data]
    dataset = batches(dataset, annotated.inputs) if reading else dataset  # which counts them in its first pass
    auto = {name: one for name, one in assigned.items() if isinstance(one, Auto)}
    with shared_engines():
        if reading:
            _collect(annotated, dataset, {name: assigned[name] for name in reading}, config, progress)
        ranges = {name: value or assigned[name].threshold(name) for name, value in fixed.items()}
        candidates = {name: one.candidates(name) for name, one in assigned.items() if isinstance(one, OutputError)}
        if candidates:
            ranges |= choose_ranges(measurable(annotated), candidates, ranges, dataset, config)
        compared = not annotated.states and config.balance is not True
        if auto and compared:  # with states there is no program that takes all ranges
            again = partial(_recalibrated, annotated, found, ranges, {name: assigned[name] for name in reading})
            with shown(progress) as show:
                show("comparison of ranges")
                choice = choose_alternative(measurable(annotated), again, reading, dataset, config)
            ranges = Alternatives(auto, ranges, found)[choice]
    return CalibrationTable(ranges)


def usual_errors(annotated: QnnModule, data: list[list[np.ndarray]], config: QConfig) -> np.ndarray | None:
    """The errors of `choose.usual_errors`; None where "auto" does not choose the range of each activation."""
    found = sites(annotated)
    fixed = {site.name: _fixed_range(site, config) for site in found}
    unknown = [site for site in found if site.role != "weight"]
    assigned = _assign(unknown, config, batch_size_of(annotated.inputs), True)
    chosen = all(fixed[site.name] is None and isinstance(assigned[site.name], Auto) for site in unknown)
    if not unknown or not chosen or annotated.states:
        return None
    ranges = {name: value or Range(0.0, 0.0) for name, value in fixed.items()}
    again = partial(_recalibrated, annotated, found, ranges, assigned)
    return choose.usual_errors(measurable(annotated), again, list(assigned), data, config)


def _recalibrated(
    annotated: QnnModule,
    found: Sequence[Site],
    ranges: Table,
    assigned: Mapping[str, Calibrator],
    folds: Sequence[Fold],
) -> list[Alternatives]:
    """For each fold, the tables from the batches of the others; of a single one, from its own. assigned: of the sites
    that are read"""
    instrumented = comparable(annotated, {}, list(assigned))
    engine, reader = engine_of(instrumented.module), Reader(instrumented.sites, assigned)
    others = [reader.fresh() for _ in folds]
    for index, fold in enumerate(folds):
        own = reader.fresh()
        for _ in own.read(engine, fold):
            pass
        for position, other in enumerate(others):
            if position != index or len(folds) == 1:
                other.merge(own)
    autos = [{name: one for name, one in other.calibrators.items() if isinstance(one, Auto)} for other in others]
    return [Alternatives(auto, ranges, found) for auto in autos]


def _fixed_range(site: Site, config: QConfig) -> Range | None:
    """The range of a weight, or the one that the user fixed; None if it has to be found."""
    if site.role == "weight":
        if site.value is None:
            raise QuantizationError(
                f"site {site.name!r} is a weight, but is computed at run time: fold constants first"
            )
        return weight_range(site.value, site.axis, site.calibrate_mode, site.bits, config.power_of_two, site.name)
    return None if site.range is None else Range(*site.range, "fixed")


def _assign(found: Sequence[Site], config: QConfig, batch_size: int, with_data: bool) -> dict[str, Calibrator]:
    """The calibrator of each site; sites with equal settings share one. Raises QuantizationError without data."""
    shared: dict[tuple[str, Settings], Calibrator] = {}
    assigned = {}
    for site in found:
        mode = site.calibrate_mode
        if not with_data and mode == "auto":
            mode = "global_scale"
        settings = _settings(site, config, batch_size)
        calibrator = shared.setdefault((mode, settings), make_calibrator(mode, settings))
        if calibrator.needs_data and not with_data:
            without = ", ".join(repr(name) for name, kind in CALIBRATORS.items() if not kind.needs_data)
            raise QuantizationError(
                f"site {site.name!r}: calibrate_mode={mode!r} needs data: give a dataset or a calibration table, or "
                f"choose {without}"
            )
        assigned[site.name] = calibrator
    if any(site.calibrate_mode == "auto" for site in found) and not with_data:
        warn(
            f"without data every activation gets the range ±{config.global_scale:g} (global_scale), which is rarely "
            "right: give a dataset or a calibration table",
            QuantizationWarning,
            stacklevel=3,
        )
    return assigned


def _settings(site: Site, config: QConfig, batch_size: int) -> Settings:
    return Settings(
        dtype=site.dtype,
        bits=site.bits,
        symmetric=site.symmetric,
        power_of_two=config.power_of_two,
        bins=config.bins,
        percentile=site.percentile,
        momentum=config.momentum,
        global_scale=config.global_scale,
        batch_size=batch_size,
    )


def _collect(
    annotated: QnnModule, samples: Batches, calibrators: dict[str, Calibrator], config: QConfig, progress: bool
) -> None:
    """Feed the tensors of these sites to their calibrators, calibrate_chunk_by sites in each pass over the data."""
    names = list(calibrators)
    size = len(names) if config.calibrate_chunk_by < 0 else config.calibrate_chunk_by
    chunks = [names[start : start + size] for start in range(0, len(names), size)]
    workers = 1 if annotated.states else config.num_workers
    mapped = isinstance(samples, ShardedBatches) and samples.dataset.map is not None and not annotated.states
    compares = any(isinstance(one, Auto) for one in calibrators.values()) and not annotated.states
    with _progress_bar(samples, len(chunks), progress) as advance:
        for chunk in chunks:
            shared = compares and len(chunks) == workers == 1 and not mapped  # the program that compares modes
            instrumented = comparable(annotated, {}, chunk) if shared else instrument(annotated, chunk)
            reader = Reader(instrumented.sites, {name: calibrators[name] for name in chunk})
            if mapped:
                assert isinstance(samples, ShardedBatches)
                collect_shards(compile_module(instrumented.module), reader, samples, advance)
                continue
            engine = engine_of(instrumented.module) if workers == 1 else compile_module(instrumented.module)
            collect(engine, reader, samples, workers, advance)


@contextmanager
def _progress_bar(samples: Batches, passes: int, shown: bool) -> Iterator[Callable[[], None]]:
    """A function to call after each batch, which advances a progress bar if one is shown."""
    if not shown:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    total = samples.count * passes if samples.count is not None else None
    columns = TextColumn("calibrate"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("calibrate", total=total)
        yield lambda: bar.advance(task)
