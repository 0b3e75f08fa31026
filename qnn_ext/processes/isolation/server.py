"""The child's side: a process that has imported what calls need, and forks itself for each.

So every call gets its own process, with everything imported, at the cost of a fork. The server itself touches no
untrusted byte. It serves one call at a time, reports how its process ended, and ends when its parent does.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import select
import signal
import socket
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from . import progress
from .answering import answer
from .confine import confine, die_with

IDLE_SECONDS = 30.0  # after which a server without calls ends, as it holds a few hundred megabytes
_PARENT_SECONDS = 1.0  # between checks that the parent is alive: its end is usually noticed at once
_MOST_ERRORS = 4096  # bytes kept of what a process wrote to stderr
MOST_MESSAGE = 1 << 16


def main(descriptor: int, parent: int) -> None:
    """Serve the process `parent` on this socket until it closes the socket or ends, or no call comes for a while."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.chdir("/")
    with socket.socket(fileno=descriptor) as control:
        control.send(json.dumps({"ready": True}).encode())
        _silence()
        with suppress(BrokenPipeError, ConnectionResetError):  # the parent's way to end this
            while (job := _next_job(control, parent)) is not None:
                control.send(json.dumps(_serve(*job, control, parent)).encode())
    os._exit(0)


def _silence() -> None:
    """Silence stderr, which was only for errors while starting."""
    with open(os.devnull, "wb") as sink:
        os.dup2(sink.fileno(), 2)


def _next_job(control: socket.socket, parent: int) -> tuple[dict[str, Any], int] | None:
    """A call and the descriptor of its connection; None when this process should end."""
    deadline = time.monotonic() + IDLE_SECONDS
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while time.monotonic() < deadline and os.getppid() == parent:
        if poll.poll(1000 * _PARENT_SECONDS):
            message, descriptors, _, _ = socket.recv_fds(control, MOST_MESSAGE, 1)
            return (json.loads(message), descriptors[0]) if message and descriptors else None
    return None


def _serve(job: dict[str, Any], descriptor: int, control: socket.socket, parent: int) -> dict[str, Any]:
    """Run one call in a process of its own; returns how that ended."""
    try:
        for module in job["preload"]:
            import_module(module)
    except ImportError as error:
        return {"failed": str(error)}
    gc.collect()
    gc.freeze()  # so that existing objects stay shared with forked processes
    note = mmap.mmap(-1, mmap.PAGESIZE)
    errors, writes_errors = os.pipe()
    server = os.getpid()
    child = os.fork()
    if child == 0:
        die_with(server)
        control.close()
        os.close(errors)
        os._exit(_run(job, descriptor, writes_errors, note))
    os.close(writes_errors)
    control.send(json.dumps({"accepted": True}).encode())
    end = _Watch(child, descriptor, control, errors, parent).wait(job["seconds"])
    os.close(descriptor)
    os.close(errors)
    return {**end, "doing": progress.read(note)}


# ---- the process of one call -------------------------------------------------------------------------------------


def _run(job: dict[str, Any], descriptor: int, errors: int, note: mmap.mmap) -> int:
    """Read the request and answer it; returns the exit code."""
    os.setpgid(0, 0)
    os.dup2(errors, 2)
    os.close(errors)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with socket.socket(fileno=descriptor) as connection:
            request = _read_all(connection)
            confine(job["memory"], job["seconds"] * job["threads"], job["threads"])
            progress.attach(note)
            for part in answer(job["call"], request):
                connection.sendall(part)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _read_all(connection: socket.socket) -> bytearray:
    """The request: its length in 8 bytes, then its content."""
    size = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "little")
    request = bytearray(size)
    view = memoryview(request)
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError("the request is incomplete")
        view = view[count:]
    return request


# ---- watching it -------------------------------------------------------------------------------------------------


@dataclass
class _Watch:
    """A running process, and everything that may end it.

    child:      its process id; it leads the group with that id
    connection: closed on the other side when nobody waits for the answer any more
    control:    closed on the other side when the parent ends
    errors:     what the process writes to stderr
    """

    child: int
    connection: int
    control: socket.socket
    errors: int
    parent: int

    def wait(self, seconds: float) -> dict[str, Any]:
        """Wait for its end, and end it when its time is up or nobody waits. Returns its exit code or −signal, "time" if
        that was up, and the last part of what it wrote to stderr."""
        deadline = time.monotonic() + seconds
        why, text = None, b""
        poll = select.poll()
        poll.register(self.connection, 0)  # reports when the other side is gone
        poll.register(self.control, select.POLLIN)
        poll.register(self.errors, select.POLLIN)
        pause = _PARENT_SECONDS
        while (status := self._ended()) is None:
            left = deadline - time.monotonic()
            events = dict(poll.poll(1000 * max(0.0, min(left, pause))))
            if self.errors in events:
                part = os.read(self.errors, 1 << 16)
                text = (text + part)[-_MOST_ERRORS:]
                if not part:  # it is ending
                    poll.unregister(self.errors)
                    pause = 0.002
            given_up = self.connection in events or self.control.fileno() in events or os.getppid() != self.parent
            if given_up or left <= 0:
                why = "given up" if given_up else "time"
                self._kill()
                pause = 0.002
        return {"code": status, "why": why, "stderr": text.decode(errors="replace")}

    def _ended(self) -> int | None:
        """Its exit code or −signal, None while it runs."""
        if os.waitid(os.P_PID, self.child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        self._kill()  # anything it may have started, while its pid cannot be reused
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)
