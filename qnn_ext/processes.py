"""Processes that this one starts: none outlives it, whatever ends it.

A child is a session of its own, so that an interrupt at the terminal comes to this process alone, and all that a child
starts in turn (a compiler, its linker) can be ended with it. It also holds one end of a pipe whose other end is here:
when this process dies, by SIGKILL too, the system closes that, and the child ends itself and what it started.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import forking

_LIFELINE = "QNN_EXT_LIFELINE"
_PACKAGE = Path(__file__).parents[1]

_started: weakref.WeakSet[subprocess.Popen] = weakref.WeakSet()
_starting = forking.lock("starting")


class _Group(subprocess.Popen):
    """A process that leads a group, and is ended with all of it."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        with _starting:
            super().__init__(command, start_new_session=True, **options)
            _started.add(self)

    def kill(self) -> None:
        """Kill it and all that it started; nothing when it was waited for, since then its number may be another's."""
        if self.returncode is not None:
            return
        if not hasattr(os, "killpg"):  # Windows has no groups
            super().kill()
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS forbids it when the process has ended
            os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill it, wait for it, and drop what it left unread."""
        self.kill()
        self.wait()
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written yet
                    pipe.close()


class Child(_Group):
    """A Python process that runs `module.main()` with pipes as its stdin and stdout.

    folder:  where it makes its temporary files; removed by whoever ends it, by itself when its parent is gone
    without: modules that must not be imported there
    """

    def __init__(
        self, module: str, folder: str | None = None, without: Sequence[str] = (), stderr: int | None = None
    ) -> None:
        theirs, lifeline = os.pipe()
        self._lifeline = os.fdopen(lifeline, "wb", buffering=0)  # closed with this object at the latest
        try:
            super().__init__(
                [sys.executable, "-c", _child_program(module, folder, without)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                pass_fds=(theirs,),
                env=_environment({_LIFELINE: str(theirs), **({"TMPDIR": folder} if folder else {})}),
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
    follow = f"from qnn_ext.processes import follow; follow({folder!r})"
    return f"import sys; {blocked}{follow}; from {module} import main; main()"


def _environment(changes: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(_PACKAGE), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **changes}


def follow(folder: str | None) -> None:
    """In a child: from now on it ends, with all that it starts, when the process that started it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it is told, and ends it
    lifeline = int(os.environ.pop(_LIFELINE))
    os.set_inheritable(lifeline, False)

    def watch() -> None:
        os.read(lifeline, 1)  # nothing is ever written
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end: its exit code, and what it wrote on both outputs as text. Whatever ends the wait ends
    the program too. Raises OSError where it cannot be started."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = _Group(command, text=True, errors="replace", **pipes, **options)
    try:
        out, err = process.communicate()
    except BaseException:
        process.end()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def adopt(process: subprocess.Popen) -> subprocess.Popen:
    """Let `end_all` end a process that was started elsewhere, too."""
    _started.add(process)
    return process


def end_all() -> None:
    """End every process started here, and let no further one start: for the end of this process, from any thread."""
    _starting.acquire(timeout=1.0)  # a thread that has it is starting one, or was stopped before
    for process in list(_started):
        process.kill()
