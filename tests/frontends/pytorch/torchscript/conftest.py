"""The engines: PyTorch packs weights for the engine that is current when a layer gets them."""

import pytest

from .oracle import ENGINES


@pytest.fixture(params=ENGINES)
def engine(request):
    import torch

    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = request.param
    yield request.param
    torch.backends.quantized.engine = before
