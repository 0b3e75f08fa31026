"""A signal ends a command with one line, its exit code, and nothing left behind; a broken pipe ends it silently."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext.autotune.pool import Pool, WorkerError
from qnn_ext.processes import children as processes

from .ended import DATA, ROOT, ended, prepare, problem_of, survivors

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ends")


@pytest.fixture(scope="module")
def commands(folder):
    return prepare(folder)


@pytest.mark.one_in(4)
@linux_only
@pytest.mark.parametrize(
    ("command", "number", "again"),
    [
        ("compile", signal.SIGINT, None),
        ("compile", signal.SIGTERM, 0.0),
        ("quantize", signal.SIGINT, 0.01),
        ("quantize", signal.SIGKILL, None),
        ("tune", signal.SIGINT, None),
        ("tune", signal.SIGHUP, None),
        ("bench", signal.SIGINT, 0.0),
        ("compare", signal.SIGINT, None),
    ],
)
def test_signals_at_any_moment(command, number, again, commands, folder):
    arguments, seconds = commands[command]
    after = random.uniform(0.0, seconds)
    left = ended(arguments, after, number, folder, again)
    assert not problem_of(left, number), f"after {after:.3f} s"


@linux_only
def test_signal_while_modules_are_imported(commands, folder):
    left = ended(commands["inspect"][0], 0.03, signal.SIGINT, folder)
    assert not problem_of(left, signal.SIGINT)


def test_what_was_to_be_ignored_is_ignored(commands, folder):
    """`nohup qnn-ext …` and `qnn-ext … &` in a script."""
    program = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    bench = [*commands["bench"][0][:2], "--repeat", "10", "--number", "500000"]  # 3 s and more
    command = [sys.executable, "-m", "qnn_ext_program", *bench]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", program, *command], env=environment, stdout=subprocess.PIPE)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and b"median" in out


# ---- outputs that nobody reads ------------------------------------------------------------------------------------

SHORT = {  # commands that print, and are done soon
    "bench": ["bench", "digits.qnn", "--repeat", "2", "--number", "1"],
    "compare": ["compare", str(DATA / "digits_cnn_float32.tflite"), "digits.qnn", "--data", "images.npy"],
    "compile": ["compile", str(DATA / "digits_cnn_uint8.tflite"), "-o", "piped.qnn"],
    "help": ["--help"],
    "inspect": ["inspect", str(DATA / "digits_cnn_int8.tflite")],
    "json": ["inspect", "digits.qnn", "--json"],
    "quantize": ["quantize", str(DATA / "digits_cnn_float32.tflite"), "--data", "images.npy", "-o", "piped.qnn"],
    "run": ["run", "digits.qnn", "-i", "integers.npy"],
    "tune": ["tune", str(DATA / "digits_lstm_int8.tflite"), "--trials", "1", "--threads", "1", "--json"],
}


def redirected(name: str, redirection: str, folder) -> subprocess.CompletedProcess:
    """A command in bash; the exit code is its own, stdout and stderr of what the redirection leaves."""
    command = [sys.executable, "-m", "qnn_ext_program", *SHORT[name]]
    script = f'"$@" {redirection}; exit ${{PIPESTATUS[0]}}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}  # where tuning brings nothing
    return subprocess.run(
        ["bash", "-c", script, "bash", *command], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", SHORT)
def test_a_broken_pipe_is_silent(name, commands, folder):
    done = redirected(name, "| true", folder)
    assert (done.returncode, done.stdout, done.stderr) == (141, "", "")


def test_the_first_lines_are_read(commands, folder):
    done = redirected("json", "| head -1", folder)
    assert (done.stdout, done.stderr) == ("{\n", "") and done.returncode in (0, 141)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["inspect", "json"])
@pytest.mark.parametrize(
    ("redirection", "code", "lines"), [(">&-", 0, 0), ("> /dev/full", 1, 1), (">&- 2>&-", 0, 0)], ids=str
)
def test_an_output_that_takes_nothing(name, redirection, code, lines, commands, folder):
    done = redirected(name, redirection, folder)
    assert (done.returncode, done.stderr.count("\n")) == (code, lines)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_an_error_that_nobody_reads(commands, folder):
    command = [sys.executable, "-m", "qnn_ext_program", "inspect", "nothing.tflite"]
    script = '"$@" 2>&1 | true; exit ${PIPESTATUS[0]}'
    done = subprocess.run(["bash", "-c", script, "bash", *command], env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 141


# ---- the Python interface -----------------------------------------------------------------------------------------


def test_an_interrupt_inside_of_tvm_stays_one(monkeypatch):
    """TVM calls our functions, and turns exceptions it does not know into RuntimeError."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    module = qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")
    with monkeypatch.context() as patched:
        patched.setattr("qnn_ext.topi_int8.cpu.lowering.weave", interrupted)
        with pytest.raises(KeyboardInterrupt):
            qnn_ext.build(module)
    qnn_ext.build(module)(np.zeros((1, 8, 8, 1), np.int8))


@linux_only
def test_interrupted_compilers_are_ended(tmp_path, monkeypatch):
    """Together with the processes they started: a compiler starts its linker."""
    mark = "qnn-ext-test-compiler"
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        processes.run(["sh", "-c", "sleep 60 & sleep 60"], env={**os.environ, "QNN_EXT_TEST": mark})
    timer.join()
    assert not survivors(mark, signal.SIGKILL)


@linux_only
def test_what_interrupted_compilers_had_written_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    timer = threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        processes.run(["sh", "-c", f"mktemp > {tmp_path / 'written'}; sleep 60"])
    timer.join()
    written = (tmp_path / "written").read_text().strip()
    assert Path(written).is_relative_to(tmp_path) and not Path(written).exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "written"]


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_a_pool_that_is_closed_while_it_starts():
    pool = Pool(2)
    found = pool.map(_sleep, [(60.0,)] * 2, timeout=60.0)
    closer = threading.Timer(0.05, pool.close)
    closer.start()
    answers = dict(found)
    closer.join()
    assert all(isinstance(answer, WorkerError) for answer in answers.values())
    pool.close()
