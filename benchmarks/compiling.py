"""Our side of a model, prepared in its own process: imported, built for each number of threads, saved."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .memory import peak_bytes, reset_peak
from .models import Model
from .worker import computed_apart

if TYPE_CHECKING:
    import qnn_ext


@dataclass(frozen=True)
class Build:
    """A `.qnn` file and what building it cost. `peak_bytes` is the peak memory of the building process."""

    path: str
    seconds: float
    bytes: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Compiled:
    """A model that is ready to be measured.

    import_seconds: from the file to the QNN dialect
    macs:           multiply-accumulates of convolutions and matrix products
    integer_share:  the share of them computed in integers
    builds:         by number of threads
    """

    inputs: list[np.ndarray]
    import_seconds: float
    macs: int
    integer_share: float
    builds: dict[int, Build]


def compile_model(model: Model, threads: list[int], folder: Path, limit: float, verbose: bool = False) -> Compiled:
    """Compile a model in its own process. Raises WorkerError if it fails or takes longer than `limit` seconds."""
    result = computed_apart(_compile, model, threads, folder, limit=limit, verbose=verbose)
    assert isinstance(result, Compiled)
    return result


def _compile(model: Model, threads: list[int], folder: Path) -> Compiled:
    import qnn_ext
    from qnn_ext.compiling.coverage import coverage

    stored = model.stored_inputs()
    started = time.perf_counter()
    module = import_model(model.path, stored)
    import_seconds = time.perf_counter() - started
    inputs = stored or [_random_input(spec) for spec in module.inputs]
    builds = {}
    for count in threads:
        reset_peak()
        path = folder / f"{model.path.name}.{count}.qnn"
        started = time.perf_counter()
        engine = qnn_ext.build(module, num_threads=count, cache=False)
        seconds = time.perf_counter() - started
        engine.save(path)
        builds[count] = Build(str(path), seconds, path.stat().st_size, peak_bytes())
    found = coverage(module)
    return Compiled(inputs, import_seconds, found.macs, found.share, builds)


def import_model(path: Path, inputs: list[np.ndarray] | None) -> qnn_ext.QnnModule:
    """The model imported for the shapes of the inputs, in its framework's own arithmetic."""
    from qnn_ext.cli.formats import ImportOptions, read_module

    model = Model(path)
    if model.format == "torchscript":
        from qnn_ext.frontends.pytorch import from_pytorch

        examples = tuple(inputs) if inputs else None
        return from_pytorch(path, example_inputs=examples, engine=model.engine)  # the file itself does not say
    if model.format == "mxnet":  # bit for bit what MXNet computes, including its clipping of sums
        shapes = {"data": inputs[0].shape} if inputs else None
        return read_module(path, "mxnet", ImportOptions(shapes=shapes, sum_mode="mxnet"))
    return read_module(path, model.format, ImportOptions())


def _random_input(spec: qnn_ext.TensorSpec) -> np.ndarray:
    """Every value of an 8- or 16-bit type, [0, 1) of a float one; 0 or 1 for wider integers, which may be indices."""
    rng = np.random.default_rng(0)
    if np.dtype(spec.dtype).kind == "f":
        return rng.random(spec.shape).astype(spec.dtype)
    if np.dtype(spec.dtype).itemsize > 2 or spec.dtype == "bool":
        return rng.integers(0, 2, spec.shape).astype(spec.dtype)
    info = np.iinfo(spec.dtype)
    return rng.integers(info.min, info.max, spec.shape, dtype=spec.dtype, endpoint=True)
