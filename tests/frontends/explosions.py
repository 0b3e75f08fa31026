"""Imports files that demand excessive resources, in a child with little address space: result and time of each."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

HEADROOM = 2 << 30  # bytes of address space beyond the libraries'
SECONDS = 20  # seconds of one import; most take milliseconds


def attack(read: Callable[[Any], object], harmless: Any, files: Mapping[str, Any]) -> None:
    """Import every file and print [name, error or nothing, seconds] for each as JSON.

    harmless: is imported first, so that libraries are loaded before their address space is measured
    """
    from qnn_ext import QnnError

    read(harmless)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + HEADROOM, taken + HEADROOM))
    for name, content in files.items():
        started, text = time.monotonic(), ""
        try:
            read(content)
        except QnnError as error:
            text = f"{type(error).__name__}: {error}"
        print(json.dumps([name, text, time.monotonic() - started]), flush=True)


@cache
def results(program: Path) -> dict[str, tuple[str, float]]:
    """The report of a child that runs `program`, a module of such files: name -> (error or nothing, seconds)."""
    folder = Path(__file__).parents[2]
    module = ".".join(program.relative_to(folder).with_suffix("").parts)
    command = [sys.executable, "-m", module]
    child = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    assert child.returncode == 0, f"ended after {lines[-1:]}: {child.stderr[-500:]}"
    return {name: (text, seconds) for name, text, seconds in lines}


def check(found: tuple[str, float], expected: str) -> None:
    """Whether a file was refused as expected: by a limit's name, by part of another message, or not at all ("")."""
    from qnn_ext import Limits

    text, seconds = found
    if expected in Limits.__dataclass_fields__:
        assert text.startswith("LimitError: ") and f"--limit {expected}=" in text, text
    else:
        assert expected in text and bool(expected) == bool(text), text
    assert seconds < SECONDS
