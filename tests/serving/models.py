"""A repository of models, and images for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from qnn_ext import Engine
from tests.cases.bundled import DATA

with np.load(DATA / "digits_test.npz") as stored:
    _PIXELS = stored["x"][:20].astype(np.float32) / 16

IMAGES = {
    "digits": [np.rint(image[None, :, :, None] * 255 - 128).astype(np.int8) for image in _PIXELS],
    "float": [image[None, None] for image in _PIXELS],
}


def repository_with(folder: Path, engines: Mapping[str, Engine]) -> Path:
    """The folder, with version 1 of each of these models."""
    for name, engine in engines.items():
        (folder / name / "1").mkdir(parents=True)
        engine.save(folder / name / "1" / "model.qnn")
    return folder
