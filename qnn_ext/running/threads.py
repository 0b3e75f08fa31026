"""The threads that kernels run on: one of TVM's pools for each Python thread that runs a model.

A fork does not copy a pool's threads, and TVM does not notice: a parallel kernel would wait for them for ever. So a
forked process restarts its thread's pool. That destroys the condition variables that the threads waited on, and in C
destroying one never returns if a thread slept on it at the fork. So the pool is also restarted right before the fork:
new threads stay awake for a while.
"""

from __future__ import annotations

import sys
import threading

from .. import tvm_runtime
from ..processes import forking

_pool = threading.local()  # size: threads that this thread's pool uses; 0 if it is new, absent if there is none


def use_threads(count: int) -> None:
    """Let kernels that this thread calls run on `count` threads."""
    if getattr(_pool, "size", None) != count:
        tvm_runtime.get_function("runtime.config_threadpool")(1, count)
        _pool.size = count


def _restart() -> None:
    """Restart this thread's pool. TVM's compiler runs kernels itself when it folds constants, so a build may leave a
    pool that nothing here asked for."""
    if hasattr(_pool, "size") or (tvm_runtime.is_set_up() and "tvm.runtime" in sys.modules):
        tvm_runtime.symbol("_ZN3tvm7runtime9threading15ResetThreadPoolEv")()  # tvm::runtime::threading::ResetThreadPool
        _pool.size = 0


forking.around(_restart)
