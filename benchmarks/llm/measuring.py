"""A process for each runtime, which prefills and decodes when asked and is stopped in between; they take turns."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from ..memory import peak_bytes, reset_peak, resident_bytes
from ..worker import Child, Task, Worker, WorkerError, one_line
from .networks import Network
from .runners import RUNTIMES, Language

STEPS = 8
"""Tokens decoded in a turn."""
_FIRST = 1800.0
"""Seconds that a runtime may take for what it does first, such as compiling."""


@dataclass(frozen=True)
class Phase:
    """What is timed: the prompt of `length` tokens, or tokens after it."""

    kind: str  # "prefill" or "decode"
    length: int

    def __str__(self) -> str:
        return f"{self.kind} {self.length}"


@dataclass(frozen=True)
class Ready:
    """A runtime that has loaded its model.

    seconds:    for loading, without importing the runtime
    bytes:      resident after the first token, beyond the runtime without a model
    logits:     after the first two tokens of the prompt, one after the other
    """

    seconds: float
    bytes: int | None
    logits: np.ndarray


def prompt(network: Network, length: int) -> list[int]:
    """Tokens of any kind."""
    return np.random.default_rng(0).integers(0, network.vocabulary, length).tolist()


# ---- in the child ------------------------------------------------------------------------------------------------


class _Turns:
    """Runs phases of a model, with the same tokens each time."""

    def __init__(self, model: Language, network: Network) -> None:
        self._model, self._tokens = model, prompt(network, network.length)
        self._filled = 0

    def seconds(self, phase: Phase) -> float:
        """Seconds for each token of the phase."""
        if phase.kind == "prefill":
            return self._timed(0, [self._tokens[: phase.length]]) / phase.length
        if self._filled < phase.length:
            self._timed(0, [self._tokens[: phase.length]])
        steps = self._tokens[phase.length : phase.length + STEPS]
        return self._timed(phase.length, [[token] for token in steps]) / len(steps)

    def _timed(self, start: int, calls: Sequence[Sequence[int]]) -> float:
        self._model.rewind(start)
        started = time.perf_counter()
        for tokens in calls:
            self._model.run(tokens)
        seconds = time.perf_counter() - started
        self._filled = start + sum(map(len, calls))
        return seconds


def _serve(connection: Connection, key: str, path: str, network: Network, threads: int) -> None:
    runtime = next(one for one in RUNTIMES if one.key == key)
    try:
        for name in runtime.modules:
            __import__(name)
        first = prompt(network, 2)  # here, since NumPy's random numbers take 5 MB
        base = resident_bytes()
        reset_peak()
        started = time.perf_counter()
        model = runtime.open(path, network, threads)
        seconds = time.perf_counter() - started
        for token in first:
            logits = np.array(model.run([token]))
        resident = resident_bytes()
        added = None if base is None or resident is None else resident - base
        connection.send(Ready(seconds, added, logits))
    except Exception as error:
        connection.send(WorkerError(one_line(error)))
        return
    turns = _Turns(model, network)
    while True:
        command, arguments = connection.recv()
        try:
            connection.send(peak_bytes_beyond(base) if command == "memory" else turns.seconds(*arguments))
        except Exception as error:
            connection.send(WorkerError(one_line(error)))


def peak_bytes_beyond(base: int | None) -> int | None:
    """The most bytes that were resident, beyond `base`."""
    peak = peak_bytes()
    return None if peak is None or base is None else peak - base


# ---- in the parent -----------------------------------------------------------------------------------------------


class Measured(Child):
    """A runtime in its own process."""

    def __init__(self, key: str, path: str, network: Network, threads: int, verbose: bool = False) -> None:
        super().__init__(_serve, key, path, network, threads, verbose=verbose)
        self.ready: Ready | None = None

    def wait(self, limit: float) -> Ready:
        """Wait until the model is loaded. Raises WorkerError."""
        ready = self.answer(limit)
        assert isinstance(ready, Ready)
        self.ready = ready
        self.stop()
        return ready

    def seconds(self, phase: Phase, limit: float = 300.0) -> float:
        """Seconds for each token of a phase. Raises WorkerError."""
        return float(self._asked("seconds", limit, phase))

    def memory(self) -> int | None:
        """The most bytes that the model took so far. Raises WorkerError."""
        return self._asked("memory", 60.0)  # type: ignore[no-any-return]

    def _asked(self, command: str, limit: float, *arguments: object) -> object:
        self.resume()
        self.send(command, *arguments)
        result = self.answer(limit)
        self.stop()
        return result


@dataclass
class Row:
    """What a runtime did: seconds for each token by phase, or why it failed."""

    ready: Ready | None = None
    seconds: dict[Phase, list[float]] | None = None
    memory: int | None = None
    failure: str = ""

    def rate(self, phase: Phase) -> float | None:
        """Tokens a second, of the median; None if it failed."""
        if self.failure:
            return None
        taken = (self.seconds or {}).get(phase)
        return 1 / float(np.median(taken)) if taken else None


def measured(
    paths: Mapping[str, str | WorkerError],
    network: Network,
    threads: int,
    phases: Sequence[Phase],
    rounds: int,
    verbose: bool = False,
) -> tuple[dict[str, Row], float]:
    """Each runtime's row, and the bytes a second that this machine reads. paths: key of a runtime → its file."""
    rows = {key: Row(failure=str(path) if isinstance(path, WorkerError) else "") for key, path in paths.items()}
    reader = Worker(Task("read", "memory", threads))
    workers = {}
    try:
        for key, path in paths.items():  # one after the other: none is loaded while another one is timed
            if isinstance(path, str):
                workers[key] = Measured(key, path, network, threads, verbose)
                with _noted(rows[key]):
                    rows[key].ready = workers[key].wait(_FIRST)
        work = reader.wait(60).work
        reads = []
        draw = random.Random(0)
        for _ in range(rounds):
            for phase in phases:
                order = list(workers)
                draw.shuffle(order)
                for key in order:
                    _take(rows[key], workers[key], phase)
            reads.append(reader.ask("turn", 1)[1])
        for key, worker in workers.items():
            if not rows[key].failure:
                rows[key].memory = worker.memory()
        return rows, work / min(reads)
    finally:
        for worker in (*workers.values(), reader):
            worker.close()


def _take(row: Row, worker: Measured, phase: Phase) -> None:
    if row.failure:
        return
    with _noted(row):
        if row.seconds is None:
            row.seconds = {}
        if phase not in row.seconds:
            row.seconds[phase] = []
            worker.seconds(phase, _FIRST)  # compiles, wakes threads, fills the cache
        row.seconds[phase].append(worker.seconds(phase))


@contextmanager
def _noted(row: Row) -> Iterator[None]:
    """Keeps a failure of a worker in its row."""
    try:
        yield
    except WorkerError as error:
        row.failure = str(error)
