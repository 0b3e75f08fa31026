"""Shared fixtures."""

import os
import sys
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


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """Environment variables with this interpreter's programs first on PATH, as in an activated virtual environment."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
