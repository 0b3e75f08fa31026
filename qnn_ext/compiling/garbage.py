"""Python's garbage collector during a build: its full collections walk all of TVM's objects again each time, which
takes 5 to 7 % of a build and frees next to nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_RARELY = 1_000_000  # collections of the second generation from one full collection to the next

_lock = threading.Lock()
_within = 0  # builds that are going on
_before = (0, 0, 0)  # the thresholds to return to


@contextmanager
def young_collections() -> Iterator[None]:
    """A context, for any number of threads, in which Python collects only what is young. Thresholds are the process's:
    they return to what they were when the last build ends, unless somebody has set others meanwhile."""
    global _within, _before
    with _lock:
        _within += 1
        if _within == 1:
            _before = gc.get_threshold()
            gc.set_threshold(*_before[:2], _RARELY)
    try:
        yield
    finally:
        with _lock:
            _within -= 1
            if _within == 0 and gc.get_threshold() == (*_before[:2], _RARELY):
                gc.set_threshold(*_before)
