"""The threads that kernels run on: a pool of TVM's for each thread of Python that runs a model.

A pool's threads do not come along in a fork, and TVM notices nothing: a parallel kernel would wait for them for ever.
So a forked process starts the pool of its thread anew. That destroys what the threads waited for, which in C takes for
ever where one slept. Therefore it is started anew right before the fork as well: new threads are awake for a while.
"""

from __future__ import annotations

import os
import sys
import threading

from . import forking, tvm_runtime
from .host import default_threads

# By default TVM pins the calling thread to core 0, and with it all that this thread starts later: several processes on
# one machine would share that core, and NumPy and other runtimes would be left with it.
os.environ.setdefault("TVM_BIND_THREADS", "0")
# By default its pool has half as many threads as x86 has cores, taking every second for a hyper-thread: on a virtual
# machine with two cores that is one. `num_threads` decides here; OMP_NUM_THREADS, which TVM reads too, still limits it.
if "OMP_NUM_THREADS" not in os.environ:
    os.environ.setdefault("TVM_NUM_THREADS", str(default_threads()))

_pool = threading.local()  # size: how many threads this thread's pool uses; 0 of a new one, absent where there is none


def use_threads(count: int) -> None:
    """Let kernels that this thread calls run on so many threads."""
    if getattr(_pool, "size", None) != count:
        tvm_runtime.get_function("runtime.config_threadpool")(1, count)
        _pool.size = count


def _restart() -> None:
    """Start this thread's pool anew. TVM's compiler runs kernels of its own when it folds constants, so that there may
    be a pool that was never asked for here."""
    if hasattr(_pool, "size") or "tvm.runtime" in sys.modules:
        tvm_runtime.symbol("_ZN3tvm7runtime9threading15ResetThreadPoolEv")()  # tvm::runtime::threading::ResetThreadPool
        _pool.size = 0


forking.around(_restart)
