"""Parameters chosen at run time: bit for bit PyTorch's, in the interpreter and compiled, and the layers behind them."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    MappingType,
    quantize_,
)
from torchao.quantization.granularity import PerAxis, PerGroup, PerTensor

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.frontends.pytorch.exported import from_exported_program, load_program

from .networks import NETWORKS, QUANTIZERS, pt2e, run_torch, seeded

decomposed = torch.ops.quantized_decomposed


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def results(function, x):
    """The results of PyTorch, the interpreter and the compiled module."""
    program = torch.export.export(Function(function), (x,))
    module = from_exported_program(program)
    engine = qnn_ext.build(module)
    oracle = list(Interpreter(module).run([x.numpy()]).values())
    return run_torch(program, x), oracle, list(engine.run([x.numpy()]).values())


DATA = {
    "usual": torch.linspace(-3.1, 4.7, 60).reshape(4, 15),
    "positive": torch.linspace(0.3, 9.9, 60).reshape(4, 15),
    "negative": -torch.linspace(0.3, 9.9, 60).reshape(4, 15),
    "zeros": torch.zeros(4, 15),
    "tiny": torch.linspace(-1e-9, 1e-9, 60).reshape(4, 15),
}


def per_tensor(x):
    scale, zero_point = decomposed.choose_qparams.tensor(x, 0, 255, 2**-12, torch.uint8)
    return scale, zero_point, decomposed.quantize_per_tensor.tensor(x, scale, zero_point, 0, 255, torch.uint8)


def per_tensor_symmetric(x):
    scale, zero_point = decomposed.choose_qparams_symmetric.tensor(x, -127, 127, 2**-12, torch.int8)
    return scale, zero_point, decomposed.quantize_per_tensor.tensor(x, scale, zero_point, -127, 127, torch.int8)


def per_token(x):
    scale, zero_point = decomposed.choose_qparams_per_token_asymmetric(x, torch.int8)
    q = decomposed.quantize_per_token(x, scale, zero_point, -128, 127, torch.int8)
    return (
        scale,
        zero_point,
        decomposed.dequantize_per_token(q, scale, zero_point, -128, 127, torch.int8, torch.float32),
    )


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("function", [per_tensor, per_tensor_symmetric, per_token])
def test_chosen_parameters(function, data):
    for golden, oracle, compiled in zip(*results(function, DATA[data]), strict=True):
        np.testing.assert_array_equal(oracle, golden)
        np.testing.assert_array_equal(compiled, golden)


@pytest.mark.parametrize("per_channel", [False, True])
def test_zero_points_are_added_in_float32(per_channel):
    """Beyond 2²⁴ the sum is rounded, which shows in int32."""

    def function(x):
        limits = (-(2**31), 2**31 - 1, torch.int32)
        if per_channel:
            scales, zeros = torch.full((4,), 1e-3), torch.tensor([-61, 0, 100, 3])
            return (decomposed.quantize_per_channel(x, scales, zeros, 0, *limits),)
        return (decomposed.quantize_per_tensor(x, 1e-3, -61, *limits),)

    x = torch.linspace(-3e5, 4e5, 60).reshape(4, 15)
    for golden, oracle, compiled in zip(*results(function, x), strict=True):
        np.testing.assert_array_equal(oracle, golden)
        np.testing.assert_array_equal(compiled, golden)


def symmetric_per_token(x):
    scale, zero_point = decomposed.choose_qparams_per_token(x, torch.int8)
    return (decomposed.quantize_per_token(x, scale, zero_point, -128, 127, torch.int8),)


def asymmetric_per_token(x):
    scale, zero_point = decomposed.choose_qparams_per_token_asymmetric(x, torch.int8)
    return (decomposed.quantize_per_token(x, scale, zero_point, -128, 127, torch.int8),)


@pytest.mark.parametrize("function", [symmetric_per_token, asymmetric_per_token])
def test_quantize_per_token_computes_in_the_dtype_of_its_scales(function):
    """float32 after choose_qparams_per_token, float64 after the asymmetric one: midpoints fall to differing sides."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-254, 255, (400, 64), generator=generator) / 2 * torch.rand(400, 1, generator=generator)
    for golden, oracle, compiled in zip(*results(function, x), strict=True):
        np.testing.assert_array_equal(oracle, golden)
        np.testing.assert_array_equal(compiled, golden)


