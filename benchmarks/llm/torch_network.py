"""The networks as PyTorch modules in bfloat16 with weights quantized by torchao, and a static cache.

int4 takes the integers and scales of the other runtimes as they are. The other schemes have grids of their own: there
torchao quantizes the same real weights once more. Its kernel for 8da4w on x86 is not in its wheel: without it weights
are dequantized.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from .networks import BLOCK, EPSILON, Blocks, Network, blocks, norm_weight, rotations

DTYPE = torch.bfloat16
"""torchao's own choice on CPUs: in float32 its int4 kernel is 20 times slower."""


class _Layer(nn.Module):
    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.norm = nn.RMSNorm(network.width, eps=EPSILON, dtype=DTYPE)
        self.norm2 = nn.RMSNorm(network.width, eps=EPSILON, dtype=DTYPE)
        for name, (rows, columns) in network.matrices.items():
            setattr(self, name, nn.Linear(columns, rows, bias=False, dtype=DTYPE))
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(network.cache_shape, dtype=DTYPE, device="cpu"), persistent=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor, mask: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        heads, groups, size = self.network.heads, self.network.groups, self.network.size
        together = self.qkv(self.norm(x)).view(1, -1, heads + 2 * groups, size).transpose(1, 2)
        query, key, value = together.split([heads, groups, groups], dim=1)
        self.keys.index_copy_(2, at, _rotated(key, rotation))
        self.values.index_copy_(2, at, value)
        mixed = F.scaled_dot_product_attention(
            _rotated(query, rotation), self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(1, -1, heads * size))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """(tokens (1, S), positions (S,)) → logits (vocabulary,) of the last token; the cache is kept in buffers."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.length = network.length
        self.embedding = nn.Embedding(network.vocabulary, network.width, dtype=DTYPE)
        self.layers = nn.ModuleList(_Layer(network) for _ in range(network.layers))
        self.norm = nn.RMSNorm(network.width, eps=EPSILON, dtype=DTYPE)
        self.head = nn.Linear(network.width, network.vocabulary, bias=False, dtype=DTYPE)
        # on a device that has values even where weights wait to be loaded, as the caches
        rotation = torch.tensor(np.stack(rotations(network)), dtype=DTYPE, device="cpu")
        self.register_buffer("rotation", rotation, persistent=False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        rotation = self.rotation[:, positions]
        mask = torch.arange(self.length, device="cpu") <= positions[:, None]
        for layer in self.layers:
            x = layer(x, rotation, mask, positions)
        return self.head(self.norm(x[:, -1])).flatten()


def _rotated(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of pairs half a head apart."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


# ---- weights -----------------------------------------------------------------------------------------------------


def _real(weight: Blocks) -> torch.Tensor:
    scale = np.repeat(weight.scale.astype(np.float32), BLOCK, axis=1)
    return torch.from_numpy((weight.values.astype(np.float32) - (1 << (weight.bits - 1))) * scale).to(DTYPE)


def _int4(weight: Blocks) -> torch.Tensor:
    from torchao.prototype.quantization.int4 import Int4OpaqueTensor
    from torchao.quantization.utils import pack_tinygemm_scales_and_zeros

    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.from_numpy(weight.values).int(), 1)
    scale = torch.from_numpy(weight.scale).to(DTYPE)
    scales = pack_tinygemm_scales_and_zeros(scale, torch.zeros_like(scale), DTYPE)
    return Int4OpaqueTensor(packed, scales, [1, BLOCK], torch.Size(weight.values.shape))


def _by_config(make: Callable[[Any], Any]) -> Callable[[Blocks], torch.Tensor]:
    def quantized(weight: Blocks) -> torch.Tensor:
        from torchao import quantization

        rows, columns = weight.values.shape
        linear = nn.Linear(columns, rows, bias=False, dtype=DTYPE, device="meta")
        linear.weight = nn.Parameter(_real(weight), requires_grad=False)
        quantization.quantize_(linear, make(quantization))
        return linear.weight

    return quantized


def _grouped(quantization: Any) -> Any:
    granularity = quantization.granularity.PerGroup(BLOCK)
    return quantization.Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=granularity)


TRIES_KERNELS = True
"""Whether inductor measures its kernels for each product, as torchao's guide has it: minutes for each shape."""
SCHEMES: dict[str, Callable[[Blocks], torch.Tensor]] = {
    "int4": _int4,
    "8da4w": _by_config(_grouped),
    "int8": _by_config(lambda quantization: quantization.Int8WeightOnlyConfig()),
    "8da8w": _by_config(lambda quantization: quantization.Int8DynamicActivationInt8WeightConfig()),
}
"""What a scheme makes of a matrix."""


def write_torchao(path: Path, network: Network, bits: int, scheme: str) -> None:
    """The module's weights after torchao's scheme, as `torch.save` writes them."""
    quantized = SCHEMES[scheme]
    weights = {
        "embedding.weight": _real(blocks(network, "embedding", bits)),
        "head.weight": quantized(blocks(network, "head", bits)),
        "norm.weight": _norm(network, f"{network.layers}.norm"),
    }
    for layer in range(network.layers):
        for name in network.matrices:
            weights[f"layers.{layer}.{name}.weight"] = quantized(blocks(network, f"{layer}.{name}", bits))
        for name in ("norm", "norm2"):
            weights[f"layers.{layer}.{name}.weight"] = _norm(network, f"{layer}.{name}")
    torch.save(weights, path)


def _norm(network: Network, name: str) -> torch.Tensor:
    return torch.from_numpy(norm_weight(network, name)).to(DTYPE)


# ---- running -----------------------------------------------------------------------------------------------------


class TorchAO:
    """The module as it is or compiled by inductor: a program for each number of tokens, with constant weights and the
    fastest of inductor's kernels for products."""

    def __init__(self, path: str, network: Network, threads: int, *, compiled: bool) -> None:
        import torchao.prototype.quantization.int4  # noqa: F401  registers a kind of tensors

        warnings.simplefilter("ignore")
        torch.set_num_threads(threads)
        with torch.device("meta"):
            module = Llama(network)
        module.load_state_dict(torch.load(path, weights_only=True, mmap=True), assign=True)
        self._module = _compiled(module.eval()) if compiled else module.eval()
        self._position = 0

    def run(self, tokens: Sequence[int]) -> np.ndarray:
        positions = torch.arange(self._position, self._position + len(tokens))
        self._position += len(tokens)
        with torch.no_grad():
            return self._module(torch.tensor([tokens]), positions).float().numpy()

    def rewind(self, length: int) -> None:
        self._position = length


def _compiled(module: nn.Module) -> Any:
    options = {  # for this module alone
        "freezing": True,
        "max_autotune_gemm": TRIES_KERNELS,
        "max_autotune_gemm_backends": "CPP,ATEN",
        "compile_threads": 1,
    }
    return torch.compile(module, dynamic=False, options=options)
