"""Workers: threads of our own under compiled code. Whoever calls, forks, is interrupted or ends, results are right and
nothing waits for ever."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from benchmarks.soak import machine_model, program_model
from qnn_ext.running import executors
from qnn_ext.running.threads import ThreadCount, on_threads
from qnn_ext.running.workers import Workers, workers

from ..processes.test_forks import in_child

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere code runs on TVM's threads")
MODELS = pytest.mark.parametrize("model", [program_model, machine_model])
SECONDS = 60


@pytest.fixture(autouse=True)
def shared(everything_shared, monkeypatch):
    """Every kernel that can runs on several threads, whatever the machine has."""
    for module in ("threads", "engine"):
        monkeypatch.setattr(f"qnn_ext.running.{module}.default_threads", lambda: 8)
    monkeypatch.setattr(workers(), "_most", 7)


def inputs_of(engine: qnn_ext.Engine) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, 100, spec.shape).astype(spec.dtype) for spec in engine.inputs]


def names_of_threads() -> list[str]:
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            names.append((task / "comm").read_text().strip())
    return names


def test_memory_is_laid_out_as_compiled_code_expects():
    own = workers()
    assert own._address % 128 == 0
    assert own._started.value <= 1024


@MODELS
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_results_on_any_number_of_workers(model, threads):
    engine = qnn_ext.build(model(), num_threads=threads)
    values = inputs_of(engine)
    expected = qnn_ext.build(model(), num_threads=1)(*values)
    for _ in range(50):
        np.testing.assert_array_equal(engine(*values), expected)
    assert isinstance(engine._executor._threads, Workers)
    assert names_of_threads().count("qnn_ext worker") >= threads - 1
    assert not any(workers()._owners)


def test_fewer_workers_than_tasks(monkeypatch):
    """The system may allow no more threads; whoever needs them runs on those there are."""
    engine = qnn_ext.build(program_model(), num_threads=4)
    values = inputs_of(engine)
    expected = engine(*values)
    for most in (0, 1, 2):
        monkeypatch.setattr(workers(), "_most", most)
        np.testing.assert_array_equal(engine(*values), expected)
        assert engine.time(number=1, repeat=1).best > 0
        assert len(engine.profile(repeat=1)) == len(engine.kernels)


def test_a_thread_that_cannot_be_started(monkeypatch):
    own = workers()
    monkeypatch.setattr(own, "_free", {})
    monkeypatch.setattr(own, "_here", threading.local())
    started = own._started.value

    class C:
        def __getattr__(self, name):
            return (lambda *_: 11) if name == "pthread_create" else getattr(original, name)  # EAGAIN

    original = own._c
    monkeypatch.setattr(own, "_c", C())
    assert own.take(2) == []
    assert own._started.value == started + 1  # that number is not used again


@MODELS
def test_many_python_threads_and_engines(model):
    engines = [qnn_ext.build(model(), num_threads=threads) for threads in (2, 3)]
    values = inputs_of(engines[0])
    expected = engines[0](*values)
    wrong: list = []

    def work(engine: qnn_ext.Engine) -> None:
        for _ in range(200):
            if not np.array_equal(engine(*values), expected):
                wrong.append(engine)

    threads = [threading.Thread(target=work, args=(engine,)) for engine in [*engines, engines[0].clone()] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not any(workers()._owners)


def test_each_call_has_workers_of_its_own():
    own = workers()
    engine = qnn_ext.build(program_model(), num_threads=2)
    engine(*inputs_of(engine))
    with on_threads(own, 3):
        mine = [index for index, owner in enumerate(own._owners) if owner == threading.get_ident()]
        other: list = []

        def take() -> None:
            with on_threads(own, 4):
                other.extend(index for index, owner in enumerate(own._owners) if owner == threading.get_ident())

        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    assert len(mine) == 2 and len(other) == 3 and not set(mine) & set(other)
    assert not any(own._owners)


def test_threads_pinned_elsewhere_get_workers_there():
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("one core only")
    own, found = workers(), []
    with on_threads(own, 2):
        everywhere = [index for index, owner in enumerate(own._owners) if owner]

    def pinned() -> None:
        os.sched_setaffinity(0, {min(cores)})  # of this thread
        with on_threads(own, 2):
            found.extend(index for index, owner in enumerate(own._owners) if owner)

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()
    assert len(everywhere) == len(found) == 1 and found != everywhere
    assert os.sched_getaffinity(0) == cores


def test_workers_get_no_signals():
    engine = qnn_ext.build(program_model(), num_threads=2)
    engine(*inputs_of(engine))
    for task in Path("/proc/self/task").iterdir():
        status = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        if status["Name"] == "qnn_ext worker":
            blocked = int(status["SigBlk"], 16)
            assert all(blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM))
            assert not blocked >> (signal.SIGSEGV - 1) & 1
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_workers_outlive_the_library_that_started_them(tmp_path):
    """In a process whose first engine is gone."""
    engine = qnn_ext.build(program_model(), num_threads=2)
    values = inputs_of(engine)
    expected = engine(*values)
    engine.save(tmp_path / "model.qnn")
    np.save(tmp_path / "value.npy", values[0])
    script = """
