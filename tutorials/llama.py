"""A language model in PyTorch as tutorial 20 runs it: Llama's layers with a static key-value cache, and readers of
llama2.c's files (https://github.com/karpathy/llama2.c)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Config:
    """The sizes in the order of llama2.c's header. kv_heads: keys and values; heads // kv_heads queries share one."""

    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    length: int


class Attention(nn.Module):
    """Causal attention over all positions so far, whose keys and values are kept in two buffers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = config.heads, config.kv_heads, config.width // config.heads
        self.query = nn.Linear(config.width, config.heads * self.size, bias=False)
        self.key = nn.Linear(config.width, config.kv_heads * self.size, bias=False)
        self.value = nn.Linear(config.width, config.kv_heads * self.size, bias=False)
        self.out = nn.Linear(config.heads * self.size, config.width, bias=False)
        shape = (1, config.kv_heads, config.length, self.size)
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor, mask: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        batch, count, _ = x.shape
        query = self.query(x).view(batch, count, self.heads, self.size).transpose(1, 2)
        key = self.key(x).view(batch, count, self.kv_heads, self.size).transpose(1, 2)
        value = self.value(x).view(batch, count, self.kv_heads, self.size).transpose(1, 2)
        self.keys.index_copy_(2, at, rotated(key, rotation))
        self.values.index_copy_(2, at, value)
        mixed = F.scaled_dot_product_attention(
            rotated(query, rotation), self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, count, -1))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.before_attention = nn.RMSNorm(config.width, eps=1e-5)
        self.attention = Attention(config)
        self.before_layers = nn.RMSNorm(config.width, eps=1e-5)
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor, mask: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x), rotation, mask, at)
        y = self.before_layers(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """(tokens (1, S), positions (S,)) → logits (1, S, vocabulary); positions: where in the cache the tokens stand."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=1e-5)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        size = config.width // config.heads
        frequencies = 10000.0 ** -(torch.arange(0, size, 2)[: size // 2].float() / size)
        angles = torch.outer(torch.arange(config.length).float(), frequencies)
        self.register_buffer("rotations", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        rotation = self.rotations[:, positions]
        mask = torch.arange(self.config.length) <= positions[:, None]
        for block in self.blocks:
            x = block(x, rotation, mask, positions)
        return self.head(self.norm(x))


def rotated(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding: each pair of neighbours turned by an angle that grows with the position."""
    cos, sin = rotation
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


def random_llama(config: Config, seed: int = 0) -> Llama:
    """A model with random weights."""
    torch.manual_seed(seed)
    return Llama(config).eval()


def read_llama2c(path: Path) -> Llama:
    """The model in a checkpoint of llama2.c: seven int32, then the weights in float32, by kind and then by layer."""
    content = path.read_bytes()
    config = Config(*struct.unpack("7i", content[:28]))
    shared = config.vocabulary > 0  # a negative number says that the head has weights of its own
    config = Config(**{**vars(config), "vocabulary": abs(config.vocabulary)})
    model = Llama(config)
    blocks = list(model.blocks)
    kinds = [
        [model.embedding],
        [block.before_attention for block in blocks],
        [block.attention.query for block in blocks],
        [block.attention.key for block in blocks],
        [block.attention.value for block in blocks],
        [block.attention.out for block in blocks],
        [block.before_layers for block in blocks],
        [block.gate for block in blocks],
        [block.down for block in blocks],
        [block.up for block in blocks],
        [model.norm],
    ]
    weights = torch.from_numpy(np.frombuffer(content, np.float32, offset=28).copy())
    start = 0
    for layer in (layer for kind in kinds for layer in kind):
        end = start + layer.weight.numel()
        layer.weight.data = weights[start:end].view(layer.weight.shape).clone()
        start = end
    if shared:
        model.head.weight = model.embedding.weight
    else:
        start += config.length * (config.width // config.heads)  # tables of the rotations
        model.head.weight.data = (
            weights[start : start + model.head.weight.numel()].view(model.head.weight.shape).clone()
        )
    return model.eval()


def write_tokenizer(source: Path, target: Path) -> None:
    """A tokenizer of llama2.c as a file of SentencePiece: pairs merge in the order of their scores in both.

    It holds an int32, then for each piece a float32 score, an int32 length, and so many bytes.
    """
    from sentencepiece import sentencepiece_model_pb2 as protocol

    content, start, model = source.read_bytes(), 4, protocol.ModelProto()
    kinds = protocol.ModelProto.SentencePiece
    while start < len(content):
        score, length = struct.unpack_from("fi", content, start)
        text = content[start + 8 : start + 8 + length].decode()
        start += 8 + length
        number = len(model.pieces)
        kind = kinds.UNKNOWN if number == 0 else kinds.CONTROL if number < 3 else kinds.NORMAL
        if text.startswith("<0x"):
            kind = kinds.BYTE
        piece = text.strip() if number < 3 else text.replace(" ", "▁")
        model.pieces.add(piece=piece, score=score, type=kind)
    model.trainer_spec.model_type = protocol.TrainerSpec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.vocab_size = len(model.pieces)
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.remove_extra_whitespaces = False
    target.write_bytes(model.SerializeToString())
