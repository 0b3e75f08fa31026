"""Runtimes in processes of their own: times for those that run, one line for those that do not, nothing left behind."""

import os
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext.racing.race import Process, RaceError, difference, drawn, race
from qnn_ext.racing.runtimes import PEERS
from qnn_ext.racing.worker import OURS, Task

DATA = Path(qnn_ext.__file__).parent / "data"


@pytest.fixture(scope="module")
def engine():
    return qnn_ext.build(qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite"), num_threads=1)


def test_a_race_times_what_runs_and_says_what_does_not(engine, tmp_path):
    engine.save(tmp_path / "model.qnn")
    inputs = drawn(engine.inputs)
    broken = tmp_path / "broken.qnn"
    broken.write_bytes(b"nothing")
    stages = []
    entries = race(
        {OURS: Task(OURS, str(tmp_path / "model.qnn"), 1, inputs), "other": Task(OURS, str(broken), 1, inputs)},
        rounds=2,
        progress=lambda stage, share: stages.append((stage, share)),
    )
    ours, other = entries[OURS], entries["other"]
    assert len(ours.seconds) == 2 and 0 < ours.least <= ours.median and ours.calls > 0 and not ours.problem
    np.testing.assert_array_equal(ours.ready.outputs[0], next(iter(engine.run(inputs).values())))
    assert "ArtifactError" in other.problem and not other.seconds
    assert stages[0] == (f"opening {OURS}", 0.0) and all(0 <= share <= 1 for _, share in stages)


def test_peers_give_their_own_results(engine):
    peer = PEERS[0]
    if peer.missing:
        pytest.skip(f"{peer.title} is not installed")
    process = Process(Task(peer.key, str(DATA / "digits_cnn_int8.tflite"), 1, drawn(engine.inputs)))
    try:
        ready = process.open()
        assert ready.version and min(process.turn(10)) > 0
    finally:
        process.end()
    assert difference(list(engine.run(drawn(engine.inputs)).values()), ready.outputs) == (1.0, 0.0)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="processes are stopped by signals")
def test_a_runtime_that_dies_is_a_line(engine, tmp_path):
    engine.save(tmp_path / "model.qnn")
    process = Process(Task(OURS, str(tmp_path / "model.qnn"), 1, drawn(engine.inputs)))
    try:
        process.open()
        os.kill(process._child.pid, 9)
        with pytest.raises(RaceError, match="SIGKILL"):
            process.turn(1)
    finally:
        process.end()


def test_difference():
    a = [np.array([1, 2, 3, 250], np.uint8), np.array([np.nan, 1.0], np.float32)]
    assert difference(a, a)[0] == 1.0
    assert difference(a[:1], [np.array([1, 2, 3, 3], np.uint8)]) == (0.75, 247.0)
    assert difference(a[:1], [np.array([1, 2, 3, 250], np.int16)]) is None
    assert difference(a[:1], [np.array([[1, 2, 3, 250]], np.uint8)]) is None
