"""A command as a process of its own, ended at some moment, and what it leaves behind.

python -m tests.processes.ended [--rounds N] [--seed N]   # a long run: random commands at random moments
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import qnn_ext

ROOT = Path(__file__).parents[2]
DATA = Path(qnn_ext.__file__).parent / "data"
PATIENCE = 5.0  # seconds that a process may take to be gone
_MARK = "QNN_EXT_TEST"


@dataclass(frozen=True)
class Left:
    """How a command ended. seconds: from the signal to its end; -1.0 where it was done before."""

    code: int
    out: str
    err: str
    processes: list[str]
    files: list[str]
    seconds: float


def ended(arguments: list[str], after: float, number: signal.Signals, folder: Path, again: float | None = None) -> Left:
    """Run `qnn-ext` in `folder`, send it a signal so many seconds after it begins to listen, perhaps once more, and
    look for what it left."""
    temporary, place = folder / "tmp", folder / "here"
    for path in (temporary, place):
        path.mkdir(exist_ok=True)
    before = set(place.rglob("*"))
    mark = uuid.uuid4().hex
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", "qnn_ext_program", *arguments],
        cwd=place,
        env={**os.environ, _MARK: mark, "PYTHONWARNINGS": "ignore", "TMPDIR": str(temporary), "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    seconds = -1.0
    try:
        while process.poll() is None and not _listens(process.pid):  # Python's own start is not the program's
            time.sleep(0.001)
        out, err = process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        process.send_signal(number)
        sent = time.monotonic()
        if again is not None:
            time.sleep(again)
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
        seconds = time.monotonic() - sent
    unfinished = [path for path in place.rglob(".*") if path not in before]
    processes = survivors(mark, number)
    files = [str(path.relative_to(folder)) for path in (*temporary.rglob("*"), *unfinished)]
    shutil.rmtree(temporary)  # what a killed command has left is not the next one's
    return Left(process.returncode, out, err, processes, files, seconds)


def _listens(pid: int) -> bool:
    """Whether a process handles SIGHUP, as Python alone does not."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGHUP - 1) & 1)
    return False


def survivors(mark: str, number: signal.Signals) -> list[str]:
    """Processes that have the mark in their environment; those of a parent that could not end them may take a while."""
    deadline = time.monotonic() + (PATIENCE if number == signal.SIGKILL else 0.0)
    while found := _marked(mark):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return found


def _marked(mark: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has just ended, or is another user's
            continue
    return found


def prepare(folder: Path) -> dict[str, tuple[list[str], float]]:
    """Files for the commands, and by name the arguments of each and how many seconds it runs at least."""
    compiled, images = folder / "digits.qnn", folder / "images.npy"
    qnn_ext.build(qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")).save(compiled)
    with np.load(DATA / "digits_test.npz") as stored:
        np.save(images, (stored["x"][:, :, :, None] / 16).astype(np.float32))
    np.save(folder / "integers.npy", np.zeros((1, 8, 8, 1), np.int8))
    integers, floats = str(DATA / "digits_cnn_int8.tflite"), str(DATA / "digits_cnn_float32.tflite")
    data = ["--data", str(images)]
    workers = ["--set", "num_workers=2", "--set", "calibrate_chunk_by=1"]
    return {
        "compile": (["compile", integers, "-o", "out.qnn"], 2.5),
        "quantize": (["quantize", floats, *data, *workers, "-o", "out.qnn"], 8.0),
        "tune": (["tune", integers, "--threads", "1", "--trials", "8", "--json"], 12.0),
        "bench": (["bench", str(compiled), "--repeat", "100000"], 5.0),
        "run": (["run", integers, "-i", str(images)], 2.0),
        "compare": (["compare", floats, str(compiled), *data], 3.0),
        "inspect": (["inspect", integers], 0.8),
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    wrong, ends, slowest = 0, Counter[str](), 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = prepare(folder)
        for index in range(options.rounds):
            command, (arguments, seconds) = chance.choice(list(commands.items()))
            number = chance.choice([signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
            after, again = chance.uniform(0.0, seconds), chance.choice([None, 0.0, 0.01])
            left = ended(arguments, after, number, folder, again)
            ends[f"{number.name}: {left.code}" if left.seconds >= 0 else "done before"] += 1
            slowest = max(slowest, left.seconds)
            if problem := problem_of(left, number):
                wrong += 1
                print(f"{index}: {command} {number.name} after {after:.3f} s: {problem}", flush=True)
    print(f"{options.rounds} rounds, {wrong} wrong, slowest end {slowest:.2f} s, {dict(ends)}")
    return int(wrong > 0)


def problem_of(left: Left, number: signal.Signals) -> str:
    """What is not as it must be; empty where all is."""
    if left.seconds < 0:
        expected, lines = {0}, {left.err}
    elif number == signal.SIGKILL:
        expected, lines = {-9}, {left.err}
    else:
        word = {"SIGINT": "interrupted\n", "SIGTERM": "terminated\n", "SIGHUP": "hung up\n"}[number.name]
        expected, lines = {128 + number, 0}, {word}
        if left.code == 0:  # it was done
            lines = {left.err}
    problems = []
    if left.code not in expected:
        problems.append(f"exit code {left.code}")
    if left.err not in lines or "Traceback" in left.err:
        problems.append(f"stderr {left.err!r}")
    if left.processes:
        problems.append(f"processes {left.processes}")
    if left.files and number != signal.SIGKILL:
        problems.append(f"files {left.files}")
    return ", ".join(problems)


if __name__ == "__main__":
    sys.exit(main())
