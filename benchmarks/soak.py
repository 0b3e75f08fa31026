"""What a process still holds after very many engines, calls and threads: nothing may grow with their number.

    python -m benchmarks.soak [SCENARIO ...] [--scale 1.0] [--json FILE]

Each scenario runs in its own process. After a tenth of its rounds, when all caches are full, and again at the end, it
counts resident memory, threads, file descriptors, mappings and temporary files. "per round" is the growth of resident
memory between the two.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import qnn_ext
from qnn_ext.files.storage import write_text

from .memory import resident_bytes
from .worker import WorkerError, computed_apart

DATA = Path(qnn_ext.__file__).parent / "data"
LIMIT = 6 * 3600.0
_WARM = 0.1  # the share of the rounds after which caches are full


@dataclass(frozen=True)
class Held:
    """The resources that a process holds."""

    resident: int
    threads: int
    descriptors: int
    mappings: int
    files: int

    @classmethod
    def now(cls, folder: Path) -> Held:
        """The resources that this process holds; its temporary files are those in `folder`."""
        gc.collect()
        process = Path("/proc/self")
        return cls(
            resident_bytes() or 0,
            sum(1 for _ in (process / "task").iterdir()),
            sum(1 for _ in (process / "fd").iterdir()),
            len((process / "maps").read_text().splitlines()),
            sum(1 for _ in folder.rglob("*")),
        )


@dataclass(frozen=True)
class Grown:
    """What a scenario held once warm, and at the end."""

    scenario: str
    rounds: int
    seconds: float
    warm: Held
    end: Held

    @property
    def bytes_per_round(self) -> float:
        return (self.end.resident - self.warm.resident) / (self.rounds - int(self.rounds * _WARM))


# ---- scenarios: generators that yield after each round -----------------------------------------------------------


def program_model() -> qnn_ext.QnnModule:
    return qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")


def machine_model() -> qnn_ext.QnnModule:
    """A model that runs on TVM's virtual machine, since it sorts."""
    from tvm import IRModule, relax

    from qnn_ext.module import TensorSpec

    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType((4, 64), "float32"))
    with builder.function("main", [data]):
        with builder.dataflow():
            ordered = builder.emit(relax.op.sort(builder.emit(relax.op.add(data, data)), axis=1))
            result = builder.emit_output(relax.Tuple([ordered]))
        builder.emit_func_output(result)
    ir = IRModule({"main": builder.get()["main"]})
    return qnn_ext.QnnModule(
        ir, (TensorSpec("x", (4, 64), "float32"),), (TensorSpec("y", (4, 64), "float32"),), (), (), "sort"
    )


def _calls(module: qnn_ext.QnnModule, rounds: int, threads: int) -> Iterator[None]:
    engine = qnn_ext.build(module, num_threads=threads)
    values = _zeros(engine)
    for _ in range(rounds):
        engine(*values)
        yield


def _short_threads(module: qnn_ext.QnnModule, rounds: int, threads: int) -> Iterator[None]:
    engine = qnn_ext.build(module, num_threads=threads)
    values = _zeros(engine)
    for _ in range(rounds):
        thread = threading.Thread(target=engine, args=values)
        thread.start()
        thread.join()
        yield