def test_truth_values_are_quantized():
    def function(x):
        return (decomposed.quantize_per_tensor(x.to(torch.float32), 0.25, 3, -128, 127, torch.int8),)

    for golden, oracle, compiled in zip(*results(function, torch.tensor([True, False, True])), strict=True):
        np.testing.assert_array_equal(oracle, golden)
        np.testing.assert_array_equal(compiled, golden)


def test_windows_of_padding_alone():
    """Their greatest value is −∞, and the least integer where it is quantized."""
    arguments = (0.25, 3, -128, 127, torch.int8)

    def function(q):
        pooled = torch.max_pool2d(decomposed.dequantize_per_tensor(q, *arguments), (2, 3), (3, 1), (1, 0), (2, 1))
        quantized = torch.max_pool2d(decomposed.dequantize_per_tensor(q, *arguments), 2, 1, 1, 2)
        return pooled, decomposed.quantize_per_tensor(quantized, *arguments)

    q = torch.arange(-30, 30, dtype=torch.int8).reshape(1, 5, 1, 12)
    golden, oracle, compiled = results(function, q)
    assert np.isneginf(golden[0]).any()
    for one, two, three in zip(golden, oracle, compiled, strict=True):
        np.testing.assert_array_equal(two, one)
        np.testing.assert_array_equal(three, one)


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e30])
def test_deviations_of_any_size(size):
    """Their squares leave float32; PyTorch computes them in float64."""

    def function(x):
        return x.std(1), x.std((0, 1), correction=0), torch.var_mean(x / size, 1)[0]

    x = torch.randn(3, 40, generator=torch.Generator().manual_seed(2)) * size
    for golden, oracle, compiled in zip(*results(function, x), strict=True):
        np.testing.assert_allclose(oracle, golden, rtol=3e-7)
        np.testing.assert_allclose(compiled, golden, rtol=3e-7)


