"""Worker processes that compile and time kernels: one that crashes or hangs costs its own job and nothing else.

TVM has `PopenPoolExecutor` for this, but that cannot end a worker that hangs where psutil is not installed.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

HEADER = struct.Struct("<Q")
READY = b"!"  # what a worker says when it has imported everything
START_SECONDS = 300.0
_PACKAGE = Path(__file__).parents[2]


class WorkerError(Exception):
    """A job failed: `kind` is "error" (it raised), "crash" (its process ended) or "timeout"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Worker:
    """One process; starts with the first job, and again after it was ended."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], timeout: float) -> Any:
        """`function(*arguments)`, both picklable, in the process. Raises WorkerError."""
        try:
            process = self._process or self._start()
            assert process.stdin is not None
            request = pickle.dumps((function, arguments))
            process.stdin.write(HEADER.pack(len(request)) + request)
            process.stdin.flush()
            deadline = time.monotonic() + timeout
            (size,) = HEADER.unpack(self._read(HEADER.size, deadline))
            done, value = pickle.loads(self._read(size, deadline))
        except TimeoutError:
            self.close()
            raise WorkerError("timeout", f"ended after {timeout:g} s") from None
        except (EOFError, OSError):
            raise WorkerError("crash", f"the process ended: {self._end()}") from None
        if not done:
            raise WorkerError("error", value)
        return value

    def _start(self) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, (str(_PACKAGE), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qnn_ext.autotune.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
        )
        if self._read(1, time.monotonic() + START_SECONDS) != READY:
            raise EOFError
        return self._process

    def _end(self) -> str:
        """Why the process ended by itself."""
        code = self._process.wait() if self._process is not None else 0
        self.close()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        descriptor, data = self._process.stdout.fileno(), b""
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise TimeoutError
            part = os.read(descriptor, size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # what was not written yet
                        pipe.close()


class Pool:
    """Some workers for many jobs."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._threads = ThreadPoolExecutor(workers)
        self._local = threading.local()
        self._started: list[Worker] = []
        self._closed = False

    def map(
        self, function: Callable[..., Any], jobs: Sequence[tuple[Any, ...]], timeout: float
    ) -> Generator[tuple[int, Any], None, None]:
        """(index of the job, its result or the WorkerError) of all jobs, as they come."""
        futures = {self._threads.submit(self._run, function, job, timeout): index for index, job in enumerate(jobs)}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            for future in futures:
                future.cancel()

    def _run(self, function: Callable[..., Any], job: tuple[Any, ...], timeout: float) -> Any:
        if not hasattr(self._local, "worker"):
            self._local.worker = Worker()
            self._started.append(self._local.worker)
        try:
            return self._local.worker.call(function, job, timeout)
        except WorkerError as error:
            return error

    def close(self) -> None:
        """End all workers, also those at work."""
        for worker in self._started:
            worker.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._started.clear()
        self._local, self._threads = threading.local(), ThreadPoolExecutor(self.workers)