import gc, sys, numpy
import qnn_ext
value = numpy.load(sys.argv[2], allow_pickle=False)
for _ in range(3):
    engine = qnn_ext.load(sys.argv[1], num_threads=2)
    result = engine(value)
    engine.time(number=3, repeat=3)
    del engine
    gc.collect()
    print(sum(".so" in line and "deleted" in line and "r-x" in line for line in open("/proc/self/maps")))
numpy.save(sys.argv[2], result)
"""
    found = run(script, tmp_path / "model.qnn", tmp_path / "value.npy")
    assert found == ["1", "1", "1"]
    np.testing.assert_array_equal(np.load(tmp_path / "value.npy", allow_pickle=False), expected)


def run(script: str, *args: object) -> list[str]:
    """The words that a script prints, in a process of its own that ends by itself."""
    environment = {**os.environ, "TVM_NUM_THREADS": "4"}
    command = [sys.executable, "-c", script, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


_BUSY = """
import sys, threading, time, numpy
import qnn_ext
engines = [qnn_ext.load(sys.argv[1], num_threads=2) for _ in range(2)]
values = [numpy.ones(spec.shape, spec.dtype) for spec in engines[0].inputs]

def work(engine):
    while True:
        engine(*values)

for engine in engines:
    threading.Thread(target=work, args=(engine,), daemon=True).start()
time.sleep(0.2)
"""


@pytest.fixture
def saved(tmp_path) -> Path:
    qnn_ext.build(program_model(), num_threads=2).save(tmp_path / "model.qnn")
    return tmp_path / "model.qnn"


def test_python_ends_while_calls_run(saved):
    for _ in range(3):
        assert run(_BUSY, saved) == []


def test_the_idle_use_no_time(saved):
    script = (
        _BUSY.replace("while True", "for _ in range(50)")
        + """
while threading.active_count() > 1:
    time.sleep(0.01)
time.sleep(0.05)
before = time.process_time()
time.sleep(0.3)
print(time.process_time() - before < 0.05)
"""
    )
    assert run(script, saved) == ["True"]


def test_interrupted_calls_leave_nothing_behind(saved):
    script = (
        _BUSY
        + """
import os, signal
calling = threading.Event()
def interrupt():
    for _ in range(20):
        calling.wait()
        calling.clear()
        time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
interrupting = threading.Thread(target=interrupt)
interrupting.start()
mine = engines[0].clone()
expected = engines[0](*values)
for _ in range(20):
    try:
        calling.set()
        while True:
            assert numpy.array_equal(mine(*values), expected)
    except KeyboardInterrupt:
        pass
