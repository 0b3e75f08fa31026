"""Runtimes timed in turns, each in a process of its own that is stopped while the others run.

Pools of threads spin for a while after a call, TVM's for up to 0.2 s: in one process, or in a process left running,
they would take the cores from whatever is measured next. What disturbs the machine for a while disturbs all of them.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..module import TensorSpec
from ..processes.channel import Channel, Closed, to_child
from ..processes.children import Child, ended_with
from .power import Meter
from .worker import Failed, Ready, Task

PARTS = 8  # of a turn: the least of them escapes whatever else the machine does
_OPENING = 600.0  # seconds that a runtime may take until its first outputs
_ANSWERING = 120.0  # seconds that a turn may take
_TURN = 0.1  # seconds of a turn, in which a pool of threads gets going


class RaceError(Exception):
    """Why a runtime takes no part, or dropped out, in one line."""


@dataclass
class Entry:
    """A runtime in a race.

    problem:  why it has no times
    ready:    its version and outputs
    seconds:  per call, the mean of each turn; least: the best part of a turn
    joules:   of each turn, for all its calls, where energy can be read; calls: in each turn
    """

    key: str
    problem: str = ""
    ready: Ready | None = None
    seconds: list[float] = field(default_factory=list)
    least: float = float("inf")
    joules: list[float] = field(default_factory=list)
    calls: int = 0

    @property
    def median(self) -> float:
        """Seconds per call: the median of the turns."""
        return float(np.median(self.seconds))

    @property
    def joules_per_call(self) -> float | None:
        """Energy of the machine's processors for one call, with what they take when idle."""
        return float(np.median(self.joules)) / (self.calls + 1) if self.joules else None  # and one that warms up


class Process:
    """The process of one runtime. It runs only while it is asked."""

    def __init__(self, task: Task) -> None:
        self._child = Child("qnn_ext.racing.worker", stderr=subprocess.DEVNULL)
        self._channel: Channel = to_child(self._child)
        self._task = task

    def open(self) -> Ready:
        """Open the model and compute the first outputs. Raises RaceError."""
        ready = self._ask(self._task, _OPENING)
        assert isinstance(ready, Ready)
        return ready

    def turn(self, number: int) -> list[float]:
        """Seconds per call in each part of `number` calls. Raises RaceError."""
        taken: list[float] = self._ask((number, PARTS), _ANSWERING)
        return taken

    def _ask(self, message: Any, limit: float) -> Any:
        self._signal(signal.SIGCONT)
        try:
            self._channel.send(message)
            answer = self._channel.receive(limit)
        except Closed:
            raise RaceError(f"its process ended with {ended_with(self._child.wait())}") from None
        except TimeoutError:
            raise RaceError(f"no answer within {limit:.0f} s") from None
        self._signal(signal.SIGSTOP)
        if isinstance(answer, Failed):
            raise RaceError(answer.problem)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        if self._child.poll() is None:
            os.killpg(self._child.pid, number)

    def end(self) -> None:
        self._child.end()


def race(
    tasks: Mapping[str, Task],
    rounds: int,
    seconds: float | None = None,
    warm_up: float = 0.0,
    meter: Meter | None = None,
    progress: Callable[[str, float], None] = lambda stage, share: None,
) -> dict[str, Entry]:
    """The entries by the tasks' keys; what a runtime could not do is its entry's problem.

    rounds:   turns of each, in a new random order every time
    seconds:  instead of rounds: for how long they take turns
    warm_up:  for how long each runs first, untimed
    progress: is told the stage and its share that is done
    """
    entries = {key: Entry(key) for key in tasks}
    with ExitStack() as stack:
        running: dict[str, Process] = {}
        for place, (key, task) in enumerate(tasks.items()):
            progress(f"opening {key}", place / len(tasks))
            process = Process(task)
            stack.callback(process.end)
            try:
                entries[key].ready = process.open()
                entries[key].calls = _calls(process, warm_up)
                running[key] = process
            except RaceError as error:
                entries[key].problem = str(error)
        _take_turns(running, entries, rounds, seconds, meter, progress)
    return entries


def _calls(process: Process, warm_up: float) -> int:
    """The calls of a turn, after the process has run for `warm_up` seconds."""
    least = min(process.turn(2))
    until = time.monotonic() + warm_up
    while time.monotonic() < until:
        least = min(least, *process.turn(max(1, min(1000, int(0.05 / max(least, 1e-7))))))
    calls = max(1, min(20_000, round(_TURN / max(least, 1e-7))))
    return calls if calls < PARTS else calls - calls % PARTS


def _take_turns(
    running: dict[str, Process],
    entries: Mapping[str, Entry],
    rounds: int,
    seconds: float | None,
    meter: Meter | None,
    progress: Callable[[str, float], None],
) -> None:
    draw = random.Random(0)
    started, done = time.monotonic(), 0
    while running and (done < rounds if seconds is None else not done or time.monotonic() - started < seconds):
        progress("taking turns", done / rounds if seconds is None else (time.monotonic() - started) / seconds)
        for key in draw.sample(sorted(running), len(running)):
            entry = entries[key]
            before = None if meter is None else meter.read()
            try:
                parts = running[key].turn(entry.calls)
            except RaceError as error:
                entry.problem = str(error)
                del running[key]
                continue
            if meter is not None and before is not None:
                entry.joules.append(meter.since(before))
            entry.seconds.append(sum(parts) / len(parts))
            entry.least = min(entry.least, *parts)
        done += 1


def difference(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> tuple[float, float] | None:
    """The share of equal values and the largest difference, in the outputs' own numbers (steps, if they are integers);
    None if shapes or dtypes differ, which makes values incomparable."""
    if [(a.shape, a.dtype) for a in ours] != [(b.shape, b.dtype) for b in theirs]:
        return None
    equal = sum(int(((a == b) | ((a != a) & (b != b))).sum()) for a, b in zip(ours, theirs, strict=True))
    wide = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in zip(ours, theirs, strict=True) if a.size]
    largest = max((float(np.abs(a - b).max()) for a, b in wide), default=0.0)
    return equal / max(1, sum(a.size for a in ours)), largest


def drawn(specs: Sequence[TensorSpec], seed: int = 0) -> list[np.ndarray]:
    """Inputs of the model's own dtypes: anything for quantized ones, 0 … 1 for floats, 0 or 1 for other integers, which
    may be indices."""
    rng = np.random.default_rng(seed)
    values = []
    for spec in specs:
        if spec.qparams is not None:
            info = np.iinfo(spec.dtype)
            values.append(rng.integers(info.min, info.max, spec.shape, spec.dtype, endpoint=True))
        elif spec.dtype.startswith("float"):
            values.append(np.asarray(rng.uniform(0, 1, spec.shape)).astype(spec.dtype))
        else:
            values.append(np.asarray(rng.integers(0, 2, spec.shape)).astype(spec.dtype))
    return values
