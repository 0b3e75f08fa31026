"""One model on some number of threads: ours and every other runtime that reads it, in turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from .compiling import Compiled
from .layers import Layer, layers_of
from .models import Model
from .runners import Peer
from .turns import Times, take_turns
from .worker import Ready, Task, Worker, WorkerError

OURS = "qnn_ext"
OURS_FLOAT32 = "qnn_ext float32"
PEAK = "peak: "
PROFILE_SECONDS = 0.5


@dataclass(frozen=True)
class Options:
    """How to measure: number and length of turns, time limit for loading a model, scheduling."""

    rounds: int = 15
    seconds_per_turn: float = 0.04
    setup_limit: float = 120.0
    realtime: bool = False
    verbose: bool = False
    precision: str = "float32"


@dataclass(frozen=True)
class Memory:
    """Resident bytes of a runtime's process: after import, peak while loading and running, peak while running."""

    base: int | None
    peak: int | None
    running: int | None


@dataclass
class Comparison:
    """One model on some threads. What a runtime could not do is in `failures`.

    times:     seconds per call by runtime; "qnn_ext" is ours
    rival:     the other runtimes that run this same file
    agreement: ours against `reference`: share of equal output values, and largest difference as a share of the range
    peaks:     the machine's best operations per second by arithmetic, measured in the same turns
    """

    model: Model
    threads: int
    times: dict[str, Times] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    rivals: list[str] = field(default_factory=list)
    memory: dict[str, Memory] = field(default_factory=dict)
    reference: str | None = None
    agreement: tuple[float, float] | None = None
    layers: list[Layer] = field(default_factory=list)
    peaks: dict[str, float] = field(default_factory=dict)

    @property
    def best_rival(self) -> str | None:
        """The fastest other runtime."""
        return min(self.rivals, key=lambda name: self.times[name].median) if self.rivals else None

    def ratio(self, least: bool = False) -> float | None:
        """Latency of the best rival over ours: by medians, or by minima."""
        if OURS not in self.times or not self.rivals:
            return None
        if least:
            return min(self.times[name].least for name in self.rivals) / self.times[OURS].least
        return min(self.times[name].median for name in self.rivals) / self.times[OURS].median

    def of_peak(self) -> float | None:
        """The time that our products would take at the machine's peaks, as a share of ours."""
        least = sum(layer.least(self.peaks) for layer in self.layers)
        return least / self.times[OURS].median if least and OURS in self.times else None


def compare(
    model: Model,
    threads: int,
    ours: Compiled | None,
    twin: Compiled | None,
    peers: Sequence[Peer],
    peaks: Mapping[str, Worker],
    options: Options,
) -> Comparison:
    """Measure. ours, twin: the compiled model and its compiled float twin, None where it failed or there is none."""
    result = Comparison(model, threads)
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for name, task in _tasks(model, threads, ours, twin, peers, options.precision).items():
            workers[name] = Worker(task, options.verbose, options.realtime)
            stack.callback(workers[name].close)
        ready = _wait(workers, options.setup_limit, result.failures)
        running = {name: workers[name] for name in ready}
        own = {peer.title for peer in peers if model.format in peer.formats}
        _measure(result, running, peaks, options)
        result.rivals = [name for name in result.times if name in own]
        result.memory = {name: _memory(workers[name], ready[name]) for name in result.times}
        _compare_outputs(result, ready, [peer.title for peer in peers])
        if OURS in result.times:
            result.layers = _profile(workers[OURS], result)
    return result


def _tasks(
    model: Model, threads: int, ours: Compiled | None, twin: Compiled | None, peers: Sequence[Peer], precision: str
) -> dict[str, Task]:
    inputs = ours.inputs if ours else model.stored_inputs() or []
    tasks = {}
    if ours:
        tasks[OURS] = Task("qnn_ext", ours.builds[threads].path, threads, inputs)
    for peer in peers:
        if model.format in peer.formats and precision in peer.precisions:
            tasks[peer.title] = Task(peer.key, str(model.path), threads, inputs, precision)
    if model.float_twin and twin:
        tasks[OURS_FLOAT32] = Task("qnn_ext", twin.builds[threads].path, threads, twin.inputs)
        for peer in peers:
            if model.float_twin.format in peer.formats and precision in peer.precisions:
                task = Task(peer.key, str(model.float_twin.path), threads, twin.inputs, precision)
                tasks[f"{peer.title} float32"] = task
    return tasks


def _wait(workers: Mapping[str, Worker], limit: float, failures: dict[str, str]) -> dict[str, Ready]:
    ready = {}
    for name, worker in workers.items():
        try:
            ready[name] = worker.wait(limit)
        except WorkerError as error:
            failures[name] = str(error)
            worker.stop()
    return ready


def _measure(result: Comparison, running: Mapping[str, Worker], peaks: Mapping[str, Worker], options: Options) -> None:
    if not running:
        return
    together = {**running, **{PEAK + arithmetic: worker for arithmetic, worker in peaks.items()}}
    times, failures = take_turns(together, options.rounds, options.seconds_per_turn)
    for arithmetic, worker in peaks.items():
        taken = times.pop(PEAK + arithmetic, None)
        if taken and worker.ready:
            result.peaks[arithmetic] = worker.ready.work / taken.least
    result.times.update(times)
    result.failures.update(failures)


def _memory(worker: Worker, ready: Ready) -> Memory:
    running = worker.ask("peak_bytes")
    peak = max(filter(None, (ready.peak_bytes, running)), default=None)
    return Memory(ready.base_bytes, peak, running)


def _compare_outputs(result: Comparison, ready: Mapping[str, Ready], order: Sequence[str]) -> None:
    reference = next((name for name in order if name in ready), None)
    if reference is None or OURS not in ready:
        return
    pairs = list(zip(ready[OURS].outputs, ready[reference].outputs, strict=False))
    values = sum(a.size for a, _ in pairs)
    if not values or any(a.size != b.size for a, b in pairs):
        return
    equal = sum(int((a.reshape(-1) == b.reshape(-1)).sum()) for a, b in pairs)
    result.reference = reference
    result.agreement = equal / values, max(_distance(a, b) for a, b in pairs)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference as a share of b's range."""
    x, y = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    return float(np.abs(x - y).max(initial=0.0) / (np.ptp(y) or 1.0)) if y.size else 0.0


def _profile(worker: Worker, result: Comparison) -> list[Layer]:
    repeat = max(5, min(200, round(PROFILE_SECONDS / result.times[OURS].median)))
    try:
        return layers_of(worker.ask("profile", repeat))
    except WorkerError as error:
        result.failures[f"{OURS} profile"] = str(error)
        return []
