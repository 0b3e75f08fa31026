"""Group and instance normalization between PT2E's quantize operators, against PyTorch."""

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # registers quantized_decomposed
from torch import nn
from torch.nn import functional as F

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.frontends.pytorch.exported import from_exported_program

from .networks import run_torch
from .test_pt2e import operators

pytestmark = pytest.mark.filterwarnings("ignore")

ops = torch.ops.quantized_decomposed
PARAMETERS = {torch.uint8: (0.031, 120), torch.int8: (0.028, -128), torch.int16: (1.3e-4, 7)}


class Between(nn.Module):
    """A layer of quantized data, its result quantized to the same dtype."""

    def __init__(self, layer, dtype):
        super().__init__()
        limits = torch.iinfo(dtype)
        self.layer, self.parameters_ = layer, (*PARAMETERS[dtype], limits.min, limits.max, dtype)

    def forward(self, x):
        real = self.layer(ops.dequantize_per_tensor(x, *self.parameters_))
        return ops.quantize_per_tensor(real, *self.parameters_)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def with_parameters(layer):
    nn.init.uniform_(layer.weight, 0.5, 1.5)
    nn.init.normal_(layer.bias)
    return layer


LAYERS = {
    "group_norm": lambda: with_parameters(nn.GroupNorm(3, 6)),
    "group_norm-one": lambda: with_parameters(nn.GroupNorm(1, 6, eps=1e-3)),
    "group_norm-plain": lambda: nn.GroupNorm(6, 6, affine=False),
    "instance_norm": lambda: with_parameters(nn.InstanceNorm2d(6, affine=True)),
    "instance_norm-plain": lambda: Function(F.instance_norm),
}


def imported(name, dtype, decompose=False):
    torch.manual_seed(5)
    limits = torch.iinfo(dtype)
    x = torch.randint(limits.min, limits.max + 1, (2, 6, 9, 8)).to(dtype)
    program = torch.export.export(Between(LAYERS[name](), dtype).eval(), (x,))
    program = program.run_decompositions() if decompose else program
    return from_exported_program(program), x, run_torch(program, x)[0]


def check(name, dtype, module, x, expected):
    found = Interpreter(module)(x.numpy())
    np.testing.assert_array_equal(qnn_ext.build(module, num_threads=1)(x.numpy()), found)
    difference = np.abs(found.astype(np.int64) - expected)
    assert difference.max() <= 1 and (difference > 0).mean() <= (0.03 if dtype is torch.int16 else 2e-3)
    assert operators(module) == {f"qnn.{name.split('-')[0]}": 1} and not module.notes


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", PARAMETERS, ids=str)
def test_between_quantize_operators(name, dtype):
    check(name, dtype, *imported(name, dtype))


def test_decomposed():
    """aten.native_group_norm, of which only the first result is used."""
    check("group_norm", torch.int8, *imported("group_norm", torch.int8, decompose=True))


@pytest.mark.parametrize("name", ["instance_norm", "instance_norm-plain"])
def test_decomposed_into_batch_statistics(name):
    """Channels of all samples as those of one, and a batch normalization without its own statistics."""
    module, x, expected = imported(name, torch.int8, decompose=True)
    found = Interpreter(module)(x.numpy())
    assert np.abs(found.astype(np.int64) - expected).max() <= 1 and (found != expected).mean() <= 2e-3
    assert set(operators(module)) <= {"qnn.instance_norm", "reshape"} and not module.notes


@pytest.mark.parametrize("decompose", [False, True])
@pytest.mark.parametrize("shape", [(2, 6, 4, 5), (1, 6, 4, 5), (3, 6, 7), (5, 6)])
def test_statistics_of_the_batch(shape, decompose):
    """Of layers that track none."""
    layer = (nn.BatchNorm2d if len(shape) == 4 else nn.BatchNorm1d)(6, track_running_stats=False).eval()
    nn.init.normal_(layer.weight)
    nn.init.normal_(layer.bias)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3 + 1
    program = torch.export.export(layer, (x,))
    found = Interpreter(from_exported_program(program.run_decompositions() if decompose else program))(x.numpy())
    np.testing.assert_allclose(found, layer(x).detach().numpy(), rtol=1e-5, atol=1e-5)


class Standardized(nn.Conv2d):
    """A convolution whose weights are standardized in every call, as those of NFNets."""

    def forward(self, x):
        rows = self.weight.reshape(1, self.out_channels, -1)
        weight = nn.functional.batch_norm(rows, None, None, training=True, momentum=0.0, eps=1e-6)
        return nn.functional.conv2d(x, weight.reshape_as(self.weight))


@pytest.mark.parametrize("decompose", [False, True])
def test_standardized_weights_are_constants(decompose):
    layer, x = Standardized(3, 8, 3).eval(), torch.randn(1, 3, 6, 6)
    program = torch.export.export(layer, (x,))
    module = from_exported_program(program.run_decompositions() if decompose else program)
    assert operators(module) == {"nn.conv2d": 1}
    np.testing.assert_allclose(Interpreter(module)(x.numpy()), layer(x).detach().numpy(), rtol=1e-4, atol=1e-4)
