"""Work in a fork of this process, for third-party code that may crash: only the fork ends then."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress

from .children import ended_with
from .isolation.confine import die_with

_FORKS = sys.platform == "linux"  # elsewhere frameworks do not survive a fork


class Crashed(Exception):
    """A fork has died. how: the signal or exit code; said: the last that it wrote to stderr before."""

    def __init__(self, how: str, said: str) -> None:
        super().__init__(how, said)
        self.how, self.said = how, said


def apart(work: Callable[[], bytes]) -> bytes:
    """What `work` returns, computed in a fork of this process; on systems without forks, in this one.

    Raises Crashed if the fork dies, and what `work` raises, for which it is called once more, here.
    """
    if not _FORKS:
        return work()
    with tempfile.TemporaryFile() as errors:
        reading, writing = os.pipe()
        parent = os.getpid()
        child = os.fork()
        if child == 0:
            os.dup2(errors.fileno(), 2)
            _answer(work, writing, parent)
        os.close(writing)
        try:
            with open(reading, "rb") as answer:
                result = answer.read()
        except BaseException:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            raise
        finally:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == _RAISED:
            return work()
        if code:
            errors.seek(0)
            raise Crashed(ended_with(code), errors.read().decode(errors="replace"))
    return result


_RAISED = 99


def _answer(work: Callable[[], bytes], writing: int, parent: int) -> None:
    """In the fork: write what `work` returns, and end."""
    code = _RAISED
    try:
        die_with(parent)
        with open(writing, "wb") as answer:
            answer.write(work())
        code = 0
    finally:
        os._exit(code)
