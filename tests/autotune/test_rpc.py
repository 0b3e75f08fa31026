"""Measuring over TVM's RPC: a tracker and two servers on the loopback, one of them killed while tuning goes on."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from qnn_ext import TuningError
from qnn_ext.autotune import LocalBuilder, RPCRunner, log_to_file, measure_option, read_log
from qnn_ext.autotune.tuners import make_tuner

pytest.importorskip("tornado", reason="TVM's RPC tracker needs tornado")

KEY = "board"


class Board:
    """A server in its own process group."""

    def __init__(self, port: int, cwd) -> None:
        tracker = ["--tracker", f"127.0.0.1:{port}", "--key", KEY, "--host", "127.0.0.1"]
        command = [sys.executable, "-m", "tvm.exec.rpc_server", *tracker]
        self.process = subprocess.Popen(
            command, cwd=cwd, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def runner_of(port: int, boards: int) -> RPCRunner:
    """A runner as soon as all boards report."""
    deadline = time.monotonic() + 120
    while True:
        try:
            runner = RPCRunner(KEY, "127.0.0.1", port, timeout=15, repeat=2, patience=5)
            if runner.servers() == boards:
                return runner
            runner.close()
        except TuningError:
            pass
        assert time.monotonic() < deadline, "the servers do not report"
        time.sleep(0.3)


@pytest.fixture
def rpc(tmp_path):
    """Port of a tracker with two boards, and the boards."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "tvm.exec.rpc_tracker",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--port-end",
        str(port + 1),
    ]
    tracker = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    boards = [Board(port, tmp_path) for _ in range(2)]
    yield port, boards
    for board in boards:
        board.kill()
    os.killpg(tracker.pid, signal.SIGKILL)
    tracker.wait()


def test_a_killed_board_loses_no_record(rpc, task, tmp_path):
    port, boards = rpc
    log, trials = tmp_path / "log.jsonl", 12
    option = measure_option(LocalBuilder(n_parallel=1), runner_of(port, 2))
    with pytest.raises(TuningError, match=r"no server with key 'other' .*rpc_server"):
        RPCRunner("other", "127.0.0.1", port)
    before = []

    def kill_one(tuner, results):
        if tuner.new == 2 and not before:
            before.extend(log.read_text().splitlines())
            boards[0].kill()

    tuner = make_tuner("gridsearch", task)
    try:
        decision = tuner.tune(trials, option, callbacks=[log_to_file(log), kill_one])
        assert option.runner.servers() == 1
    finally:
        option.close()
    lines = log.read_text().splitlines()
    assert lines[: len(before)] == before and len(lines) == trials + 1
    records = read_log(log).records
    assert len({tuple(record.fields.items()) for record in records if not record.decided}) == trials
    assert not [record.error for record in records if record.error]
    assert decision is not None and decision.measured == trials + 1


def test_no_tracker():
    with pytest.raises(TuningError, match=r"no tracker at 127.0.0.1:1 .*rpc_tracker"):
        RPCRunner(KEY, port=1)
