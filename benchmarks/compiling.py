"""Our side of a model, prepared in its own process: imported, built for each number of threads, saved.

    python -m benchmarks.compiling [--models PATH ...] [--threads N] [--jobs N]

prints what building takes, in seconds of wall-clock time and of CPU time of this process, its threads and its linker:
the first build; one where only the kernels' objects are in the cache, as after a change of weights alone; and the
second one. CPU time is what to compare: it depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .memory import peak_bytes, reset_peak
from .models import Model, default_models, find_models
from .worker import WorkerError, computed_apart

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


def compile_model(
    model: Model, threads: list[int], folder: Path, limit: float, verbose: bool = False, precision: str = "float32"
) -> Compiled:
    """Compile a model in its own process. Raises WorkerError if it fails or takes longer than `limit` seconds."""
    result = computed_apart(_compile, model, threads, folder, precision, limit=limit, verbose=verbose)
    assert isinstance(result, Compiled)
    return result


def _compile(model: Model, threads: list[int], folder: Path, precision: str) -> Compiled:
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
        engine = qnn_ext.build(module, num_threads=count, cache=False, precision=precision)
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


# ---- how long it takes -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Took:
    """Seconds of wall-clock time and of CPU time."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:.1f} | {self.cpu:.1f}"


@dataclass(frozen=True)
class Times:
    """What the builds of a model took, each with a cache; kernels: in the engine, and how many of them differ."""

    kernels: int
    distinct: int
    first: Took
    objects: Took
    second: Took


def _times(model: Model, threads: int, jobs: int | None) -> Times:
    import qnn_ext
    from qnn_ext.compiling.program import objects

    distinct: set[str] = set()
    grouped = objects._groups

    def counted(kernels: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        distinct.update(kernels)
        return grouped(kernels)

    objects._groups = counted
    module = import_model(model.path, model.stored_inputs())
    with tempfile.TemporaryDirectory(prefix="qnn-ext-bench-") as folder:

        def build(**options: Any) -> tuple[qnn_ext.Engine, Took]:
            wall, cpu = time.perf_counter(), _cpu_seconds()
            engine = qnn_ext.build(module, num_threads=threads, cache=folder, jobs=jobs, **options)
            return engine, Took(time.perf_counter() - wall, _cpu_seconds() - cpu)

        engine, first = build()
        _, of_objects = build(limits=qnn_ext.Limits(seconds=601))  # in the key of whole builds, not of objects
        _, second = build()
    return Times(len(engine.kernels), len(distinct), first, of_objects, second)


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--threads", type=int, default=1, help="that the kernels may use (default: 1)")
    parser.add_argument("--jobs", type=int, help="threads that generate machine code (default: all cores)")
    options = parser.parse_args()
    print("| model | kernels | distinct | first: wall | CPU | objects kept: wall | CPU | second: wall | CPU |")
    print("|---|---|---|---|---|---|---|---|---|")
    for model in find_models(options.models) if options.models else default_models():
        try:
            took = computed_apart(_times, model, options.threads, options.jobs, limit=600)
        except WorkerError as error:
            print(f"| {model.path.name} | {error} |", flush=True)
            continue
        cells = (took.kernels, took.distinct or "", took.first, took.objects, took.second)
        print(f"| {model.path.stem} | {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
