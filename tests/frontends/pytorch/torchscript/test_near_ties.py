"""Results next to midpoints: for an element there are two neighbouring scales of the result between which PyTorch's
integer jumps, found by bisection; on both sides ours is the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.ao.nn.quantized as nnq

import qnn_ext
from qnn_ext.frontends.pytorch import from_pytorch
from tests.cases.near_ties import near_ties

from .oracle import Wrapped, integers, quantized, require_exact

ops = torch.ops.quantized
Rounded = Callable[[torch.Tensor, float], torch.Tensor]  # data, scale of the result -> the result
Maker = Callable[[np.random.Generator], "Rounded | Layer"]
SHAPE = (1, 16, 4, 4)  # whole vectors


class Layer:
    """A convolution or linear layer as such a function."""

    def __init__(self, rng: np.random.Generator, groups: int, per_channel: bool) -> None:
        """groups: of a convolution; 0 for a linear layer"""
        self.module = nnq.Conv2d(16, 16, 3, groups=groups) if groups else nnq.Linear(16, 16)
        shape = (16, 16 // groups, 3, 3) if groups else (16, 16)
        values = torch.from_numpy(rng.integers(-127, 128, shape).astype(np.int8))
        weight = torch._make_per_tensor_quantized_tensor(values, 0.0131, 0)
        if per_channel:
            scales = torch.from_numpy(rng.uniform(0.005, 0.025, 16))
            weight = torch._make_per_channel_quantized_tensor(values, scales, torch.zeros(16, dtype=torch.long), 0)
        self.module.set_weight_bias(weight, torch.from_numpy(rng.normal(0, 1, 16).astype(np.float32)))
        self.module.zero_point = 117

    def __call__(self, x: torch.Tensor, scale: float) -> torch.Tensor:
        self.module.scale = scale
        return self.module(x if isinstance(self.module, nnq.Conv2d) else x.reshape(16, 16))


def binary(name: str) -> Maker:
    def make(rng: np.random.Generator) -> Rounded:
        other = quantized(rng, SHAPE, 0.0713, 131)
        return lambda x, scale: getattr(ops, name)(x, other, scale, 117)

    return make


def unary(function: Rounded) -> Maker:
    return lambda rng: function


# operator -> (makes a function of data and the result's scale, a scale)
OPERATORS: dict[str, tuple[Maker, float]] = {
    "conv2d": (lambda rng: Layer(rng, 1, False), 0.2),
    "conv2d_groups": (lambda rng: Layer(rng, 4, False), 0.1),
    "conv2d_depthwise": (lambda rng: Layer(rng, 16, False), 0.05),
    "conv2d_per_channel": (lambda rng: Layer(rng, 1, True), 0.2),
    "linear": (lambda rng: Layer(rng, 0, False), 0.08),
    "linear_per_channel": (lambda rng: Layer(rng, 0, True), 0.08),
    "add": (binary("add"), 0.08),
    "add_relu": (binary("add_relu"), 0.08),
    "mul": (binary("mul"), 0.1),
    "leaky_relu": (unary(lambda x, scale: ops.leaky_relu(x, 0.13, False, scale, 60)), 0.02),
    "elu": (unary(lambda x, scale: ops.elu(x, scale, 60, 1.3)), 0.02),
    "celu": (unary(lambda x, scale: ops.celu(x, scale, 60, 1.3)), 0.02),
    "hardswish": (unary(lambda x, scale: ops.hardswish(x, scale, 60)), 0.02),
    "sigmoid": (unary(lambda x, scale: ops.sigmoid(x, scale, 3)), 0.005),
    "cat": (unary(lambda x, scale: ops.cat([x, x], 1, scale, 60)), 0.02),
    "quantize": (unary(lambda x, scale: torch.quantize_per_tensor(x.dequantize(), scale, 60, torch.quint8)), 0.02),
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_near_ties(operator, engine, rng, thorough):
    make, middle = OPERATORS[operator]
    if operator.startswith(("conv", "linear")):
        require_exact(engine)
    if (operator, engine) == ("sigmoid", "qnnpack"):
        pytest.skip("QNNPACK has a sigmoid for a scale of 1/256 only")
    x = quantized(rng, SHAPE, 0.0217, 117)

    def model(scale: np.float64) -> Wrapped:
        function = make(np.random.default_rng(3))  # QNNPACK's layers keep the first scale that they see
        modules = {"layer": function.module} if isinstance(function, Layer) else {}
        return Wrapped(lambda x: function(x, float(scale)), **modules).eval()

    def expected(scale: np.float64) -> np.ndarray:
        with torch.no_grad():
            return integers(model(scale)(x))

    most = 12 if thorough else 2 if operator.startswith(("conv", "linear")) else 1
    found = near_ties(rng, expected, np.float64(middle), np.float64(middle * 1.2), most)
    assert found
    for scale in (scale for pair in found for scale in pair):
        traced = torch.jit.trace(model(scale), (x,), check_trace=False)
        ours = qnn_ext.Interpreter(from_pytorch(traced, (x,), engine=engine))(integers(x))
        np.testing.assert_array_equal(ours, expected(scale))
