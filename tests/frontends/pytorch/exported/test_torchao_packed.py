"""torchao's weights of 1 to 8 bits stay packed, however they are chosen and grouped, and give torchao's results."""

import numpy as np
import pytest
import torch
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationIntxWeightConfig,
    IntxWeightOnlyConfig,
    MappingType,
    PerAxis,
    PerGroup,
    quantize_,
)
from torchao.quantization.quantize_.workflows import IntxChooseQParamsAlgorithm

import qnn_ext
from qnn_ext import ModelFormatError
from qnn_ext.frontends.pytorch.exported import from_exported_program
from qnn_ext.interpreter import Interpreter
from qnn_ext.op.base import constant_value
from qnn_ext.passes.rewrite import bindings_of, operands

from .networks import run_torch


class Network(nn.Module):
    """An embedding, a layer, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(50, 32), nn.Linear(32, 64), nn.Linear(64, 50, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.layer(self.embedding(tokens))))


def program_of(config, embedding=None):
    torch.manual_seed(0)
    network, tokens = Network().eval(), torch.randint(0, 50, (1, 7))
    quantize_(network, config)
    if embedding is not None:
        quantize_(network, embedding, lambda module, name: isinstance(module, nn.Embedding))
    return torch.export.export(network, (tokens,)), tokens


def packed_bytes(module):
    """The bytes of the constants of packed integers."""
    found = {expr for binding in bindings_of(module.ir["main"]) for expr in operands(binding.value)}
    arrays = [array for array in map(constant_value, found) if array is not None]
    return sum(array.nbytes for array in arrays if array.dtype == np.uint8)


def check(module, program, tokens):
    (expected,) = run_torch(program, tokens)
    for run in (Interpreter(module), qnn_ext.build(module, num_threads=1)):
        np.testing.assert_allclose(run(tokens.numpy()), expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.sampled("bits")
@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("granularity", [PerGroup(16), PerAxis(0)], ids=["groups", "rows"])
@pytest.mark.parametrize("mapping", ["SYMMETRIC", "ASYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR", "HQQ"])
def test_linear(dynamic, bits, granularity, mapping):
    dtype = getattr(torch, f"int{bits}")
    chosen = IntxChooseQParamsAlgorithm.HQQ_SCALE_ONLY if mapping == "HQQ" else IntxChooseQParamsAlgorithm.AFFINE
    kind = MappingType.SYMMETRIC if mapping == "HQQ" else MappingType[mapping]
    if dynamic:
        config = Int8DynamicActivationIntxWeightConfig(
            weight_dtype=dtype,
            weight_granularity=granularity,
            weight_mapping_type=kind,
            intx_choose_qparams_algorithm=chosen,
        )
    else:
        config = IntxWeightOnlyConfig(
            weight_dtype=dtype, granularity=granularity, mapping_type=kind, intx_choose_qparams_algorithm=chosen
        )
    program, tokens = program_of(config)
    module = from_exported_program(program)
    operator = "blockwise_dense_int8" if dynamic else "blockwise_dense"
    assert module.script().count(f"R.qnn.{operator}(") == 2 and "R.matmul" not in module.script()
    assert packed_bytes(module) <= 64 * (32 + 50) * (2 if bits < 3 else 4 if bits < 5 else 8) / 8 * 1.13
    check(module, program, tokens)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("granularity", [PerGroup(16), PerAxis(0)], ids=["groups", "rows"])
def test_embedding(bits, granularity):
    config = IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(16))
    table = IntxWeightOnlyConfig(weight_dtype=getattr(torch, f"int{bits}"), granularity=granularity)
    program, tokens = program_of(config, table)
    module = from_exported_program(program)
    assert "R.qnn.blockwise_dequantize(" in module.script()
    assert packed_bytes(module) == 64 * (32 + 50) // 2 + 50 * 32 * bits // 8
    check(module, program, tokens)


def test_scales_that_are_not_finite():
    """torchao divides by zero for one bit without clipping."""
    config = IntxWeightOnlyConfig(weight_dtype=torch.int1, mapping_type=MappingType.SYMMETRIC_NO_CLIPPING_ERR)
    program, _ = program_of(config)
    with pytest.raises(
        ModelFormatError, match=r"dequantize_affine.*the scales and zero points of a weight must be finite"
    ):
        from_exported_program(program)


# ---- NVFP4 -----------------------------------------------------------------------------------------------------------


class Normalized(nn.Module):
    """PyTorch decomposes the normalization, and so sees the whole program."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.head = nn.RMSNorm(64), nn.Linear(64, 48), nn.Linear(48, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.layer(self.norm(x))))


def nvfp4(dynamic: bool = False):
    config = pytest.importorskip("torchao.prototype.mx_formats").NVFP4WeightOnlyConfig(dynamic)
    torch.manual_seed(0)
    network, x = Normalized().eval(), torch.randn(3, 64)
    quantize_(network, config)
    return network, torch.export.export(network, (x,)), x


@pytest.mark.parametrize("dynamic", [False, True])
def test_floats_of_4_bits(dynamic):
    """Blocks of 16 floats (e2m1) become integers, with another scale for all of them where that is quantized, too."""
    network, program, x = nvfp4(dynamic)
    module = qnn_ext.from_pytorch(program)
    assert module.script().count("R.qnn.blockwise_dense") == 2
    assert packed_bytes(module) == 64 * 48 + 48 * 16
    with torch.no_grad():
        expected = network(x).numpy()
    for run in (Interpreter(module), qnn_ext.build(module, num_threads=1)):
        np.testing.assert_allclose(run(x.numpy()), expected, rtol=0, atol=2e-6 * np.abs(expected).max())
    assert type(program.state_dict["layer.weight"]).__name__ == "NVFP4Tensor"  # the caller's program stays


def test_an_input_called_as_a_function_of_python_s():
    """`input`, as that of Sequential and of many layers: copies of a graph give such nodes other names."""
    config = pytest.importorskip("torchao.prototype.mx_formats").NVFP4WeightOnlyConfig()
    network, x = nn.Sequential(nn.Linear(64, 48)).eval(), torch.randn(3, 64)
    quantize_(network, config)
    module = qnn_ext.from_pytorch(torch.export.export(network, (x,)))
    assert [port.name for port in module.inputs] == ["input"]
    assert "R.qnn.blockwise_dense" in module.script()


@pytest.mark.parametrize(
    "change",
    [
        lambda scale: torch.full_like(scale, float("nan")),
        lambda scale: scale[:-1].clone(),
        lambda scale: scale.reshape(-1)[:0].clone(),
    ],
)
def test_damaged_scales_of_floats(change):
    _, program, _ = nvfp4()
    weight = program.state_dict["layer.weight"]
    weight.scale = change(weight.scale)
    with pytest.raises(ModelFormatError, match=r"layer\.weight.*damaged.*quantize the model again"):
        qnn_ext.from_pytorch(program)
