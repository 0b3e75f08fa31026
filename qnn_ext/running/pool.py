"""Pool: clones of an engine that serve many requests side by side."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import QnnError
from ..module import zeros
from ..processes.cores import default_threads
from .engine import Engine
from .requests import Request, Workers
from .timing import time_text

Inputs = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class Throughput:
    """What a pool does when every stream always has a request.

    seconds:   how long it was measured
    latencies: seconds that each request took, without waiting for a stream
    """

    streams: int
    seconds: float
    latencies: tuple[float, ...]

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """Seconds within which this percentage of the requests was done."""
        return float(np.percentile(self.latencies, percent))

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {time_text(self.percentile(p))}" for name, p in _PERCENTILES.items())
        return f"{self.requests_per_second:.1f} requests/s, latency {parts}"


_PERCENTILES = {"median": 50.0, "90 %": 90.0, "99 %": 99.0}


class Pool:
    """Serves many requests at once: `streams` clones of an engine, each with threads of its own.

        with qnn_ext.Pool(engine, streams=4) as pool:
            futures = [pool.submit({"image": image}) for image in images]
            scores = [future.result()["scores"] for future in futures]

    Several engines of one thread do more requests per second than one engine of several threads, as no thread waits for
    another; a single request takes longer. Code and weights are shared: a stream takes the memory of the feature maps
    (`engine.memory.feature_maps`).

    engine:      what to clone; it stays the caller's
    streams:     requests that run at the same time; by default as many as the cores allow
    num_threads: threads of each stream

    Raises QnnError for a model with states, whose requests depend on each other, and TargetError when this machine
    cannot run the model.
    """

    def __init__(self, engine: Engine, streams: int | None = None, num_threads: int = 1) -> None:
        if streams is None:
            streams = max(1, default_threads() // num_threads)
        if streams < 1 or num_threads < 1:
            raise QnnError(f"streams and num_threads must be at least 1, found {streams} and {num_threads}")
        if engine.has_states:
            raise QnnError(
                "a pool cannot serve a model with states, because each result depends on the request before: "
                "use one engine.clone() for each sequence"
            )
        self.streams, self.num_threads = streams, num_threads
        self._inputs = engine.inputs
        self._engines = [engine.clone(num_threads) for _ in range(streams)]
        for clone in self._engines:
            clone.prepare()
        self._here = threading.local()
        self._workers = Workers(streams, _take_engine, (self._here, list(self._engines)))

    def submit(self, inputs: Inputs) -> Request:
        """A future of `engine.run(inputs)`: ask for its result(), or await it. The inputs must stay as they are until
        then."""
        return self._workers.submit(_run, self._here, inputs)

    def map(self, requests: Iterable[Inputs]) -> Iterator[dict[str, Any]]:
        """The outputs for each of the inputs, in their order. They are taken only as they are needed, so that there may
        be any number of them."""
        waiting: deque[Request] = deque()
        for inputs in requests:
            waiting.append(self.submit(inputs))
            if len(waiting) > 2 * self.streams:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def throughput(self, seconds: float = 2.0, inputs: Inputs | None = None) -> Throughput:
        """Requests per second and their latencies, measured for so long; on zeros unless inputs are given."""
        values = inputs if inputs is not None else zeros(self._inputs)
        start = threading.Barrier(self.streams)
        loops = [self._workers.submit(_repeat, self._here, values, start, seconds) for _ in range(self.streams)]
        results = [loop.result() for loop in loops]
        latencies = tuple(latency for _, _, measured in results for latency in measured)
        return Throughput(self.streams, max(r[1] for r in results) - min(r[0] for r in results), latencies)

    def close(self) -> None:
        """Wait for all requests, and end the threads."""
        self._workers.close()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._workers.close(cancel=error is not None)

    def __repr__(self) -> str:
        return f"Pool({self._engines[0]!r}, streams={self.streams}, num_threads={self.num_threads})"


def _take_engine(here: threading.local, engines: list[Engine]) -> None:
    here.engine = engines.pop()


def _run(here: threading.local, inputs: Inputs) -> dict[str, Any]:
    result: dict[str, Any] = here.engine.run(inputs)
    return result


def _repeat(
    here: threading.local, inputs: Inputs, start: threading.Barrier, seconds: float
) -> tuple[float, float, list[float]]:
    """(begin, end, latencies) of one stream."""
    here.engine.run(inputs)
    start.wait()
    latencies = []
    begin = now = time.perf_counter()
    while now < begin + seconds:
        here.engine.run(inputs)
        before, now = now, time.perf_counter()
        latencies.append(now - before)
    return begin, now, latencies