def _engines(module: qnn_ext.QnnModule, rounds: int, threads: int) -> Iterator[None]:
    """200 engines at once, one of which is replaced every round."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.qnn"
        qnn_ext.build(module, num_threads=threads).save(path)
        engines = [qnn_ext.load(path, threads) for _ in range(200)]
        values = _zeros(engines[0])
        for turn in range(rounds):
            engines[turn * 7 % len(engines)] = qnn_ext.load(path, threads)
            for engine in engines[:: len(engines) // 4]:
                engine(*values)
            yield


def _loads(module: qnn_ext.QnnModule, rounds: int, threads: int) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.qnn"
        qnn_ext.build(module, num_threads=threads).save(path)
        for _ in range(rounds):
            engine = qnn_ext.load(path, threads)
            engine(*_zeros(engine))
            yield


def _builds(module: qnn_ext.QnnModule, rounds: int, threads: int) -> Iterator[None]:
    for _ in range(rounds):
        engine = qnn_ext.build(module, num_threads=threads)
        engine(*_zeros(engine))
        yield


def _imports(module: qnn_ext.QnnModule, rounds: int, threads: int) -> Iterator[None]:
    for _ in range(rounds):
        program_model()
        yield


def _saves(module: qnn_ext.QnnModule, rounds: int, threads: int) -> Iterator[None]:
    engine = qnn_ext.build(module, num_threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            engine.save(Path(folder) / "model.qnn")
            yield


def _zeros(engine: qnn_ext.Engine) -> list[np.ndarray]:
    return [np.zeros(spec.shape, spec.dtype) for spec in engine.inputs]


Scenario = Callable[[qnn_ext.QnnModule, int, int], Iterator[None]]
SCENARIOS: dict[str, tuple[Scenario, Callable[[], qnn_ext.QnnModule], int, int]] = {  # what, of what, rounds, threads
    "calls": (_calls, program_model, 100_000, 2),
    "calls of a virtual machine": (_calls, machine_model, 100_000, 2),
    "threads": (_short_threads, program_model, 10_000, 2),
    "threads of a virtual machine": (_short_threads, machine_model, 10_000, 2),
    "200 engines": (_engines, program_model, 2_000, 2),
    "loads": (_loads, program_model, 2_000, 2),
    "loads of a virtual machine": (_loads, machine_model, 2_000, 2),
    "builds": (_builds, program_model, 2_000, 2),
    "builds of a virtual machine": (_builds, machine_model, 2_000, 2),
    "imports": (_imports, program_model, 2_000, 1),
    "saves": (_saves, program_model, 200, 1),
}


def soak(name: str, scale: float = 1.0) -> Grown:
    """Run a scenario in this process."""
    scenario, model, rounds, threads = SCENARIOS[name]
    rounds = max(20, int(rounds * scale))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        tempfile.tempdir = folder
        for index, _ in enumerate(scenario(model(), rounds, threads)):
            if index == int(rounds * _WARM):
                warm = Held.now(Path(folder))
            if index == rounds - 1:
                end = Held.now(Path(folder))
        tempfile.tempdir = None
    return Grown(name, rounds, time.perf_counter() - started, warm, end)


# ---- the command -------------------------------------------------------------------------------------------------


def table_of(results: list[Grown]) -> Table:
    """One row per scenario: warm → at the end."""
    table = Table()
    table.add_column("scenario", no_wrap=True)
    for name in ("rounds", "seconds", "resident MB", "per round", "threads", "descriptors", "mappings", "files"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in results:
        pairs = zip(asdict(one.warm).values(), asdict(one.end).values(), strict=True)
        resident, *counts = [(before, after) for before, after in pairs]
        table.add_row(
            one.scenario,
            str(one.rounds),
            f"{one.seconds:.0f}",
            f"{resident[0] / 1e6:.1f} → {resident[1] / 1e6:.1f}",
            f"{one.bytes_per_round:.0f} B",
            *(f"{before} → {after}" for before, after in counts),
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"default: all of {', '.join(SCENARIOS)}")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the number of rounds by this")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    unknown = set(options.scenarios) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    results, failed = [], False
    for name in options.scenarios or SCENARIOS:
        try:
            results.append(computed_apart(soak, name, options.scale, limit=LIMIT))
        except WorkerError as error:
            failed = True
            print(f"{name}: {error}", file=sys.stderr)
    Console(width=None if sys.stdout.isatty() else 160).print(table_of(results))
    if options.json:
        data: list[dict[str, Any]] = [{**asdict(one), "bytes_per_round": one.bytes_per_round} for one in results]
        write_text(options.json, json.dumps(data, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
