"""What else a machine may be doing while runtimes are measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_TURN = 200e-6
"""Seconds: short beside a model's run, long beside a system call."""

_SLOWING = """
import os, sys, time
share, turn = map(float, sys.argv[1:])
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))  # before the runtimes' real-time priority
print("ready", flush=True)
while True:
    end = time.perf_counter() + share * turn
    while time.perf_counter() < end:
        pass
    time.sleep((1 - share) * turn)
"""


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """A context in which so many other processes want cores too."""
    with _running([["-c", "while True: pass"]] * count):
        yield


@contextmanager
def slow_core(share: float) -> Iterator[None]:
    """A context in which the last core is a slower one: this share of its time is taken away, in turns of 0.2 ms, as by
    another machine's thread on the same core. Nothing happens at 0. Raises PermissionError without the right to
    real-time priority, which root has."""
    commands = [["-c", _SLOWING, str(share), str(_TURN)]] if share else []
    with _running(commands) as processes:
        for process in processes:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise PermissionError("a slow core needs the capability CAP_SYS_NICE, which root has")
        yield


@contextmanager
def _running(commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A context with Python processes that end with it."""
    processes = [
        subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
