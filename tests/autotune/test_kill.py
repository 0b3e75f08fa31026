"""A process that tunes is killed: its workers end by themselves, its records stay, and tuning goes on from there."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from qnn_ext.autotune import log_to_file, measure_option, read_log
from qnn_ext.autotune.tuners import make_tuner

from .conftest import NoBuilder, Pretend

SCRIPT = """
import sys
from qnn_ext.autotune import GridSearchTuner, LocalBuilder, LocalRunner, log_to_file, measure_option
from qnn_ext.processes.children import _started
from tests.autotune.conftest import small_task

option = measure_option(LocalBuilder(n_parallel=1), LocalRunner(repeat=2))
def tell(tuner, results):
    print(*(process.pid for process in _started if process.returncode is None), flush=True)
GridSearchTuner(small_task()).tune(1000, option, callbacks=[log_to_file(sys.argv[1]), tell])
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.exhaustive("tests/processes/test_ends.py, which ends tuning by a signal")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
def test_killed(task, tmp_path, environment):
    log = tmp_path / "log.jsonl"
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, log], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(4)]  # the first comes before anything is measured
    process.kill()
    process.wait()
    workers = [int(pid) for pid in lines[-1].split()]
    known = len(read_log(log).records)
    assert len(workers) == 2 and known >= 3
    deadline = time.monotonic() + 30
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, workers))
    tuner = make_tuner("gridsearch", task)
    decision = tuner.tune(known + 2, measure_option(NoBuilder(), Pretend(lambda index: 1.0)), None, [log_to_file(log)])
    assert tuner.new == 2 and decision is not None and decision.measured == known + 3
