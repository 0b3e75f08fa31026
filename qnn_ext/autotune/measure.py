"""Builders and runners: configurations in, checked and timed results out, over local processes or TVM's RPC.

Why not MetaSchedule's own: its runners give a kernel random tensors of known shapes and know neither what was compiled
nor the expected result (`f_alloc_argument`, `f_run_evaluator`), so they cannot check results, and they time one library
by itself, so a slower board or a busy second looks like a slower kernel. Here every candidate takes turns with the
task's default on the same board. Its LocalBuilder restarts its processes for each batch, with 3 s of imports each.
MetaSchedule's RPC configuration, and with it TVM's tracker, sessions and servers, are used unchanged.
"""

from __future__ import annotations

import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tvm.target import Target

from ..errors import TargetError, TuningError
from ..processes.cores import default_threads
from ..running.model import target_name
from ..targets.features import backend_of
from ..targets.host import can_run
from ..targets.names import description_of, required_features, target_architecture
from . import worker
from .pool import Pool, WorkerError
from .space import Configuration
from .task import Task
from .timing import BATCH_SECONDS, ROUNDS


@dataclass(frozen=True)
class Result:
    """The result of measuring one configuration.

    seconds:   least time of one execution; 0.0 with an error
    reference: the same for the task's default configuration, timed in turns with it
    error:     empty, or "compile: …", "wrong: …", "crash: …", "timeout: …", "run: …"; "lost: …" if no server
               answered, which says nothing about the configuration
    """

    task: Task
    configuration: Configuration
    seconds: float = 0.0
    reference: float = 0.0
    error: str = ""

    @property
    def ratio(self) -> float:
        """Time relative to the default's: below 1 is faster. Infinity with an error."""
        return self.seconds / self.reference if not self.error else float("inf")

    @property
    def gops(self) -> float:
        """Billions of operations per second, 0 with an error."""
        return self.task.gops / self.seconds if not self.error else 0.0


@dataclass(frozen=True)
class Decision:
    """How the tuning of a task ended.

    best:     the configuration to use, the default if nothing was faster; its `seconds` and `reference` are those of
              the final race
    measured: the number of configurations it was chosen from
    """

    best: Result
    measured: int


class LocalBuilder:
    """Compiles configurations in processes on this machine.

    timeout:    seconds that one compilation may take
    n_parallel: processes; default: one per core
    """

    def __init__(self, timeout: float = 60.0, n_parallel: int | None = None) -> None:
        self.timeout = timeout
        self._workers = n_parallel or default_threads()
        self._place: tuple[tempfile.TemporaryDirectory[str], Pool] | None = None
        self._count = 0

    def build(self, task: Task, configurations: Sequence[Configuration | None]) -> list[str | Result]:
        """The library of each configuration, or a result with the error."""
        if self._place is None:
            folder = tempfile.TemporaryDirectory(prefix="qnn-ext-tune-", ignore_cleanup_errors=True)
            self._place = folder, Pool(self._workers, folder.name)
        folder, pool = self._place
        jobs = []
        for configuration in configurations:
            self._count += 1
            jobs.append((task, configuration, f"{folder.name}/kernel{self._count}"))
        built: list[str | Result] = [""] * len(jobs)
        for index, value in pool.map(worker.compile_candidate, jobs, self.timeout):
            if isinstance(value, WorkerError):
                kind = value.kind if value.kind == "timeout" else "compile"
                value = Result(task, configurations[index], error=f"{kind}: {value}")
            built[index] = value
        return built

    def close(self) -> None:
        """End the processes and remove what they compiled."""
        if self._place is not None:
            folder, pool = self._place
            pool.close()
            folder.cleanup()
            self._place = None


def check_target(target: Target, remote: bool) -> None:
    """Raise TargetError unless kernels for the target can be timed.

    remote: whether other machines time them
    """
    name = target_name(description_of(target))
    if backend_of(target).grid:
        raise TargetError(
            f"kernels are timed on CPUs, and {name} is a GPU: build for it without measuring or tuning, then its "
            "kernels have the tiles of least predicted cost"
        )
    if not remote and not can_run(required_features(target), target_architecture(target)):
        raise TargetError(
            f"this machine cannot run kernels for {name}, so it cannot time them: tune over RPC "
            "(qnn_ext.autotune.tune with an RPCRunner, `qnn-ext tune --rpc HOST:PORT --key KEY`)"
        )


