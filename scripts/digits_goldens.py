"""The frameworks' own outputs on a few held-out digits, all in one archive beside the bundled models.

Keys of digits_frameworks.npz: "x" (the images as model inputs, one by one: (N, 1, 1, 8, 8) float32), and
"<model>/<kind>" (N, ...) where kind names how the outputs were computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from qnn_ext.files.storage import replacing

from .digits_data import Digits, to_real

GOLDENS = "digits_frameworks.npz"
GOLDEN_IMAGES = 16

Predict = Callable[[np.ndarray], np.ndarray]


def write_goldens(path: Path, model: str, kinds: Mapping[str, Predict], data: Digits) -> None:
    """Replace the goldens of `model` in the archive; the other models' are left alone."""
    images = to_real(data.x_test[:GOLDEN_IMAGES])[:, None, None]
    arrays: dict[str, np.ndarray] = {}
    if path.exists():
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files if not name.startswith(f"{model}/")}
    arrays["x"] = images
    for kind, predict in kinds.items():
        arrays[f"{model}/{kind}"] = np.stack([predict(image) for image in images])
    with replacing(path) as file:
        np.savez_compressed(file, **dict(sorted(arrays.items())))


def accuracy(predict: Predict, data: Digits) -> float:
    """Share of the held-out images that `predict` classifies correctly."""
    right = [
        int(predict(image).argmax()) == label
        for image, label in zip(to_real(data.x_test)[:, None, None], data.y_test, strict=True)
    ]
    return float(np.mean(right))
