"""Fixtures of the tests of quantization."""

import numpy as np
import pytest

from qnn_ext.module import QnnModule
from qnn_ext.quantize.judge import Judge

from . import networks
from .residual import residual_network


@pytest.fixture(autouse=True)
def numbers_of_its_own(request):
    """Each test draws the same numbers, alone or behind others: the generators that modules share start anew."""
    for module in (networks, request.module):
        if hasattr(module, "START"):
            module.RNG.bit_generator.state = module.START


@pytest.fixture(scope="session")
def network() -> QnnModule:
    """Two convolutions with a sum between them, a mean and a dense layer."""
    return residual_network(np.random.default_rng(3))


@pytest.fixture
def counted(monkeypatch):
    """Counts measurements; `after`: how many until one is interrupted."""
    state = {"count": 0, "after": None}

    def counting(name):
        measure = getattr(Judge, name)

        def wrapped(self, *args):
            if state["count"] == state["after"]:
                raise KeyboardInterrupt
            state["count"] += 1
            return measure(self, *args)

        monkeypatch.setattr(Judge, name, wrapped)

    counting("figures")
    counting("noise")
    return state
