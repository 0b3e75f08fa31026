"""Small networks and the quantizers of PyTorch and torchao, for the tests of exported programs."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torchao.quantization.pt2e import move_exported_model_to_eval
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
from torchao.testing.pt2e import _xnnpack_quantizer as xnnpack

from qnn_ext import Interpreter
from qnn_ext.frontends.pytorch.exported import from_exported_program

torch.set_num_threads(1)
warnings.filterwarnings("ignore", category=DeprecationWarning)

Program = torch.export.ExportedProgram


class Cnn(nn.Module):
    """Stem, residual sum, depthwise-separable block, two branches, poolings, dense layer: (N, 3, 16, 16) to (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool = unit(3, 8, 3, stride=2), nn.MaxPool2d(3, 2, 1)
        self.first, self.second, self.relu = unit(8, 8, 3), unit(8, 8, 3, nn.Identity()), nn.ReLU()
        self.depthwise, self.pointwise = unit(8, 8, 3, nn.Hardswish(inplace=True), groups=8), unit(8, 12, 1, nn.ReLU6())
        self.left, self.right = unit(12, 4, 1), unit(12, 4, 3)
        self.average, self.dense = nn.AvgPool2d(2, 2), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stem(x))
        x = self.relu(x + self.second(self.first(x)))
        x = self.pointwise(self.depthwise(x))
        x = self.average(torch.cat([self.left(x), self.right(x)], 1))
        return self.dense(F.adaptive_avg_pool2d(x, 1).flatten(1))


def unit(
    inputs: int, outputs: int, kernel: int, activation: nn.Module | None = None, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    """Convolution, batch normalization, activation (ReLU by default)."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU() if activation is None else activation)


class Encoder(nn.Module):
    """One pre-norm transformer block, (N, 7, 16) to the same; attention spelled out or as one operator."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.whole = whole
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16)])
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down, self.gelu = nn.Linear(16, 32), nn.Linear(32, 16), nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        y = self.norms[0](x)
        q, k, v = (layer(y).reshape(batch, tokens, 2, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if self.whole:
            z = F.scaled_dot_product_attention(q, k, v)
        else:
            z = torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)) * 8**-0.5, -1), v)
        x = x + self.out(z.transpose(1, 2).reshape(batch, tokens, 16))
        return x + self.down(self.gelu(self.up(self.norms[1](x))))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    """A network whose activations keep their magnitude: its batch normalizations have the statistics of its data."""
    torch.manual_seed(0)
    network = make()
    if isinstance(network, Cnn):
        network.train()
        for x in images(8):
            network(x)
    return network.eval()


def images(count: int, seed: int = 1, batch: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, 3, 16, 16, generator=generator) for _ in range(count)]


def sequences(count: int, seed: int = 2) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, 7, 16, generator=generator) for _ in range(count)]


NETWORKS = {
    "cnn": (Cnn, images),
    "encoder": (Encoder, sequences),
    "encoder-sdpa": (lambda: Encoder(whole=True), sequences),
}


# ---- quantizers --------------------------------------------------------------------------------------------------


def x86_quantizer(**options: Any) -> Any:
    quantizer = x86.X86InductorQuantizer()
    return quantizer.set_global(x86.get_default_x86_inductor_quantization_config(**options))


def xnnpack_quantizer(per_channel: bool = True, **options: Any) -> Any:
    quantizer = xnnpack.XNNPACKQuantizer()
    return quantizer.set_global(xnnpack.get_symmetric_quantization_config(is_per_channel=per_channel, **options))


QUANTIZERS = {
    "x86": x86_quantizer,
    "xnnpack": xnnpack_quantizer,
    "xnnpack-per-tensor": lambda **options: xnnpack_quantizer(per_channel=False, **options),
}


def pt2e(network: nn.Module, data: list[torch.Tensor], quantizer: Any, qat: bool = False, **options: Any) -> Program:
    """The network quantized by PT2E on the data and exported again.

    options: fold_quantize (of convert_pt2e), dynamic_shapes (of torch.export)
    """
    fold, shapes = options.get("fold_quantize", True), options.get("dynamic_shapes")
    network, example = copy.deepcopy(network), (data[0],)
    network = network.train() if qat else network
    graph = torch.export.export(network, example, dynamic_shapes=shapes).module()
    prepared = (prepare_qat_pt2e if qat else prepare_pt2e)(graph, quantizer)
    if qat:
        train(prepared, data)
        move_exported_model_to_eval(prepared)
    with torch.no_grad():
        for x in data:
            prepared(x)
    return torch.export.export(convert_pt2e(prepared, fold_quantize=fold), example, dynamic_shapes=shapes)


def train(network: nn.Module, data: list[torch.Tensor]) -> None:
    """A few steps, enough to move weights and observers."""
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    for x in data:
        optimizer.zero_grad()
        network(x).pow(2).mean().backward()
        optimizer.step()


# ---- comparison --------------------------------------------------------------------------------------------------


def run_torch(program: Program, *inputs: torch.Tensor) -> list[np.ndarray]:
    """All tensors that the program returns."""
    with torch.no_grad():
        result = program.module()(*inputs)
    return [value.numpy() for value in torch.utils._pytree.tree_leaves(result)]


def with_layers(program: Program, inputs: tuple[torch.Tensor, ...]) -> Program:
    """A program that returns every quantized tensor, then the outputs of the given one."""
    module = copy.deepcopy(program.module())
    result = next(node for node in module.graph.nodes if node.op == "output")
    quantized = [node for node in module.graph.nodes if "quantize_per_tensor" in str(node.target).split(".")[1:2]]
    result.args = ((*quantized, *torch.utils._pytree.tree_leaves(result.args)),)
    module.graph._codegen = torch.fx.graph.CodeGen()
    module.recompile()
    return torch.export.export(module, inputs)


def layer_differences(program: Program, *inputs: torch.Tensor) -> tuple[int, int, int]:
    """(steps that differ, total steps, largest difference) over all tensors the program quantizes."""
    layers = with_layers(program, inputs)
    found = Interpreter(from_exported_program(layers)).run([x.numpy() for x in inputs]).values()
    pairs = zip(found, run_torch(layers, *inputs), strict=True)
    differences = [np.abs(y.astype(int) - z.astype(int)) for y, z in pairs if z.dtype.kind in "iu"]
    assert differences
    return (
        sum(int((d > 0).sum()) for d in differences),
        sum(d.size for d in differences),
        max(int(d.max()) for d in differences),
    )
