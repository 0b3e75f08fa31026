"""The parent's side of the children: jobs, a watchdog, turning a child's death into a verdict, and replacing it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import cases
from .check import CRASH, MEMORY, ROOT, TIMEOUT, Verdict, innermost
from .worker import Settings

_START_SECONDS = 300.0  # for importing the frameworks on a busy machine
_WALL_FACTOR = 6.0  # wall-clock time per CPU time that a file may take: children may have to wait for a core
_MOST_GROWTH = 4 << 30  # bytes of address space above which a child is replaced
_FRAME = re.compile(r'^  File "(.+)", line \d+ in (.+)$', re.MULTILINE)
_NO_MEMORY = re.compile(r"bad_alloc|out of memory|Cannot allocate memory|MemoryError", re.IGNORECASE)


class WorkerError(Exception):
    """A child failed to start."""


@dataclass(frozen=True)
class Result:
    """The result of a case; `number` is None for cases that were given explicitly."""

    number: int
    verdict: Verdict


class Child:
    """One child process and its state."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.job: tuple[int, int] | None = None
        self.number: int | None = None  # the file it is working on
        self.since = time.monotonic()
        self.grown, self._first = 0, 0
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by `end`)
        # Append mode: the child empties the file for every case, and writes must go to its end
        descriptor = os.open(f"/proc/self/fd/{self._errors.fileno()}", os.O_WRONLY | os.O_APPEND)
        with contextlib.closing(os.fdopen(descriptor, "wb")) as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.worker", settings.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            )
        self._rest = b""
        line = self._first_line()
        if line != "ready":
            raise WorkerError(f"a child process did not start ({line!r}):\n{self.end() or self.last_words()}")

    @property
    def stream(self) -> Any:
        """The pipe that it writes verdicts to."""
        return self._process.stdout

    def _first_line(self) -> str:
        with selectors.DefaultSelector() as selector:
            selector.register(self.stream, selectors.EVENT_READ)
            if not selector.select(_START_SECONDS):
                return "it took too long"
        return self.stream.readline().decode().strip()

    def send(self, job: dict[str, Any]) -> None:
        """Give it a job."""
        self.since = time.monotonic()
        with contextlib.suppress(BrokenPipeError):  # it has died meanwhile, as `lines` will show
            self._process.stdin.write(json.dumps(job).encode() + b"\n")  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def lines(self) -> list[str] | None:
        """Complete lines that have arrived; None when it is dead."""
        part = os.read(self.stream.fileno(), 1 << 16)
        if not part:
            return None
        *lines, self._rest = (self._rest + part).split(b"\n")
        self.since = time.monotonic()
        return [line.decode() for line in lines]

    def take(self, line: str) -> Result | None:
        """Interpret a line; returns the verdict if it holds one."""
        kind, _, rest = line.partition(" ")
        if kind == "+":
            self.number = int(rest)
        elif kind == "=":
            number, self.number = self.number, None
            assert number is not None
            return Result(number, Verdict(**json.loads(rest)))
        elif kind == ".":
            self.job = None
            self._first = self._first or int(rest)
            self.grown = int(rest) - self._first
        return None

    def is_late(self) -> bool:
        """Whether it hangs without using CPU time, which has its own limit."""
        return time.monotonic() - self.since > _WALL_FACTOR * self.settings.seconds

    def interrupt(self) -> None:
        """Make it write its stack and exit."""
        self._process.send_signal(signal.SIGPROF)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._process.kill()

    def end(self) -> str:
        """End it and return its last output."""
        self._process.kill()
        self._process.wait()
        words = "" if self._errors.closed else self.last_words()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        return words

    def last_words(self) -> str:
        """Its output on stderr for its last file."""
        self._errors.seek(0)
        return self._errors.read(200_000).decode(errors="replace").replace("\0", "")

    def death(self) -> Verdict:
        """The verdict on the file on which it died."""
        code = self._process.wait()
        words = self.end()
        stack = innermost([(file, name) for file, name in reversed(_FRAME.findall(_current_thread(words)))])
        if code == -signal.SIGPROF or (code == -signal.SIGKILL and "Timeout" in words):
            return Verdict(TIMEOUT, f"more than {self.settings.seconds:g} s of CPU time", stack or "unknown place")
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        kind = MEMORY if _NO_MEMORY.search(words) or code == -signal.SIGKILL else CRASH
        return Verdict(kind, f"{name}: {words[:1500].strip()}", f"{name} at {stack or 'unknown place'}")


