"""The benchmark of activation functions: its networks are quantized by both tools, and a function costs no accuracy."""

import pytest

pytest.importorskip("onnxruntime")

import qnn_ext
from benchmarks import activations


def test_row(monkeypatch):
    monkeypatch.setattr(activations, "CHANNELS", (8,))
    monkeypatch.setattr(activations, "_built", lambda module, threads: qnn_ext.Interpreter(module))
    (row,) = activations.measure("silu", [1], size=16, rounds=1)
    assert row.our_sqnr > row.their_sqnr > 20
    assert min(row.ours, row.theirs, row.peer) > 0
    lines = activations.markdown([row]).splitlines()
    assert len(lines) == 3 and lines[2].startswith("| silu | 1 |")
