"""Small language models with torchao's packed weights, and their archives."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    quantize_,
)

VOCABULARY, WIDTH, ROOM = 12, 32, 6

CONFIGS: dict[str, Any] = {
    "int8": Int8WeightOnlyConfig(version=2),
    "int4": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16)),
    "8da4w": Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(16)),
}


class Decoder(nn.Module):
    """A token and its position → logits, which depend on all rows of the cache."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.key = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("cache", torch.zeros(ROOM, WIDTH))

    def forward(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        x = nn.functional.rms_norm(self.embedding(token), (WIDTH,))
        self.cache.index_copy_(0, position, self.key(x))
        return self.head(self.cache.sum(0, keepdim=True))


def decoder(config: Any) -> Any:
    """The program of a decoder whose linear layers a configuration of torchao has quantized, its embedding too if that
    has groups."""
    torch.manual_seed(0)
    model = Decoder().eval()
    quantize_(model, config)
    if isinstance(config, IntxWeightOnlyConfig):
        quantize_(model, config, lambda module, name: isinstance(module, nn.Embedding))
    return torch.export.export(model, (torch.tensor([3]), torch.tensor([0])))


def archive(program: Any) -> bytes:
    """The .pt2 file."""
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()