interrupting.join()
assert numpy.array_equal(mine(*values), expected)
print("done")
"""
    )
    assert run(script, saved) == ["done"]


@MODELS
def test_forks_while_other_engines_run(model, monkeypatch):
    monkeypatch.setattr(ThreadCount, "_learn", lambda *_: None)  # a busy machine takes no threads away
    engines = [qnn_ext.build(model(), num_threads=3) for _ in range(3)]
    values = inputs_of(engines[0])
    expected = [engine(*values) for engine in engines]
    stop = threading.Event()

    def work(engine: qnn_ext.Engine) -> None:
        while not stop.is_set():
            engine(*values)

    busy = [threading.Thread(target=work, args=(engine,)) for engine in engines[:2]]
    for thread in busy:
        thread.start()

    def check() -> bool:
        started = workers()._started.value
        same = [np.array_equal(engine(*values), one) for engine, one in zip(engines, expected, strict=True)]
        thread = threading.Thread(target=engines[2], args=values)
        thread.start()
        thread.join()
        return all(same) and started == 0 and names_of_threads().count("qnn_ext worker") >= 2

    try:
        for turn in range(12):
            if turn == 6:
                time.sleep(0.2)
            assert in_child(check) == 0
    finally:
        stop.set()
        for thread in busy:
            thread.join()
    np.testing.assert_array_equal(engines[2](*values), expected[2])


@MODELS
def test_no_thread_of_tvm_is_started(model):
    """Not by a build either: a fork could not get rid of it."""
    script = f"""
import os, sys
import numpy
from benchmarks.soak import {model.__name__} as model
from qnn_ext.targets.backend import Backend, Sharing
import qnn_ext
Backend.sharing = property(lambda _: Sharing(*[1] * 9, meeting=-1.0, part=1e-9, launch=-1e9, unasked=-1e9))
from qnn_ext.running import threads
threads.use_tvm_threads = None
before = len(os.listdir("/proc/self/task"))
engine = qnn_ext.build(model(), num_threads=2, cache=False)
values = [numpy.ones(spec.shape, spec.dtype) for spec in engine.inputs]
built = len(os.listdir("/proc/self/task"))
engine(*values)
engine.time(number=2, repeat=2)
engine.profile(repeat=2)
print(built - before, len(os.listdir("/proc/self/task")) - before)
"""
    assert run(script) == ["0", "1"]


@pytest.mark.parametrize("measured", ["engine(*values)", "measure(2, 1 << 20, 2)"])
def test_no_pool_of_tvm_is_left(measured):
    """Neither by code for one thread in the virtual machine nor by measuring the machine: a fork would have to restart
    it, which takes minutes on a busy machine."""
    script = f"""
import numpy
from benchmarks.soak import machine_model
from qnn_ext.report.machine import measure
from qnn_ext.running import threads
import qnn_ext
engine = qnn_ext.build(machine_model(), num_threads=1, cache=False)
values = [numpy.ones(spec.shape, spec.dtype) for spec in engine.inputs]
{measured}
print(hasattr(threads._pool, "size"))
"""
    assert run(script) == ["False"]


def test_a_program_on_one_thread_starts_no_other():
    """Not to be timed either: threads of TVM, which stay awake for a while, took the cores from other engines."""
    engine = qnn_ext.build(program_model(), num_threads=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qnn_ext.running.threads.use_tvm_threads", None)
        engine(*inputs_of(engine))
        engine.time(number=2, repeat=2)
        engine.profile(repeat=2)


@MODELS
def test_code_without_the_function_runs_on_threads_of_tvm(model, monkeypatch, tmp_path):
    """As libraries from before do, and those for other systems."""
    for module in ("qnn_ext.compiling.codegen", "qnn_ext.compiling.program.emit"):
        monkeypatch.setattr(sys.modules[module], "use_workers", lambda target: {})
    qnn_ext.build(model(), num_threads=2).save(tmp_path / "old.qnn")
    engine = qnn_ext.load(tmp_path / "old.qnn", num_threads=2)
    values = inputs_of(engine)
    expected = qnn_ext.build(model(), num_threads=1)(*values)
    for _ in range(20):
        np.testing.assert_array_equal(engine(*values), expected)
    assert not isinstance(engine._executor._threads, Workers)
    assert isinstance(engine._executor, (executors.ProgramExecutor, executors.MachineExecutor))


def test_an_engine_is_freed(saved):
    gc.collect()
    held = len(names_of_threads())
    for _ in range(5):
        engine = qnn_ext.load(saved, num_threads=2)
        engine(*inputs_of(engine))
        del engine
    gc.collect()
    assert len(names_of_threads()) <= held + 1
