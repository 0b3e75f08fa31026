"""How a signal ends a command: at once, with one line, leaving no process and no temporary file behind.

Python handles a signal only between two of its own instructions, not while TVM compiles; and in a function called by
TVM, in a destructor or in an import, an exception is replaced by another or lost. So nothing is raised. A thread waits
for the signal and ends the process, wherever the other threads are. Nothing is lost by that: a command's files get
their names only once complete, and tuning records are appended as they are measured.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NoReturn

_WORDS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}
_SHOW_CURSOR = "\r\x1b[2K\x1b[?25h"  # a progress bar hides it
_ATTEMPTS = 20
_PATIENCE = 0.01  # seconds between them

_end = threading.Lock()  # its holder ends the process: the finished command, or the thread that received a signal
_heard = threading.Event()
_temporary: dict[str, None] = {}


def end_at_once() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end this process, except those ignored from the start (nohup)."""
    words = {getattr(signal, name): word for name, word in _WORDS.items() if hasattr(signal, name)}
    words = {number: word for number, word in words.items() if signal.getsignal(number) is not signal.SIG_IGN}
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    try:
        stderr = os.dup(2)  # not silenced when TVM's output is
    except OSError:  # closed
        stderr = -1
    sys.addaudithook(_observe)
    threading.Thread(target=_wait, args=(receiver, stderr, words), daemon=True).start()
    for number in words:
        signal.signal(number, lambda *_: None)  # Python's handler does nothing; what counts is the byte in the pipe


def ignore() -> None:
    """Ignore signals from now on: the command is done."""
    _end.acquire()
    for name in _WORDS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _wait(receiver: int, stderr: int, words: dict[int, str]) -> NoReturn:
    global _waiter
    _waiter = threading.get_ident()
    number = 0
    while number not in words:  # every signal that Python handles sends a byte
        number = os.read(receiver, 1)[0]
    _end.acquire()
    _heard.set()
    with open(os.devnull, "wb") as sink:  # other threads' errors about their ended workers are not shown
        for output in (1, 2):
            os.dup2(sink.fileno(), output)
    with suppress(OSError):
        cursor = _SHOW_CURSOR if os.isatty(stderr) else ""
        os.write(stderr, f"{cursor}{words[number]}\n".encode())
    imported = sys.modules  # import nothing now: a thread stopped while importing holds the lock
    getattr(imported.get("qnn_ext.processes.children"), "end_all", lambda: None)()
    _remove([*_temporary, *map(str, getattr(imported.get("qnn_ext.files.storage"), "unfinished", ()))])
    os._exit(128 + number)


_waiter = 0


def _observe(event: str, arguments: tuple[Any, ...]) -> None:
    """Record temporary files and folders, whoever makes them, before they exist. After a signal, other threads can no
    longer open, create or import anything; `processes` makes sure that they start no process."""
    if event in ("tempfile.mkdtemp", "tempfile.mkstemp"):
        _temporary[str(arguments[0])] = None
    while _heard.is_set() and threading.get_ident() != _waiter and event != "subprocess.Popen":
        time.sleep(60)


def _remove(paths: list[str]) -> None:
    for _ in range(_ATTEMPTS):  # TVM, which Python's hooks cannot stop, may still be writing
        paths = [path for path in paths if os.path.lexists(path)]
        for path in paths:
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with suppress(OSError):
                    os.unlink(path)
        if not paths:
            return
        time.sleep(_PATIENCE)
