"""Child processes: none outlives this process, however it ends.

Each child is in a session of its own, so that an interrupt at the terminal reaches only this process, and everything
that the child starts in turn (a compiler, its linker) can be ended with it. It also holds one end of a pipe whose other
end is here: when this process dies, even by SIGKILL, the system closes that, and the child ends itself and what it
started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import QnnError
from . import forking

_LIFELINE = "QNN_EXT_LIFELINE"
_PACKAGE = Path(__file__).parents[2]

_PATIENCE = 0.5  # seconds that killed processes get to be gone

_started: weakref.WeakSet[Program] = weakref.WeakSet()
_starting = forking.lock("starting")


class Program(subprocess.Popen):
    """A process that leads a group and is killed with the whole group: with `end`, or when this process ends, unless
    that is killed itself."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        with _starting:
            super().__init__(command, start_new_session=True, **options)
            _started.add(self)

    def kill(self) -> None:
        """Kill it and all that it started; does nothing after it was waited for, when its pid may be another
        process's."""
        if self.returncode is not None:
            return
        if not hasattr(os, "killpg"):  # Windows has no groups
            super().kill()
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS forbids it once the process has ended
            os.killpg(self.pid, signal.SIGKILL)

    def is_alive(self) -> bool:
        """Whether a process of the group is left."""
        if not hasattr(os, "killpg"):
            return self.poll() is None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self.poll()  # one that has ended stays in its group until it is waited for
            os.killpg(self.pid, 0)
            return True
        return False

    def end(self) -> None:
        """Kill it, wait for it, and discard its unread output."""
        self.kill()
        self.wait()
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # buffered input not yet written
                    pipe.close()


class Python(Program):
    """A Python process with the same module search path as this one, which runs `code`.

    arguments:   the value of the name `arguments` in `code`; anything that JSON can represent
    environment: variables that differ from this process's

    Raises QnnError if there is no Python interpreter, as in a frozen program.
    """

    def __init__(
        self,
        code: str,
        arguments: Sequence[Any] = (),
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        if not has_interpreter():
            raise QnnError("this program has no Python interpreter that it could start a process with")
        paths = [os.path.abspath(path) for path in sys.path if isinstance(path, str)]
        start = f"import sys, json; sys.path[:], arguments = json.loads(sys.argv[1]); {code}"
        super().__init__(
            [sys.executable, "-I", "-c", start, json.dumps([[*paths, str(_PACKAGE)], list(arguments)])],
            env={**os.environ, **(environment or {})},
            **options,
        )


def has_interpreter() -> bool:
    """Whether a Python process can be started."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class Child(Python):
    """A Python process that runs `module.main()` with pipes as its stdin and stdout.

    folder:  for its temporary files; removed by whoever ends it, or by itself if its parent is gone
    without: modules that must not be imported in it
    """

    def __init__(
        self, module: str, folder: str | None = None, without: Sequence[str] = (), stderr: int | None = None
    ) -> None:
        theirs, lifeline = os.pipe()
        self._lifeline = os.fdopen(lifeline, "wb", buffering=0)  # closed with this object at the latest
        try:
            super().__init__(
                _child_program(module, folder, without),
                environment={_LIFELINE: str(theirs), **({"TMPDIR": folder} if folder else {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                pass_fds=(theirs,),
            )
        except BaseException:
            self._lifeline.close()
            raise
        finally:
            os.close(theirs)

    def end(self) -> None:
        super().end()
        self._lifeline.close()


def _child_program(module: str, folder: str | None, without: Sequence[str]) -> str:
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    follow = f"from qnn_ext.processes.children import follow; follow({folder!r})"
    return f"{blocked}{follow}; from {module} import main; main()"


def follow(folder: str | None) -> None:
    """In a child: from now on, end together with everything it starts when the parent process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, and ends this process
    lifeline = int(os.environ.pop(_LIFELINE))
    os.set_inheritable(lifeline, False)

    def watch() -> None:
        os.read(lifeline, 1)  # nothing is ever written
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; returns its exit code and the text of both outputs. Its temporary files are in a folder
    that is removed. If the wait is interrupted, the program is ended too. Raises OSError if it cannot be started."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # a killed compiler cannot remove its files
    with tempfile.TemporaryDirectory(prefix="qnn-ext-", ignore_cleanup_errors=True) as folder:
        options["env"] = {**options.get("env", os.environ), "TMPDIR": folder}
        process = Program(command, text=True, errors="replace", **pipes, **options)
        try:
            out, err = process.communicate()
        except BaseException:
            process.end()
            _wait([process])
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def ended_with(code: int) -> str:
    """The signal that ended a process, "SIGSEGV", or its "exit code 3"."""
    known = code < 0 and -code in set(signal.Signals)
    return signal.Signals(-code).name if known else f"exit code {code:#x}" if code > 255 else f"exit code {code}"


def end_all() -> None:
    """End every process started here, and start no further one: for the end of this process, from any thread."""
    _starting.acquire(timeout=1.0)  # a thread that holds it is starting one, or was stopped while doing so
    processes = list(_started)
    for process in processes:
        process.kill()
    _wait(processes)


def _wait(killed: Sequence[Program]) -> None:
    """Wait for all that they started: what is in the middle of a system call finishes that, and may create a file."""
    deadline = time.monotonic() + _PATIENCE
    for process in killed:
        while process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
