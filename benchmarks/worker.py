"""One process per runtime and model, started by the benchmark; it runs when asked and is stopped in between.

Thread pools spin for a while after a call, TVM's for up to 0.2 s: in one process, or in a process left running, they
would take the cores from whatever is measured next. A stopped process (SIGSTOP) takes no time. Separate processes also
separate the runtimes' memory, and a crash is just a row of the table.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from .memory import peak_bytes, reset_peak, resident_bytes
from .runners import PEERS, Runner, compiled_runner

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "TVM_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "TVM_BIND_THREADS")
_PR_SET_PDEATHSIG = 1
PARTS = 8  # parts of a turn


class WorkerError(Exception):
    """What a worker could not do, in one line."""


@dataclass(frozen=True)
class Task:
    """What a worker runs.

    runtime:   a key of PEERS, "qnn_ext" (path is a .qnn file), "peak" (path is an arithmetic), "read" (path is a key of
               READS), "cuda:" and "streams:" with what `cuda.runners` and `streams` open
    precision: of float products
    """

    runtime: str
    path: str
    threads: int
    inputs: list[np.ndarray] = field(default_factory=list)
    precision: str = "float32"


@dataclass(frozen=True)
class Ready:
    """A worker that has loaded its model and computed its first outputs.

    setup_seconds: importing the runtime, loading, first call
    base_bytes:    resident with the runtime imported and no model loaded
    peak_bytes:    peak resident memory so far
    work:          see Runner
    """

    name: str
    outputs: list[np.ndarray]
    setup_seconds: float
    base_bytes: int | None
    peak_bytes: int | None
    work: float


# ---- in the child ------------------------------------------------------------------------------------------------


def _open(task: Task) -> Runner:
    if task.runtime.startswith("cuda:"):
        from .cuda.runners import open_runner

        return open_runner(task.runtime.removeprefix("cuda:"), task.path)
    if task.runtime.startswith("streams:"):
        from .streams import open_streams

        return open_streams(task.runtime.removeprefix("streams:"), task.path, task.threads)
    if task.runtime in ("peak", "read"):
        from .peak import peak_runner, read_runner

        return (peak_runner if task.runtime == "peak" else read_runner)(task.path, task.threads)
    if task.runtime == "qnn_ext":
        return compiled_runner(task.path, task.threads)
    peer = next(peer for peer in PEERS if peer.key == task.runtime)
    precision = (task.precision,) if len(peer.precisions) > 1 else ()
    return peer.open(task.path, task.threads, *precision)


def _import(task: Task) -> None:
    key = task.runtime.removeprefix("streams:").partition(":")[0]
    modules = next((peer.modules for peer in PEERS if peer.key == key), ("qnn_ext",))
    for name in modules:
        __import__(name)


def _serve(connection: Connection, task: Task) -> None:
    started = time.perf_counter()
    try:
        _import(task)
        base = resident_bytes()
        runner = _open(task)
        outputs = runner.outputs(task.inputs)
        ready = Ready(runner.name, outputs, time.perf_counter() - started, base, peak_bytes(), runner.work)
    except Exception as error:
        connection.send(WorkerError(one_line(error)))
        return
    reset_peak()
    connection.send(ready)
    commands: dict[str, Callable[..., Any]] = {
        "turn": lambda number: _turn(runner, number),
        "profile": lambda repeat: runner.profile(repeat) if runner.profile else [],
        "peak_bytes": peak_bytes,
    }
    while True:
        command, arguments = connection.recv()
        try:
            connection.send(commands[command](*arguments))
        except Exception as error:
            connection.send(WorkerError(one_line(error)))


def _turn(runner: Runner, number: int) -> tuple[float, float]:
    """Seconds per call over `number` calls, after one that wakes threads and fills caches; and over the best part of
    them, short enough to escape whatever else the machine does."""
    runner.seconds(1)
    parts = min(number, PARTS)
    seconds = [runner.seconds(number // parts) for _ in range(parts)]
    return sum(seconds) / parts, min(seconds)


def one_line(error: BaseException, length: int = 240) -> str:
    """An exception as a cell of a table."""
    text = " ".join(f"{type(error).__name__}: {error}".split()).replace("|", "/")
    return text if len(text) <= length else text[: length - 2] + " …"


def enter_child(verbose: bool) -> None:
    """Prepare a child process: it dies with its parent, sets its own number of threads, and prints nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for name in _THREAD_VARIABLES:
        os.environ.pop(name, None)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # may not start processes of its own
    with open(os.devnull, "w") as sink:
        os.dup2(sys.stderr.fileno() if verbose else sink.fileno(), 1)
        if not verbose:
            os.dup2(sink.fileno(), 2)


