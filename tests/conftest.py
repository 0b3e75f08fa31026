"""Shared fixtures."""

from pathlib import Path

import numpy as np
import pytest

MODELS = Path(__file__).parents[2] / "shared" / "models"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(1234)


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of real models beside the repository; tests that want it skip when it is not there."""
    if not MODELS.is_dir():
        pytest.skip("the folder of real models (../shared/models) is not here")
    return MODELS
