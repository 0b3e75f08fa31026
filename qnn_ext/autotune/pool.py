"""Worker processes that compile and time kernels: one that crashes or hangs loses its own job and nothing else.

TVM has `PopenPoolExecutor` for this, but without psutil it cannot end a worker that hangs.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from ..processes.channel import Closed, to_child
from ..processes.children import Child, ended_with

START_SECONDS = 300.0


class WorkerError(Exception):
    """A job failed: `kind` is "error" (it raised), "crash" (its process ended) or "timeout"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Worker:
    """One process; starts with the first job, and again after it ended, unless retired. `folder`: see Child."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._process: Child | None = None
        self._retired = False
        self._changing = threading.Lock()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float) -> Any:
        """`function(*arguments)`, both picklable, in the process. Raises WorkerError."""
        try:
            channel = to_child(self._process or self._start())
            channel.send((function, arguments))
            done, value = channel.receive(timeout)
        except TimeoutError:
            self.close()
            raise WorkerError("timeout", f"ended after {timeout:g} s") from None
        except (Closed, OSError):
            raise WorkerError("crash", f"the process ended: {self._end()}") from None
        if not done:
            raise WorkerError("error", value)
        return value

    def _start(self) -> Child:
        with self._changing:
            if self._retired:
                raise Closed
            process = Child("qnn_ext.autotune.worker", self._folder, stderr=subprocess.DEVNULL)
            self._process = process
        to_child(process).receive(START_SECONDS)  # it has imported everything
        return process

    def _end(self) -> str:
        """Why the process ended by itself."""
        process = self._process
        code = process.wait() if process is not None else 0
        self.close()
        return ended_with(code)

    def retire(self) -> None:
        """From any thread: make the current job fail, and start no further process."""
        with self._changing:
            self._retired = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.end()


class Pool:
    """Some workers for many jobs. `folder`: for their temporary files, which the pool's owner removes."""

    def __init__(self, workers: int, folder: str | None = None) -> None:
        self.workers, self._folder = workers, folder
        self._open()

    def _open(self) -> None:
        self._threads = ThreadPoolExecutor(self.workers)
        self._all = [Worker(self._folder) for _ in range(self.workers)]
        self._free = list(self._all)

    def map(
        self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], timeout: float
    ) -> Generator[tuple[int, Any], None, None]:
        """(index of the job, its result or WorkerError) for all jobs, as they finish."""
        futures = {self._threads.submit(self._run, function, job, timeout): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()

    def _run(self, function: Callable[..., Any], job: tuple[Any, ...], timeout: float) -> Any:
        worker = self._free.pop()  # there are as many as threads; the last returned is taken first
        try:
            return worker.call(function, job, timeout)
        except WorkerError as error:
            return error
        finally:
            self._free.append(worker)

    def close(self) -> None:
        """End all workers, even busy ones."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._all:
            worker.retire()
        self._threads.shutdown(wait=True)  # they read from the workers
        for worker in self._all:
            worker.close()
        self._open()