def _child(connection: Connection, target: Callable[..., None], verbose: bool, arguments: tuple) -> None:
    enter_child(verbose)
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        target(connection, *arguments)


# ---- in the parent -----------------------------------------------------------------------------------------------


class Child:
    """A process with a pipe to it; `ask` lets it run until it answers."""

    def __init__(self, target: Callable[..., None], *arguments: Any, verbose: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_child, args=(theirs, target, verbose, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def answer(self, limit: float) -> Any:
        """The next message from the process. Raises WorkerError if it failed, ended, or took longer than `limit` s."""
        try:
            if not self._pipe.poll(limit):
                raise WorkerError(f"no answer within {limit:.0f} s")
            result = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)
            raise WorkerError(f"the process ended ({_exit(self._process.exitcode)})") from None
        if isinstance(result, WorkerError):
            raise result
        return result

    def send(self, command: str, *arguments: Any) -> None:
        """Ask without waiting."""
        try:
            self._pipe.send((command, arguments))
        except OSError:
            raise WorkerError(f"the process ended ({_exit(self._process.exitcode)})") from None

    def stop(self) -> None:
        """Stop the process until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run again."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)

    def close(self) -> None:
        """End the process: it exits by itself when the pipe closes, unless it is busy."""
        self.resume()
        self._pipe.close()
        self._process.join(5)
        self._process.kill()
        self._process.join()


def computed_apart(function: Callable[..., Any], *arguments: Any, limit: float, verbose: bool = False) -> Any:
    """The result of `function` in its own process. Raises WorkerError if it fails or takes longer than `limit` s."""
    child = Child(_send_result, function, *arguments, verbose=verbose)
    try:
        return child.answer(limit)
    finally:
        child.close()


def _send_result(connection: Connection, function: Callable[..., Any], *arguments: Any) -> None:
    try:
        connection.send(function(*arguments))
    except Exception as error:
        connection.send(WorkerError(one_line(error)))


class Worker(Child):
    """A child that runs a Task. It starts working at once; `wait` returns its Ready and stops it."""

    def __init__(self, task: Task, verbose: bool = False, realtime: bool = False) -> None:
        super().__init__(_serve, task, verbose=verbose)
        self.task = task
        self.ready: Ready | None = None
        self._realtime = realtime

    def wait(self, limit: float) -> Ready:
        """Wait for the first outputs. Raises WorkerError."""
        ready = self.answer(limit)
        assert isinstance(ready, Ready)
        self.ready = ready
        self.stop()
        if self._realtime:
            self._enter_realtime()
        return ready

    def _enter_realtime(self) -> None:
        """Give all threads priority over everything else. The system reserves a twentieth of the time for the rest."""
        for thread in os.listdir(f"/proc/{self._process.pid}/task"):
            try:
                os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(1))
            except PermissionError:
                raise WorkerError("real-time scheduling needs the capability CAP_SYS_NICE, which root has") from None

    def ask(self, command: str, *arguments: Any, limit: float = 120.0) -> Any:
        """Let the process run until it has answered "turn", "profile" or "peak_bytes". Raises WorkerError."""
        self.resume()
        self.send(command, *arguments)
        result = self.answer(limit)
        self.stop()
        return result


def _exit(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
