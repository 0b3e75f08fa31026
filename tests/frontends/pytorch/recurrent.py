"""Modules with PyTorch's recurrent layers, for the tests of both frontends, and PyTorch's answers in float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn


class Layers(nn.Module):
    """A layer as a module that returns its sequence and states in one flat tuple."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, *given: torch.Tensor) -> Any:
        states: Any = given if len(given) > 1 else given[0] if given else None
        y, last = self.layer(x, states)
        return (y, *last) if isinstance(last, tuple) else (y, last)


LAYERS = {
    "lstm": lambda: nn.LSTM(5, 4),
    "lstm of two layers": lambda: nn.LSTM(5, 4, 2, bidirectional=True, batch_first=True),
    "lstm without biases": lambda: nn.LSTM(5, 4, bias=False),
    "lstm with projections": lambda: nn.LSTM(5, 6, 2, proj_size=3, bidirectional=True),
    "lstm with dropout in eval mode": lambda: nn.LSTM(5, 4, 2, dropout=0.5),
    "gru": lambda: nn.GRU(5, 4),
    "gru of two layers": lambda: nn.GRU(5, 4, 2, bidirectional=True, batch_first=True, bias=False),
    "rnn": lambda: nn.RNN(5, 4, 2, bidirectional=True),
    "rnn with relu": lambda: nn.RNN(5, 4, nonlinearity="relu", batch_first=True),
}


def network(name: str, with_states: bool) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A module in eval mode, and inputs: a batch of three sequences of six steps, and states if they are given."""
    torch.manual_seed(sum(name.encode()))
    layer: Any = LAYERS[name]()
    inputs = [torch.randn((3, 6, 5) if layer.batch_first else (6, 3, 5))]
    if with_states:
        cells = layer.num_layers * (1 + layer.bidirectional)
        inputs.append(torch.randn(cells, 3, layer.proj_size or layer.hidden_size))
        if isinstance(layer, nn.LSTM):
            inputs.append(torch.randn(cells, 3, layer.hidden_size))
    return Layers(layer).eval(), tuple(inputs)


def check(module: nn.Module, inputs: tuple[torch.Tensor, ...], results: Any) -> None:
    """Within what float32 explains, as it does PyTorch's own float32: some thirty roundings of values about 1."""
    wide = copy.deepcopy(module).double()
    with torch.no_grad():
        expected = [value.numpy() for value in wide(*(value.double() for value in inputs))]
        own = [value.numpy() for value in module(*inputs)]
    for result, theirs, real in zip(results, own, expected, strict=True):
        assert result.shape == real.shape and result.dtype == np.float32
        for found in (result, theirs):
            np.testing.assert_allclose(found, real, rtol=0, atol=32 * 2.0**-24 * max(1.0, float(np.abs(real).max())))