class LocalRunner:
    """Checks and times kernels in one process on this machine.

    number:        calls in one batch; default: as many as fill `min_repeat_ms`
    repeat:        batches of each kernel, in turns with the default's
    min_repeat_ms: milliseconds of one batch; shorter than a time slice, so that other processes disturb it little
    timeout:       seconds that one candidate may take
    """

    tracker: worker.Tracker | None = None
    attempts = 1

    def __init__(
        self,
        number: int | None = None,
        repeat: int = ROUNDS,
        min_repeat_ms: float = BATCH_SECONDS * 1e3,
        timeout: float = 30.0,
    ) -> None:
        if repeat < 1 or min_repeat_ms <= 0 or timeout <= 0 or (number is not None and number < 1):
            raise TuningError(
                f"runner: number {number}, repeat {repeat}, min_repeat_ms {min_repeat_ms}, timeout {timeout} must all "
                "be positive"
            )
        self.timeout = timeout
        self._timing = worker.Timing(repeat, min_repeat_ms / 1e3, number)
        self._pool = Pool(1)

    def run(self, task: Task, default: str, libraries: Iterable[tuple[Configuration, str]]) -> Iterator[Result]:
        """The results of libraries as they become available, each timed in turns with the default's library."""
        waiting = list(libraries)
        for attempt in range(self.attempts):
            failed = []
            jobs = [(task, (default, path), self._timing, self.tracker) for _, path in waiting]
            with closing(self._pool.map(worker.measure, jobs, self.timeout)) as answers:
                for index, value in answers:
                    if isinstance(value, WorkerError) and attempt + 1 < self.attempts:
                        failed.append(waiting[index])
                    else:
                        yield _result(task, waiting[index][0], value, self.tracker is not None)
            if not failed:
                return
            waiting = failed
            self.wait()

    def race(self, task: Task, libraries: Sequence[tuple[Configuration, str]], rounds: int = 4) -> list[Result]:
        """Time all libraries in turns with each other, `rounds` times as long; the first is the default's. Empty if
        they could not be run."""
        timing = worker.Timing(self._timing.rounds * rounds, self._timing.batch_seconds, self._timing.number)
        job = (task, [path for _, path in libraries], timing, self.tracker)
        for _ in range(self.attempts):
            ((_, value),) = self._pool.map(worker.measure, [job], self.timeout * rounds)
            if not isinstance(value, WorkerError) and not any(isinstance(item, str) for item in value):
                return [
                    Result(task, configuration, seconds, value[0])
                    for (configuration, _), seconds in zip(libraries, value, strict=True)
                ]
            self.wait()
        return []

    def wait(self) -> None:
        """Wait until there is something to run on. Raises TuningError."""

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


class RPCRunner(LocalRunner):
    """Checks and times kernels on the servers that report to one of TVM's trackers.

    key:        of the servers to use, as given to `python -m tvm.exec.rpc_server --key`
    host, port: of the tracker, `python -m tvm.exec.rpc_tracker`
    n_parallel: candidates at a time; default: as many as there are servers now
    attempts:   how often a candidate is tried if its server is lost, each time on whichever server is free
    patience:   seconds to wait for a server when none is left

    The others are as for LocalRunner. Raises TuningError if no tracker answers or no server has the key.
    """

    def __init__(
        self,
        key: str,
        host: str = "127.0.0.1",
        port: int = 9190,
        n_parallel: int | None = None,
        timeout: float = 30.0,
        number: int | None = None,
        repeat: int = ROUNDS,
        min_repeat_ms: float = BATCH_SECONDS * 1e3,
        attempts: int = 3,
        patience: float = 30.0,
    ) -> None:
        super().__init__(number, repeat, min_repeat_ms, timeout)
        self.tracker = worker.Tracker(host, port, key, timeout)
        self.attempts, self.patience = attempts, patience
        servers = self.servers()
        if not servers:
            raise TuningError(
                f"there is no server with key {key!r} at the tracker {host}:{port}; start servers on the boards: "
                f"python -m tvm.exec.rpc_server --tracker {host}:{port} --key {key}"
            )
        self._pool = Pool(n_parallel or servers)

    def servers(self) -> int:
        """How many servers with the key report to the tracker. Raises TuningError if the tracker does not answer."""
        from tvm import rpc

        assert self.tracker is not None
        address = (self.tracker.host, self.tracker.port)
        try:
            socket.create_connection(address, timeout=5).close()  # TVM itself would try for a minute
            reported = rpc.connect_tracker(*address).summary()["server_info"]
        except (OSError, RuntimeError) as error:
            raise TuningError(
                f"there is no tracker at {self.tracker.host}:{self.tracker.port} ({error}); start one: "
                f"python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port {self.tracker.port} --port-end "
                f"{self.tracker.port + 1}, which needs `pip install 'qnn-ext[tune]'`"
            ) from None
        return sum(server["key"] == f"server:{self.tracker.key}" for server in reported)

    def wait(self) -> None:
        deadline = time.monotonic() + self.patience
        while not self.servers():
            if time.monotonic() > deadline:
                assert self.tracker is not None
                raise TuningError(
                    f"every server with key {self.tracker.key!r} is gone; everything measured is in the log"
                )
            time.sleep(0.2)


@dataclass(frozen=True)
class MeasureOption:
    """A builder, which compiles, and a runner."""

    builder: LocalBuilder
    runner: LocalRunner

    def close(self) -> None:
        """End all processes of both."""
        self.builder.close()
        self.runner.close()


def measure_option(builder: LocalBuilder | None = None, runner: LocalRunner | None = None) -> MeasureOption:
    """A builder and a runner, by default on this machine."""
    return MeasureOption(builder or LocalBuilder(), runner or LocalRunner())


def measure(
    task: Task, configurations: Sequence[Configuration], option: MeasureOption, default: str
) -> Iterator[Result]:
    """Compile, check and time configurations; yields results as they come. `default` is the default's library."""
    libraries = []
    for configuration, built in zip(configurations, option.builder.build(task, configurations), strict=True):
        if isinstance(built, Result):
            yield built
        else:
            libraries.append((configuration, built))
    try:
        yield from option.runner.run(task, default, libraries)
    finally:
        for _, library in libraries:
            for path in (Path(library), Path(library).with_suffix(".npz")):
                path.unlink(missing_ok=True)


def _result(task: Task, configuration: Configuration, value: list[float | str] | WorkerError, remote: bool) -> Result:
    if isinstance(value, WorkerError):
        kind = "lost" if remote else value.kind if value.kind in ("crash", "timeout") else "run"
        return Result(task, configuration, error=f"{kind}: {value}")
    reference, seconds = value
    if isinstance(reference, str):
        return Result(task, configuration, error=f"run: the default kernel computes wrong values: {reference}")
    if isinstance(seconds, str):
        return Result(task, configuration, error=f"wrong: {seconds}")
    return Result(task, configuration, seconds, reference)
