"""The bundled models, by their frontends."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import QnnModule

DATA = Path(qnn_ext.__file__).parent / "data"


def import_model(path: Path) -> qnn_ext.QnnModule:
    """The model imported by its frontend; skips the test when its framework is missing."""
    if path.suffix == ".onnx":
        pytest.importorskip("onnx")
        return qnn_ext.from_onnx(path)
    pytest.importorskip("torch")
    if path.suffix == ".pt2":
        return qnn_ext.from_pytorch(path)
    return qnn_ext.from_pytorch(path, (np.zeros((1, 1, 8, 8), np.float32),), engine="x86")  # whatever tests have set


@cache
def module_of(file: str) -> QnnModule:
    """A bundled model imported by its frontend."""
    if file.endswith(".tflite"):
        return qnn_ext.from_tflite(DATA / file)
    if file.endswith("-symbol.json"):
        parameters = DATA / file.replace("-symbol.json", "-0000.params")
        return qnn_ext.from_mxnet(DATA / file, parameters, shapes={"data": (1, 1, 8, 8)})
    return import_model(DATA / file)
