"""Single operators traced by PyTorch, imported, and compared with what PyTorch computed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import qnn_ext
from qnn_ext.frontends.pytorch import from_pytorch

warnings.filterwarnings("ignore", module="torch")

ENGINES = [
    name for name in ("fbgemm", "x86", "onednn", "qnnpack") if name in torch.backends.quantized.supported_engines
]


class Wrapped(torch.nn.Module):
    """A function as a module, with the modules it uses registered, so that tracing finds their parameters."""

    def __init__(self, function: Callable[..., Any], **modules: torch.nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def quantized(rng: np.random.Generator, shape: tuple[int, ...], scale: float, zero: int, signed: bool = False, **span):
    """A random quantized tensor over the whole dtype, or over low … high."""
    info = np.iinfo(np.int8 if signed else np.uint8)
    values = rng.integers(span.get("low", info.min), span.get("high", info.max) + 1, shape).astype(info.dtype)
    return torch._make_per_tensor_quantized_tensor(torch.from_numpy(values), scale, zero)


def integers(tensor: torch.Tensor) -> np.ndarray:
    """The integers of a quantized tensor, or the values of a float one."""
    return (tensor.int_repr() if tensor.is_quantized else tensor).detach().numpy()


@cache
def saturates(engine: str) -> bool:
    """Whether the engine loses bits of uint8 times int8 here: without VNNI it adds two products in 16 bits, for which
    activations are quantized to 7 bits, or should be."""
    torch.backends.quantized.engine = engine
    layer = torch.ao.nn.quantized.dynamic.Linear(32, 8)
    weight = torch.full((8, 32), 127, dtype=torch.int8)
    layer.set_weight_bias(torch._make_per_tensor_quantized_tensor(weight, 1.0, 0), torch.zeros(8))
    x = torch.full((1, 32), 255.0)
    found = torch.ops.quantized.linear_dynamic(x, layer._packed_params._packed_params, False)
    return bool((found != 32 * 255 * 127).any())


def require_exact(engine: str) -> None:
    """Skip the test where the engine's products of 8-bit integers are not exact on this CPU."""
    if saturates(engine):
        pytest.skip(f"{engine} saturates products of 8-bit integers on this CPU, which has no VNNI")


def run(
    module: torch.nn.Module | Callable[..., Any], *inputs: torch.Tensor, engine: str = "x86", compiled: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(qnn_ext's result, PyTorch's) for a module that returns one tensor; `compiled` also builds it and compares."""
    torch.backends.quantized.engine = engine
    model = module if isinstance(module, torch.nn.Module) else Wrapped(module)
    with torch.no_grad():
        expected = integers(model.eval()(*inputs))
        traced = torch.jit.trace(model, inputs, check_trace=False)
    imported = from_pytorch(traced, inputs, engine=engine)
    arrays = [integers(tensor) for tensor in inputs]
    result = qnn_ext.Interpreter(imported)(*arrays)
    assert isinstance(result, np.ndarray)
    assert result.shape == expected.shape and result.dtype == expected.dtype
    if compiled:
        built = qnn_ext.build(imported, num_threads=1)(*arrays)
        if result.dtype.kind == "f":
            np.testing.assert_allclose(built, result, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(built, result)
    return result, expected


def check(module: Any, *inputs: torch.Tensor, engine: str = "x86", compiled: bool = False, off_by_one: int = 0) -> None:
    """All equal, except for at most `off_by_one` integers that differ by 1."""
    result, expected = run(module, *inputs, engine=engine, compiled=compiled)
    if result.dtype.kind == "f":
        np.testing.assert_array_equal(result, expected)
        return
    difference = np.abs(result.astype(np.int64) - expected.astype(np.int64))
    assert difference.max(initial=0) <= (1 if off_by_one else 0)
    assert np.count_nonzero(difference) <= off_by_one
