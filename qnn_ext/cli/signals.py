"""How a signal ends a command: at once, with one line, leaving no process and no temporary file behind.

Python hears a signal between two of its own instructions: not while TVM compiles; and in a function that TVM calls, in
a destructor or an import an exception becomes another one or is lost. So nothing is raised. A thread waits for the
signal and ends the process, wherever the others are. Nothing is lost by that: what a command writes for good gets its
name when it is whole, and records of tuning are appended as they are measured.
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

_end = threading.Lock()  # who has it ends the process: the command that is done, or the thread that heard a signal
_heard = threading.Event()
_temporary: dict[str, None] = {}


def end_at_once() -> None:
    """From now on SIGINT, SIGTERM and SIGHUP end this process, but for those that it was started to ignore (nohup)."""
    words = {getattr(signal, name): word for name, word in _WORDS.items() if hasattr(signal, name)}
    words = {number: word for number, word in words.items() if signal.getsignal(number) is not signal.SIG_IGN}
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    try:
        stderr = os.dup(2)  # where TVM is silenced, this is not
    except OSError:  # closed
        stderr = -1
    sys.addaudithook(_observe)
    threading.Thread(target=_wait, args=(receiver, stderr, words), daemon=True).start()
    for number in words:
        signal.signal(number, lambda *_: None)  # of Python's; what counts is the byte in the pipe


def ignore() -> None:
    """The command is done: a signal changes nothing any more."""
    _end.acquire()
    for name in _WORDS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def _wait(receiver: int, stderr: int, words: dict[int, str]) -> NoReturn:
    global _waiter
    _waiter = threading.get_ident()
    number = 0
    while number not in words:  # of every signal that Python handles a byte comes
        number = os.read(receiver, 1)[0]
    _end.acquire()
    _heard.set()
    with open(os.devnull, "wb") as sink:  # what the others make of the end of their workers is not told
        for output in (1, 2):
            os.dup2(sink.fileno(), output)
    with suppress(OSError):
        cursor = _SHOW_CURSOR if os.isatty(stderr) else ""
        os.write(stderr, f"{cursor}{words[number]}\n".encode())
    imported = sys.modules  # nothing is imported now: whoever stopped while importing has the lock
    getattr(imported.get("qnn_ext.processes"), "end_all", lambda: None)()
    _remove([*_temporary, *map(str, getattr(imported.get("qnn_ext.storage"), "unfinished", ()))])
    os._exit(128 + number)


_waiter = 0


def _observe(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes temporary files and folders, whoever makes them, before they are there. Once a signal was heard, other
    threads open, make and import nothing any more; that they start no process is `processes`' business."""
    if event in ("tempfile.mkdtemp", "tempfile.mkstemp"):
        _temporary[str(arguments[0])] = None
    while _heard.is_set() and threading.get_ident() != _waiter and event != "subprocess.Popen":
        time.sleep(60)


def _remove(paths: list[str]) -> None:
    for _ in range(_ATTEMPTS):  # TVM, which no hook of Python's stops, may be writing
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
