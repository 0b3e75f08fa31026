"""A small network with most of what quantization-aware training meets, and the configurations it is tested in."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import fx, nn
from torch.nn import functional as F

from qnn_ext import qat

torch.set_num_threads(1)

CONFIGS = {
    "google symmetric, per layer": {"activation_scheme": "symmetric", "per_channel": False},
    "google symmetric, per channel": {"activation_scheme": "symmetric"},
    "google affine, per layer": {"weight_scheme": "affine", "per_channel": False},
    "google affine, per channel": {"weight_scheme": "affine"},
    "google mixed, per channel": {"weight_bits": 7, "observer": "min_max"},
    "google mixed, 4 and 3 bits": {"weight_bits": 4, "activation_bits": 3},
    "google symmetric, 2 and 4 bits": {"weight_bits": 2, "activation_bits": 4, "activation_scheme": "symmetric"},
    "cambricon, per layer": {"formula": "cambricon", "activation_scheme": "symmetric", "per_channel": False},
    "cambricon, 5 bits": {"formula": "cambricon", "activation_scheme": "symmetric", "weight_bits": 5},
}


class Network(nn.Module):
    """Stem, depthwise block with a shortcut, a layer called twice, a concatenation, functional layers: (N, 3, 16, 16)
    to (N, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8, eps=1e-2, momentum=0.3), nn.ReLU(inplace=True)
        )
        self.depthwise = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8))
        self.twice = nn.Conv2d(8, 8, 1)
        self.weight = nn.Parameter(torch.randn(4, 8, 1, 1) / 3)
        self.pool, self.dense = nn.MaxPool2d(2), nn.Linear(12, 6)
        self.norm, self.head = nn.BatchNorm1d(6), nn.Linear(6, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        x = F.relu(x + self.depthwise(x))
        x = self.twice(F.dropout(self.twice(x), 0.1, self.training))
        x = self.pool(torch.cat([x, F.conv2d(x, self.weight)], 1))
        return self.head(F.relu6(self.norm(self.dense(torch.flatten(x.mean((2, 3)), 1)))))


def images(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def seeded(make: type[nn.Module] = Network) -> nn.Module:
    torch.manual_seed(0)
    return make()


def trained(module: nn.Module, example: torch.Tensor, steps: int = 6, **config: object) -> fx.GraphModule:
    """A prepared copy after a few steps, in evaluation."""
    prepared = qat.prepare(module, example, qat.QatConfig(averaging_constant=0.2, **config))
    optimizer = torch.optim.SGD(prepared.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        y = prepared(torch.randn(example.shape, generator=generator))
        (y - y.detach().sign() - 1).pow(2).mean().backward()
        optimizer.step()
    return prepared.eval()


def without_rounding(prepared: fx.GraphModule) -> fx.GraphModule:
    """A copy whose quantizers pass everything."""
    result = copy.deepcopy(prepared)
    for name, module in list(result.named_modules()):
        if isinstance(module, (qat.FakeQuantize, qat.FakeBias)):
            parent, _, child = name.rpartition(".")
            setattr(result.get_submodule(parent), child, nn.Identity())
    return result


def quietly_prepared(module: nn.Module, example: torch.Tensor, **config: object) -> fx.GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return qat.prepare(module, example, qat.QatConfig(**config))
