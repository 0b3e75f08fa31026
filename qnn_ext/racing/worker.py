"""The process of one runtime: opens a model, computes outputs, and then times calls whenever it is asked to."""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from ..processes.channel import to_parent
from .runtimes import PEERS, Runner, compiled_runner

OURS = "qnn_ext"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Task:
    """What to run. runtime: OURS, with the path of a .qnn file, or a key of PEERS; threads: of its kernels"""

    runtime: str
    path: str
    threads: int
    inputs: list[np.ndarray]


@dataclass(frozen=True)
class Ready:
    """A runtime that has computed its first outputs.

    version: of a peer's package; seconds: importing it, opening the model, and the first call
    """

    version: str
    outputs: list[np.ndarray]
    seconds: float


@dataclass(frozen=True)
class Failed:
    """What a runtime could not do, in one line."""

    problem: str


def main() -> None:
    """Answer the parent: a Ready for a Task, then a list of seconds per call for each (calls, parts)."""
    if sys.platform == "linux":  # a stopped process cannot end itself when its parent is gone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with to_parent() as channel:
        runner: Runner | None = None
        while True:
            asked = channel.receive()
            try:
                if isinstance(asked, Task):
                    runner, ready = _opened(asked)
                    answer: Ready | list[float] = ready
                else:
                    assert runner is not None
                    answer = _turn(runner.seconds, *asked)
            except Exception as error:  # foreign runtimes raise anything
                channel.send(Failed(" ".join(f"{type(error).__name__}: {error}".split())))
            else:
                channel.send(answer)


def _opened(task: Task) -> tuple[Runner, Ready]:
    started = time.perf_counter()
    if task.runtime == OURS:
        runner, number = compiled_runner(task.path, task.threads), ""
    else:
        peer = next(peer for peer in PEERS if peer.key == task.runtime)
        runner, number = peer.open(task.path, task.threads), _version(peer.package)
    outputs = [np.ascontiguousarray(value) for value in runner.outputs(task.inputs)]
    return runner, Ready(number, outputs, time.perf_counter() - started)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _turn(seconds: Callable[[int], float], number: int, parts: int) -> list[float]:
    """Seconds per call over `number` calls, in so many parts, after one call that wakes threads and fills caches."""
    seconds(1)
    parts = min(number, parts)
    return [seconds(number // parts) for _ in range(parts)]
