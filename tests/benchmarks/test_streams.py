"""Engines side by side: every arrangement has a line, and computes what one engine does."""

import numpy as np
import pytest

import qnn_ext
from benchmarks import streams
from benchmarks.models import BUNDLED
from benchmarks.runners import PEERS

MODEL = BUNDLED / "digits_cnn_uint8.tflite"


@pytest.mark.exhaustive("the test of an arrangement below")
def test_every_arrangement_has_a_line(capsys):
    streams.main([str(MODEL), "--streams", "2", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()[2:]
    names = [line.split(" | ")[1] for line in lines]
    peers = [f"{peer.title}, 2 of 1" for peer in PEERS if "tflite" in peer.formats and not peer.missing]
    assert names == ["qnn_ext, 2 of 1", "qnn_ext, 2 of 2", "qnn_ext, 1 of 2", *peers]
    assert all(float(line.split(" | ")[2]) > 0 for line in lines)


def test_an_arrangement(tmp_path):
    path = tmp_path / "digits.qnn"
    engine = qnn_ext.build(qnn_ext.from_tflite(MODEL), num_threads=1)
    engine.save(path)
    runner = streams.open_streams("qnn_ext:1", str(path), 3)
    image = np.random.default_rng(0).integers(0, 256, engine.inputs[0].shape).astype(np.uint8)
    (expected,), (found,) = engine.run([image]).values(), runner.outputs([image])
    np.testing.assert_array_equal(found, expected)
    assert runner.seconds(6) > 0