def _current_thread(words: str) -> str:
    """The stack of the thread that received the signal or that runs Python; all stacks if it is not marked."""
    parts = re.split(r"^(?=(?:Current thread|Thread) 0x)", words, flags=re.MULTILINE)
    current = [part for part in parts if part.startswith("Current thread")]
    return current[0] if current else words


class Pool:
    """Children that work on a range of case numbers; `results` yields the result of each."""

    def __init__(self, settings: Settings, jobs: int, batch: int = 50) -> None:
        self.settings, self.jobs, self.batch = settings, jobs, batch

    def results(self, first: int, last: int | None, until: float) -> Iterator[Result]:
        """Verdicts as they arrive, for numbers `first` to `last` (exclusive); none is started after time `until`."""
        waiting: list[tuple[int, int]] = []
        upcoming = first
        children = [Child(self.settings) for _ in range(self.jobs)]
        selector = selectors.DefaultSelector()
        for child in children:
            selector.register(child.stream, selectors.EVENT_READ, child)

        def supply(child: Child) -> None:
            nonlocal upcoming
            if time.monotonic() >= until:
                return
            if waiting:
                child.job = waiting.pop()
            elif last is None or upcoming < last:
                end = upcoming + self.batch if last is None else min(last, upcoming + self.batch)
                child.job, upcoming = (upcoming, end), end
            else:
                return
            child.send({"range": child.job})

        def replaced(child: Child) -> Child:
            selector.unregister(child.stream)
            children.remove(child)
            child.end()
            fresh = Child(self.settings)
            children.append(fresh)
            selector.register(fresh.stream, selectors.EVENT_READ, fresh)
            return fresh

        try:
            for child in children:
                supply(child)
            while any(child.job for child in children):
                for key, _ in selector.select(1.0):
                    child = key.data
                    lines = child.lines()
                    if lines is None:
                        job, number = child.job, child.number
                        if number is None:
                            raise WorkerError(f"a child process died between two files:\n{child.last_words()}")
                        yield Result(number, child.death())
                        if job and number + 1 < job[1]:
                            waiting.append((number + 1, job[1]))
                        supply(replaced(child))
                        continue
                    for line in lines:
                        if result := child.take(line):
                            yield result
                    if child.job is None:
                        supply(replaced(child) if child.grown > _MOST_GROWTH else child)
                for child in children:
                    if child.job and child.is_late():
                        child.interrupt()
        finally:
            selector.close()
            for child in children:
                child.end()


class Single:
    """A child for one explicit case at a time, replaced when it dies: for confirming and minimizing."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._child: Child | None = None

    def check(self, case: cases.Case, fresh: bool = False) -> Verdict:
        """The verdict on a case, in a new child if `fresh`."""
        if fresh:
            self.close()
        child = self._child = self._child or Child(self.settings)
        child.job = (0, 1)
        child.send({"case": case.to_json(), "number": 0})
        verdict = None
        with selectors.DefaultSelector() as selector:
            selector.register(child.stream, selectors.EVENT_READ)
            while child.job:
                if not selector.select(1.0):
                    if child.is_late():
                        child.interrupt()
                    continue
                lines = child.lines()
                if lines is None:
                    self._child = None
                    return child.death()
                for line in lines:
                    if result := child.take(line):
                        verdict = result.verdict
        assert verdict is not None
        return verdict

    def close(self) -> None:
        """End the child."""
        if self._child:
            self._child.end()
        self._child = None
