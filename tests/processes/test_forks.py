"""A forked process runs what its parent had loaded, on threads of its own, and ends like any other."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import qnn_ext
from benchmarks.soak import machine_model, program_model
from qnn_ext.targets import gpus as gpu

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


_ENDS = """
import os, sys, threading, time, numpy
import qnn_ext
engine = qnn_ext.load(sys.argv[1], num_threads=2)
values = [numpy.ones(spec.shape, spec.dtype) for spec in engine.inputs]
engine(*values)
time.sleep(0.3)  # the threads of the pool fall asleep
if os.fork() == 0:
    for step in sys.argv[2]:
        if step == "r":
            engine(*values)
        else:
            thread = threading.Thread(target=engine, args=values)
            thread.start()
            thread.join()
    sys.exit(3)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("steps", ["", "r", "t", "rtr"])
def test_a_forked_process_ends_by_itself(steps, tmp_path, everything_shared):
    """In C, which joins threads and destroys what they wait for; `os._exit` does not."""
    qnn_ext.build(program_model(), num_threads=2).save(tmp_path / "model.qnn")
    command = [sys.executable, "-c", _ENDS, str(tmp_path / "model.qnn"), steps]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, start_new_session=True)
    assert (done.returncode, done.stderr) == (3, "")


def test_cuda_does_not_go_along(monkeypatch):
    monkeypatch.setattr(gpu, "_forked", True)
    with pytest.raises(qnn_ext.TargetError, match="forked from one that used the GPU"):
        gpu.check_not_forked()
    assert not gpu.can_run({"kind": "cuda", "arch": "sm_80"})
