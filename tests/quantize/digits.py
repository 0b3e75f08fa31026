"""The bundled float networks, their calibration images and the held-out digits, for the tests of quantization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext.module import QnnModule

DATA = Path(qnn_ext.__file__).parent / "data"
NETWORKS = ("cnn", "transformer")
FLOAT_ACCURACY = {"cnn": 446 / 450, "transformer": 445 / 450}  # on the held-out digits


def network(name: str) -> QnnModule:
    """The float network "cnn" or "transformer"; skips the test where the onnx package is not installed."""
    pytest.importorskip("onnx", reason="reading ONNX models needs the extra 'onnx'")
    return qnn_ext.from_onnx(DATA / f"digits_{name}_float32.onnx")


def calibration_images(count: int = 100) -> np.ndarray:
    """(count, 1, 8, 8)"""
    with np.load(DATA / "digits_calibration.npz") as stored:
        return stored["image"][:count]


def held_out() -> tuple[np.ndarray, np.ndarray]:
    """Images (450, 1, 8, 8) and labels (450,)."""
    with np.load(DATA / "digits_test.npz") as stored:
        return stored["x"][:, None].astype(np.float32) / 16, stored["y"]


def accuracy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Share of the rows whose largest value is at the label."""
    return float(np.mean(logits.argmax(1) == labels))
