"""The threads that kernels run on: a pool of TVM's for each thread of Python that runs a model.

A pool's threads do not come along in a fork, and TVM notices nothing: a parallel kernel would wait for them for ever.
In a forked process the thread that forked therefore computes alone; threads that start there have whole pools.
"""

from __future__ import annotations

import os
import sys
import threading

from . import tvm_runtime
from .host import default_threads

# By default TVM pins the calling thread to core 0, and with it all that this thread starts later: several processes on
# one machine would share that core, and NumPy and other runtimes would be left with it.
os.environ.setdefault("TVM_BIND_THREADS", "0")
# By default its pool has half as many threads as x86 has cores, taking every second for a hyper-thread: on a virtual
# machine with two cores that is one. `num_threads` decides here; OMP_NUM_THREADS, which TVM reads too, still limits it.
if "OMP_NUM_THREADS" not in os.environ:
    os.environ.setdefault("TVM_NUM_THREADS", str(default_threads()))

_pool = threading.local()  # size: how many threads this thread's pool uses; absent where it has none
_LOST = -1


def use_threads(count: int) -> int:
    """Let kernels that this thread calls run on so many threads; how many it is, 1 where a fork took the others."""
    size = getattr(_pool, "size", None)
    if size == count:
        return count
    if size == _LOST:
        return 1
    tvm_runtime.get_function("runtime.config_threadpool")(1, count)
    _pool.size = count
    return count


def _lose() -> None:
    """In a forked process. TVM's compiler runs kernels of its own when it folds constants, so that there may be a pool
    that was never asked for here."""
    size = getattr(_pool, "size", None)
    if size == _LOST or (size is None and "tvm.runtime" not in sys.modules):
        return
    tvm_runtime.get_function("runtime.config_threadpool")(1, 1)
    _pool.size = _LOST


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose)
