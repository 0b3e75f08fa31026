"""Traced models of one or a few quantized operators, and the bundled networks; all take one image of 1×8×8 floats."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

from ..formats import TORCHSCRIPT_INPUT
from . import bundled

Tensor = torch.Tensor


class _Network(torch.nn.Module):
    """Quantized convolution and linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        kernel = torch.quantize_per_channel(
            torch.randn(4, 1, 3, 3),
            torch.full((4,), 0.02, dtype=torch.float64),
            torch.zeros(4, dtype=torch.int64),
            0,
            torch.qint8,
        )
        self.conv = torch.ao.nn.quantized.Conv2d(1, 4, 3, padding=1)
        self.conv.set_weight_bias(kernel, torch.randn(4))
        self.conv.scale, self.conv.zero_point = 0.1, 60
        self.dense = torch.ao.nn.quantized.Linear(4, 3)
        self.dense.set_weight_bias(torch.quantize_per_tensor(torch.randn(3, 4), 0.02, 0, torch.qint8), torch.randn(3))
        self.dense.scale, self.dense.zero_point = 0.1, 128

    def forward(self, x: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(torch.relu(self.conv(_quantized(x))), 1)
        return self.dense(x.flatten(1)).dequantize()


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _quantized(x: Tensor) -> Tensor:
    return torch.quantize_per_tensor(x, 0.03, 100, torch.quint8)


def _ops():
    return torch.ops.quantized


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: _ops().add(_quantized(x), _quantized(x * 2), 0.05, 90).dequantize(),
    "mul": lambda x: _ops().mul(_quantized(x), _quantized(x), 0.05, 0).dequantize(),
    "pool": lambda x: F.max_pool2d(_quantized(x), 2, 1).dequantize(),
    "average": lambda x: F.avg_pool2d(_quantized(x), 3, 2).dequantize(),
    "cat": lambda x: _ops().cat([_quantized(x), _quantized(x)], 1, 0.05, 100).dequantize(),
    "shape": lambda x: _quantized(x).reshape(2, 32).permute(1, 0)[1:20].dequantize(),
    "sigmoid": lambda x: torch.sigmoid(_quantized(x)).dequantize(),
    "hardswish": lambda x: _ops().hardswish(_quantized(x), 0.05, 20).dequantize(),
    "float": lambda x: torch.softmax(F.pad(x, (1, 1)) * 2.0 - x.mean(), -1),
    "resize": lambda x: F.interpolate(_quantized(x), scale_factor=2.0, mode="nearest").dequantize(),
}


def seeds() -> Iterator[tuple[str, bytes]]:
    """File names and contents."""
    torch.set_num_threads(1)
    torch.backends.quantized.engine = "x86"
    yield "network.pt", _traced(_Network())
    for name, function in _FUNCTIONS.items():
        yield f"{name}.pt", _traced(_Function(function))
    yield from bundled("*.pt")


def _traced(module: torch.nn.Module) -> bytes:
    buffer = io.BytesIO()
    with torch.no_grad():
        torch.jit.save(torch.jit.trace(module.eval(), torch.rand(TORCHSCRIPT_INPUT), check_trace=False), buffer)
    return buffer.getvalue()
