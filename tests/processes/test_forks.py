"""A forked process runs what its parent had loaded: on one thread where the pool stayed behind, without a wait."""

import os
import signal
import threading
import time

import numpy as np
import pytest

import qnn_ext
from benchmarks.soak import machine_model, program_model
from qnn_ext import gpu

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
SECONDS = 60  # after which a child that waits is ended


def in_child(check) -> int:
    """The wait status of a forked process that calls `check`: 0 when it returned True."""
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("model", [program_model, machine_model])
@pytest.mark.parametrize("threads", [1, 2])
def test_engines_run_in_a_forked_process(model, threads, everything_shared):
    engines = [qnn_ext.build(model(), num_threads=threads) for _ in range(2)]
    values = [np.ones(spec.shape, spec.dtype) for spec in engines[0].inputs]
    expected = engines[0](*values)

    def check() -> bool:
        found = []
        thread = threading.Thread(target=lambda: found.append(engines[0](*values)))
        thread.start()
        thread.join()
        found += [engine(*values) for engine in engines]
        engines[0].time(number=1, repeat=1)
        engines[0].profile(repeat=1)
        return all(np.array_equal(one, expected) for one in found)

    assert in_child(check) == 0
    np.testing.assert_array_equal(engines[0](*values), expected)


def test_a_fork_waits_for_the_call_of_another_thread():
    engine = qnn_ext.build(program_model(), num_threads=1)
    values = [np.ones(spec.shape, spec.dtype) for spec in engine.inputs]
    expected, over = engine(*values), []

    def work() -> None:
        engine.time(number=100_000, repeat=1)
        over.append(time.monotonic())

    thread = threading.Thread(target=work)
    thread.start()
    while not engine._lock.locked():
        time.sleep(0.001)
    assert in_child(lambda: np.array_equal(engine(*values), expected)) == 0
    thread.join()
    assert over


def test_cuda_does_not_go_along(monkeypatch):
    monkeypatch.setattr(gpu, "_forked", True)
    with pytest.raises(qnn_ext.TargetError, match="forked from one that used the GPU"):
        gpu.check_not_forked()
    assert not gpu.can_run({"kind": "cuda", "arch": "sm_80"})
