"""The command line: `qnn-ext quantize | compile | run | bench | compare | accuracy | memory | inspect | report |
tune | cache`.

Exit codes: 0 done, 1 an error (one line on stderr), 2 wrong usage; 128 + the number of a signal: 130 interrupted, 143
terminated, 129 hung up, and 141 (SIGPIPE) if the reader of the output is gone.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from . import signals

__all__ = ["main"]

OBJECTS = 100_000
"""After so many new objects, garbage is collected: more than a short command makes."""


def main(args: Sequence[str] | None = None) -> None:
    """Entry point: runs a command and exits with its exit code.

    args: given by a program that runs a command in its own process, and then handles signals itself
    """
    if args is None:
        signals.end_at_once()
        # For each core, NumPy's OpenBLAS starts a thread, which looks for work 2^26 cycles long before it sleeps: 25 ms
        # of CPU time each. With 2^20 threads still stay awake from one product to the next.
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")
        # What is imported stays: looking through it for garbage, at every 700th object and in the end, takes 30 ms.
        gc.set_threshold(OBJECTS)
    from .commands import run_command  # importing click and rich takes time: signals are handled first

    code = run_command(args)
    if args is None:
        signals.ignore()
        gc.freeze()
    sys.exit(code)
