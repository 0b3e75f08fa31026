"""Fixtures of the tests of quantization."""

import numpy as np
import pytest

from qnn_ext.module import QnnModule

from .residual import residual_network


@pytest.fixture(scope="session")
def network() -> QnnModule:
    """Two convolutions with a sum between them, a mean and a dense layer."""
    return residual_network(np.random.default_rng(3))
