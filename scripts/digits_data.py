"""The data every bundled digit classifier is trained, calibrated and judged on, whatever its framework."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SEED = 2


@dataclass(frozen=True)
class Digits:
    """Raw images (N, 8, 8) uint8 in 0..16 and labels (N,) uint8, in a fixed split."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load_split() -> Digits:
    """scikit-learn's digits with a stratified quarter held out."""
    digits = load_digits()
    x_train, x_test, y_train, y_test = train_test_split(
        digits.images.astype(np.uint8),
        digits.target.astype(np.uint8),
        test_size=0.25,
        stratify=digits.target,
        random_state=SEED,
    )
    return Digits(x_train, y_train, x_test, y_test)


def to_real(images: np.ndarray) -> np.ndarray:
    """Raw pixels 0..16 to float32 in [0, 1]."""
    return images.astype(np.float32) / 16


def shifted(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Every image shifted by up to one pixel along each axis, filled with background."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    offsets = rng.integers(0, 3, size=(len(images), 2))
    return np.stack([image[r : r + 8, c : c + 8] for image, (r, c) in zip(padded, offsets, strict=True)])
