"""Programs of one or a few operators, written by torch.export, with the operators that PT2E's quantizers insert;
decoders with torchao's packed weights; and the bundled networks."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

from tests.frontends.pytorch.exported.packed_networks import CONFIGS, decoder

from . import bundled

Tensor = torch.Tensor


def _quantized(x: Tensor, scale: float = 0.05, zero: int = 3) -> Tensor:
    """Quantize to int8 and back, as PT2E writes it."""
    ops = torch.ops.quantized_decomposed
    stored = ops.quantize_per_tensor.default(x, scale, zero, -128, 127, torch.int8)
    return ops.dequantize_per_tensor.default(stored, scale, zero, -128, 127, torch.int8)


class _Products(torch.nn.Module):
    """A convolution and a dense layer with integer weights, with activations quantized in between."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("kernel", torch.randint(-127, 128, (4, 2, 3, 3), generator=generator, dtype=torch.int8))
        self.register_buffer("scales", torch.rand(4, generator=generator) / 50 + 0.001)
        self.register_buffer("zeros", torch.zeros(4, dtype=torch.int64))
        self.register_buffer("matrix", torch.randint(-127, 128, (3, 4), generator=generator, dtype=torch.int8))

    def forward(self, x: Tensor) -> Tensor:
        ops = torch.ops.quantized_decomposed
        kernel = ops.dequantize_per_channel.default(self.kernel, self.scales, self.zeros, 0, -127, 127, torch.int8)
        x = _quantized(torch.relu(F.conv2d(_quantized(x), kernel, padding=1)))
        x = _quantized(F.adaptive_avg_pool2d(x, 1).flatten(1))
        matrix = ops.dequantize_per_tensor.default(self.matrix, 0.01, 0, -127, 127, torch.int8)
        return _quantized(F.linear(x, matrix), 0.1)


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.function(*tensors)


_IMAGE, _ROWS = (1, 2, 6, 6), (2, 8)
_FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "add": (lambda x, y: _quantized(_quantized(x) + _quantized(y)), (_ROWS, _ROWS)),
    "mul": (lambda x, y: _quantized(_quantized(x) * y), (_ROWS, (8,))),
    "pool": (lambda x: _quantized(F.max_pool2d(_quantized(x), 2, 1, 1)), (_IMAGE,)),
    "average": (lambda x: F.avg_pool2d(_quantized(x), 3, 2, 1), (_IMAGE,)),
    "shape": (lambda x: _quantized(x).reshape(2, 36).t().contiguous()[1:30:3].flip(0), (_IMAGE,)),
    "cat": (lambda x, y: torch.cat([_quantized(x), _quantized(y)], 1).split(3, 1)[0].unsqueeze(0), (_ROWS, _ROWS)),
    "softmax": (lambda x: torch.softmax(_quantized(x), -1), (_ROWS,)),
    "norm": (lambda x: _quantized(F.layer_norm(_quantized(x), (8,))), (_ROWS,)),
    "unary": (lambda x: F.hardswish(F.gelu(torch.tanh(x.clamp(-2, 6)))), (_ROWS,)),
    "index": (lambda x: torch.gather(x, 1, x.argmax(1, keepdim=True)), (_ROWS,)),
    "topk": (lambda x: x.topk(3, 1)[0], (_ROWS,)),
    "reduce": (lambda x: x.mean((2, 3), keepdim=True) + x.amax(1, keepdim=True) + x.sum(), (_IMAGE,)),
    "integers": (lambda x: (x * 10).to(torch.int32) // 3 % 5 << 1, (_ROWS,)),
    "where": (lambda x: torch.where(x > 0, x, torch.full_like(x, 2.0)).masked_fill(x < -1, 0.5), (_ROWS,)),
    "resize": (lambda x: F.interpolate(_quantized(x), scale_factor=2.0, mode="nearest"), (_IMAGE,)),
    "pad": (lambda x: F.pad(_quantized(x), (1, 2, 0, 1), value=0.25), (_IMAGE,)),
    "matmul": (lambda x, y: torch.matmul(_quantized(x), _quantized(y).transpose(-1, -2)), (_ROWS, _ROWS)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), ((1, 2, 4, 8),) * 3),
}


def seeds() -> Iterator[tuple[str, bytes]]:
    """File names and contents."""
    torch.set_num_threads(1)
    from torch.ao.quantization.fx import _decomposed  # noqa: F401  (registers the operators)

    yield "products.pt2", _exported(_Products(), (_IMAGE,))
    for name, (function, shapes) in _FUNCTIONS.items():
        yield f"{name}.pt2", _exported(_Function(function), shapes)
    for name, config in CONFIGS.items():
        yield f"decoder_{name}.pt2", _written(decoder(config))
    yield from bundled("*.pt2")


def _exported(module: torch.nn.Module, shapes: tuple[tuple[int, ...], ...]) -> bytes:
    generator = torch.Generator().manual_seed(1)
    example = tuple(torch.randn(shape, generator=generator) for shape in shapes)
    return _written(torch.export.export(module.eval(), example))


def _written(program: torch.export.ExportedProgram) -> bytes:
    program._example_inputs = None  # a pickle, useless here
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # contains file names of this machine
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()
