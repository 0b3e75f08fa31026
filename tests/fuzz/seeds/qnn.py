"""Conformance models of a few operators and the bundled networks, built for the oldest CPUs and saved."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import qnn_ext
from tests.conformance.cases import load_cases

from . import bundled

_OPERATORS = (
    "CONV_2D",
    "FULLY_CONNECTED",
    "SOFTMAX",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    "SVDF",
    "TOPK_V2",
    "WHILE",
    "ADD",
)


def seeds() -> Iterator[tuple[str, bytes]]:
    """File names and contents."""
    cases = [next(iter(load_cases(operator)), None) for operator in _OPERATORS]
    models = [(f"{case.operator}.qnn", case.model) for case in cases if case]
    models += [(f"{name}.qnn", content) for name, content in bundled("digits_*_int8.tflite")]
    for name, content in models:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            qnn_ext.build(qnn_ext.from_tflite(content), target="x86-64", num_threads=1).save(path)
            yield name, path.read_bytes()