@pytest.mark.parametrize("seed", range(4))
def test_chosen_parameters_of_random_data(seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(16, 64, generator=generator) * 10 ** torch.empty(1).uniform_(-3, 3, generator=generator)
    for golden, oracle, _ in zip(*results(per_tensor, x), strict=True):
        np.testing.assert_array_equal(oracle, golden)


@pytest.mark.parametrize("quantizer", ["x86", "xnnpack"])
def test_dynamic_pt2e(quantizer):
    make, data = NETWORKS["encoder"]
    program = pt2e(seeded(make), data(2), QUANTIZERS[quantizer](is_dynamic=True))
    module = from_exported_program(program)
    assert sum(note.operator == "matmul" for note in module.notes) == 2, "only attention, which is not quantized"
    for x in data(3, seed=99):
        golden, oracle = run_torch(program, x)[0], Interpreter(module)(x.numpy())
        np.testing.assert_allclose(oracle, golden, rtol=0, atol=2e-6)
    np.testing.assert_allclose(qnn_ext.build(module)(x.numpy()), oracle, rtol=0, atol=2e-6)


class Detector(nn.Module):
    """The layers of MTCNN's networks. Weights, slopes and bounds are such that every scale is a power of two and every
    sum exact in float32, in any order; values fall on midpoints of quantization at every layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.slopes, self.pool = nn.Conv2d(3, 8, 3), nn.PReLU(8), nn.MaxPool2d(2, 2, ceil_mode=True)
        self.second, self.more_slopes, self.last = nn.Conv2d(8, 6, 2), nn.PReLU(6), nn.Linear(6 * 16, 5)
        generator = torch.Generator().manual_seed(3)
        for layer in (self.first, self.second, self.last):
            steps = torch.randint(-3, 4, layer.weight.shape, generator=generator) * 32.0
            steps.view(len(steps), -1)[:, 0] = -127.5  # the scale is max |w| / 127.5, and this becomes -128 of them
            layer.weight.data = steps / 512
            layer.bias.data = torch.randint(-64, 64, layer.bias.shape, generator=generator) / 32
        for layer in (self.slopes, self.more_slopes):
            layer.weight.data = torch.tensor([1, 0.5, 1, -0.25, 1, 0.5, 0.25, 0]).float()[: len(layer.weight)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.clamp(self.slopes(self.first(x)), *BOUNDS))
        x = torch.clamp(self.more_slopes(self.second(x)), -50 / 128, 205 / 128)
        return self.last(x.permute(0, 3, 2, 1).flatten(1))


BOUNDS = (-100 / 64, 155 / 64)  # 255 steps of 1/64


def test_dynamic_layers_round_as_pytorch():
    """Elsewhere PyTorch's sums in float32 are off by some units in the last place, and the integer sums are not. Where
    a value lies as near to a midpoint as that, one activation differs by a step, which a small output shows."""
    data = torch.randint(-200, 311, (4, 3, 11, 11), generator=torch.Generator().manual_seed(4)) / 128
    data.view(-1)[:2] = torch.tensor(BOUNDS)
    program = pt2e(Detector().eval(), [data], QUANTIZERS["x86"](is_dynamic=True))
    module = from_exported_program(program)
    assert not module.notes and module.script().count("R.qnn.conv2d") == 2
    golden = run_torch(program, data)[0]
    np.testing.assert_array_equal(Interpreter(module)(data.numpy()), golden)
    np.testing.assert_array_equal(qnn_ext.build(module)(data.numpy()), golden)


# ---- torchao.quantization.quantize_ ------------------------------------------------------------------------------


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


INTEGER = {
    "rows": lambda: Int8DynamicActivationInt8WeightConfig(),
    "tensor": lambda: Int8DynamicActivationInt8WeightConfig(granularity=PerTensor()),
    "asymmetric": lambda: Int8DynamicActivationInt8WeightConfig(act_mapping_type=MappingType.ASYMMETRIC),
}
FLOAT = {
    "weight-only": lambda: Int8WeightOnlyConfig(),
    "int4-groups": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    "int4-dynamic": lambda: Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    ),
    "int4-dynamic-axis": lambda: Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerAxis(0)
    ),
}


def torchao_program(config) -> tuple[torch.export.ExportedProgram, torch.Tensor]:
    torch.manual_seed(0)
    network, x = Perceptron().eval(), torch.randn(2, 3, 32)
    quantize_(network, config)
    return torch.export.export(network, (x,)), x


@pytest.mark.parametrize("config", INTEGER)
def test_torchao_dynamic_linear_is_integer_and_exact(config):
    program, x = torchao_program(INTEGER[config]())
    module = from_exported_program(program)
    assert not module.notes and module.script().count("R.qnn.dense") == 2
    np.testing.assert_array_equal(Interpreter(module)(x.numpy()), run_torch(program, x)[0])
    np.testing.assert_allclose(qnn_ext.build(module)(x.numpy()), run_torch(program, x)[0], rtol=0, atol=2e-7)


@pytest.mark.parametrize("config", FLOAT)
def test_torchao_weights_stay_packed(config):
    """Also for activations that torchao quantizes row by row, but multiplies as floats."""
    program, x = torchao_program(FLOAT[config]())
    module = from_exported_program(program)
    operator = "blockwise_dense_int8" if "dynamic" in config else "blockwise_dense"
    assert module.script().count(f"R.qnn.{operator}(") == 2 and "R.matmul" not in module.script()
    np.testing.assert_allclose(Interpreter(module)(x.numpy()), run_torch(program, x)[0], rtol=0, atol=1e-6)
    np.testing.assert_allclose(qnn_ext.build(module)(x.numpy()), run_torch(program, x)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("config", ["rows", "weight-only", "int4-groups"])
def test_torchao_program_in_a_file(config, tmp_path):
    """The tensor subclass is pickled in the file: it passes the reader that takes nothing but tensors."""
    program, x = torchao_program({**INTEGER, **FLOAT}[config]())
    torch.export.save(program, tmp_path / "model.pt2")
    module = from_exported_program(load_program(tmp_path / "model.pt2"))
    np.testing.assert_allclose(Interpreter(module)(x.numpy()), run_torch(program, x)[0], rtol=0, atol=1e-6)


def test_torchao_decomposed():
    program, x = torchao_program(Int8DynamicActivationInt8WeightConfig())
    split = copy.deepcopy(program).run_decompositions()
    np.testing.assert_array_equal(Interpreter(from_exported_program(split))(x.numpy()), run_torch(program, x)[0])
