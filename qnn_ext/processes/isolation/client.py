"""The caller's side: children are started when needed, kept warm for the next call, and never left behind."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ...errors import QnnError
from ..children import Python, ended_with, has_interpreter
from .answering import ERROR, OUT_OF_MEMORY, RESULT
from .once import TIME_IS_UP

START_SECONDS = 300.0  # for a child to import what it needs, even on a very busy machine
_GRACE = 0.5  # seconds for a call to end itself after its time is up
_BACKUP = 10.0  # seconds after which a server that should have ended a call is itself ended
_LONGEST = 1e6  # seconds, or bytes, that mean no limit: the operating system takes no larger values
_MOST_MEMORY = 1 << 50
_PART = 1 << 20
_OUT_OF_MEMORY_TEXTS = ("bad_alloc", "allocate memory", "out of memory", "MemoryError")
_FORKS = sys.platform == "linux"  # elsewhere the frameworks do not survive a fork


@dataclass(frozen=True)
class Bounds:
    """What a call may take.

    seconds: wall-clock time
    memory:  bytes by which its process may grow
    answer:  bytes of its answer
    threads: threads it computes with, each of which may use CPU all the time
    """

    seconds: float
    memory: int
    answer: int
    threads: int = 1


class Ended(Exception):
    """A call that has no result.

    kind:  "time" or "memory" (a limit was hit), "crash" (its process died), "error" (it raised)
    what:  the signal or exit code of a crash, the traceback of an error
    doing: what it last reported to be working on
    """

    def __init__(self, kind: str, what: str = "", doing: str = "") -> None:
        super().__init__(kind, what, doing)
        self.kind, self.what, self.doing = kind, what, doing


def call(function: str, request: Sequence[Any], bounds: Bounds, preload: Sequence[str] = ()) -> memoryview:
    """The result of `function`, "module:name", for a request, computed in a separate process.

    The function takes the request's parts joined, a bytearray, and returns parts of bytes. The modules in `preload` are
    imported before the clock runs. Raises Ended, and QnnError when no process can be started.
    """
    bounds = replace(bounds, seconds=min(bounds.seconds, _LONGEST), memory=min(bounds.memory, _MOST_MEMORY))
    job = {
        "call": function,
        "preload": list(preload),
        "seconds": bounds.seconds + _GRACE,
        "memory": bounds.memory,
        "threads": bounds.threads,
    }
    if not _FORKS:
        return _call_once(job, request)
    while True:
        server = _take()
        try:
            if server.accepts(job):
                result = server.exchange(request, bounds)
                _put_back(server)
                return result
        except Ended:
            _put_back(server)
            raise
        except BaseException:
            server.close()
            raise
        server.close()  # it ended from idleness at just this moment


# ---- servers that fork --------------------------------------------------------------------------------------------


class _Server:
    """A process that runs `server.main`. Raises QnnError if it does not start."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection: socket.socket | None = None
        with theirs:
            self._process = _start(
                "from qnn_ext.processes.isolation.server import main; main(*arguments)",
                [theirs.fileno(), os.getpid()],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        _all.add(self)
        try:
            self._await_start()
        except BaseException:
            self.close()
            raise

    def _await_start(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as errors:
            if self._receive(START_SECONDS) is None:
                raise _cannot_start(errors.read())

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def accepts(self, job: dict[str, Any]) -> bool:
        """Send a call and wait until its process runs; False if the server has already ended. Raises Ended if the
        call's modules cannot be imported."""
        self._connection, theirs = socket.socketpair()
        with theirs, suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [json.dumps(job).encode()], [theirs.fileno()])
        reply = self._receive(START_SECONDS)
        if reply is not None and "failed" in reply:
            raise Ended("error", reply["failed"])
        return reply is not None

    def exchange(self, request: Sequence[Any], bounds: Bounds) -> memoryview:
        """The answer to the request of the call that was accepted. Raises Ended."""
        assert self._connection is not None
        with self._connection as connection:
            try:
                answer = _exchange(connection, request, bounds)
                connection.close()
                end = self._receive(_BACKUP)
            except TimeoutError:
                self.close()
                raise Ended("time") from None
        if end is None:
            raise Ended("crash", ended_with(self._process.wait()))
        if len(answer) > bounds.answer:
            raise Ended("memory")
        return _result(answer, **end)

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        """The next message, None if the process has ended. Raises TimeoutError."""
        self._control.settimeout(seconds)
        with suppress(ConnectionResetError):
            if message := self._control.recv(1 << 16):
                return dict(json.loads(message))
        return None

    def close(self) -> None:
        """End the process, and with it the one that runs its call."""
        self._process.kill()
        self._process.wait()
        self._release()

    def forget(self) -> None:
        """In a process forked from this one: forget the server, which belongs to the parent."""
        self._process.returncode = 0  # nothing to wait for here
        self._release()

    def _release(self) -> None:
        self._control.close()
        if self._connection is not None:
            self._connection.close()
        _all.discard(self)


def _start(code: str, arguments: Sequence[Any], **options: Any) -> Python:
    if not has_interpreter():
        raise QnnError(
            "PyTorch files are read in a separate process, and this program has no Python interpreter to start "
            "one; if you trust the file, load it with torch.jit.load or torch.export.load and pass the object"
        )
    alone = {"OPENBLAS_NUM_THREADS": "1"}  # a process with threads must not be forked
    return Python(code, arguments, alone, **options)


def _cannot_start(text: bytes) -> QnnError:
    lines = text.decode(errors="replace").strip().splitlines() or ["it ended at once"]
    return QnnError(f"cannot start a process that reads the file: {lines[-1]}")


def _exchange(connection: socket.socket, request: Sequence[Any], bounds: Bounds) -> bytearray:
    """Send the request and receive the answer, until its end or until it is too long. Raises TimeoutError."""
    deadline = time.monotonic() + bounds.seconds + _GRACE + _BACKUP
    sizes = [memoryview(part).nbytes for part in request]
    with suppress(BrokenPipeError, ConnectionResetError):  # how it ended will be reported
        for part in (sum(sizes).to_bytes(8, "little"), *request):
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            connection.sendall(part)
    answer = bytearray()
    with suppress(ConnectionResetError):
        while len(answer) <= bounds.answer:
            connection.settimeout(max(0.001, deadline - time.monotonic()))
            part = connection.recv(_PART)
            if not part:
                break
            answer += part
    return answer


# ---- servers at hand ---------------------------------------------------------------------------------------------

_lock = threading.Lock()
_idle: _Server | None = None
_all: set[_Server] = set()


def _take() -> _Server:
    """A server for exclusive use by this thread."""
    global _idle
    with _lock:
        server, _idle = _idle, None
    if server is None:
        return _Server()
    if server.is_running:
        return server
    server.close()
    return _Server()


def _put_back(server: _Server) -> None:
    """Keep one server for the next call."""
    global _idle
    with _lock:
        if server.is_running and _idle is None:
            _idle = server
            return
    server.close()


def close_all() -> None:
    """End all servers. Calls that wait for them raise Ended."""
    for server in list(_all):
        server.close()


def _forget_all() -> None:
    """In a forked process: forget the servers, which belong to the process that started them."""
    global _lock, _idle
    _lock, _idle = threading.Lock(), None
    for server in list(_all):
        server.forget()


atexit.register(close_all)
if _FORKS:
    os.register_at_fork(after_in_child=_forget_all)


# ---- processes for one call --------------------------------------------------------------------------------------


def _call_once(job: dict[str, Any], request: Sequence[Any]) -> memoryview:
    process = _start(
        "from qnn_ext.processes.isolation.once import main; main()",
        [],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    content = b"".join([json.dumps(job).encode(), b"\n", *request])
    with process:
        try:
            answer, errors = process.communicate(content, timeout=START_SECONDS + job["seconds"])
        except subprocess.TimeoutExpired:
            raise Ended("time") from None
        finally:
            process.kill()
    text = errors.decode(errors="replace")
    why = "time" if text.lstrip().startswith(TIME_IS_UP) else None
    return _result(bytearray(answer), process.returncode, why, text)


# ---- how calls end -----------------------------------------------------------------------------------------------


def _result(answer: bytearray, code: int, why: str | None, stderr: str, doing: str = "") -> memoryview:
    """The result in an answer, if that is complete; else raises Ended."""
    mark = bytes(answer[:1]) if code == 0 else b""
    if mark == RESULT:
        return memoryview(answer)[1:]
    if why == "time" or code == -getattr(signal, "SIGXCPU", 0):
        raise Ended("time", doing=doing)
    if mark == ERROR:
        raise Ended("error", answer[1:].decode(errors="replace"), doing)
    if mark == OUT_OF_MEMORY or any(text in stderr for text in _OUT_OF_MEMORY_TEXTS):
        raise Ended("memory", doing=doing)
    raise Ended("crash", ended_with(code), doing)
