"""Programs in bfloat16 are computed in float32, from the same weights: closer to their real results than PyTorch is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8DynamicActivationIntxWeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    PerGroup,
    quantize_,
)
from torchao.quantization.quantize_.workflows import Int4ChooseQParamsAlgorithm

import qnn_ext
from qnn_ext import Interpreter, ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.pytorch.exported.converters.tinygemm import unpacked

HALF = torch.bfloat16
LAST = 2.0**-8  # what rounding to bfloat16 changes


class Decoder(nn.Module):
    """A cache of 16 places, one head, and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(40, 64), nn.RMSNorm(64), nn.Linear(64, 48, bias=False)
        self.qkv, self.gate, self.down = nn.Linear(64, 192), nn.Linear(64, 128), nn.Linear(128, 64)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, 16, 64), persistent=False)

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        query, key, value = self.qkv(self.norm(x)).chunk(3, dim=-1)
        self.keys.index_copy_(1, places, key)
        self.values.index_copy_(1, places, value)
        mask = torch.arange(16) <= places[:, None]
        x = x + F.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask)
        return self.head(x + self.down(F.silu(self.gate(self.norm(x)))))


CONFIGS = {
    "float": None,
    "int8": Int8WeightOnlyConfig(),
    "int4 in groups": IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32)),
    "int4 for CPUs": PrototypeInt4WeightOnlyConfig(32, set_inductor_config=False),
    "int4 for CPUs, HQQ": PrototypeInt4WeightOnlyConfig(32, Int4ChooseQParamsAlgorithm.HQQ, set_inductor_config=False),
    "8da8w": Int8DynamicActivationInt8WeightConfig(),
    "8da4w": Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32)),
}
ARGUMENTS = torch.tensor([[3, 39, 0, 7, 7]]), torch.arange(5)


def decoder(kind: str) -> nn.Module:
    torch.manual_seed(0)
    model = Decoder().to(HALF).eval().requires_grad_(False)
    if CONFIGS[kind] is not None:
        quantize_(model, CONFIGS[kind])
    return model


def in_float32(model: nn.Module) -> nn.Module:
    """The same weights, dequantized, in a network of float32."""
    plain = Decoder().eval().requires_grad_(False)
    weights = dict(model.named_parameters())
    for name, parameter in plain.named_parameters():
        weight = weights[name]
        identity = torch.eye(weight.shape[-1], dtype=HALF)
        real = weight if type(weight) in (torch.Tensor, nn.Parameter) else F.linear(identity, weight).T
        parameter.copy_(real.float())
    return plain


def away(found: np.ndarray, wanted: torch.Tensor) -> float:
    """The distance from what is wanted, relative to it."""
    real = wanted.double().numpy()
    return float(np.linalg.norm(found.astype(np.float64) - real) / np.linalg.norm(real))


@pytest.mark.parametrize("kind", CONFIGS)
def test_language_models(kind):
    model = decoder(kind)
    program = torch.export.export(model, ARGUMENTS)
    module = qnn_ext.from_pytorch(program)
    assert all(state.initial.dtype == np.float32 for state in module.states)
    theirs = model(*ARGUMENTS)
    engine = qnn_ext.build(module, num_threads=1)
    for run in (engine, Interpreter(module)):
        found = run(*[argument.numpy() for argument in ARGUMENTS])
        assert found.dtype == np.float32
        dynamic = kind.startswith("8da")  # a value at a midpoint is rounded up or down by its last bit
        assert away(found, theirs) < (0.03 if dynamic else 4 * LAST)
        if not dynamic:
            real = in_float32(model)(*ARGUMENTS)
            assert away(found, real) < 0.6 * away(theirs.float().numpy(), real)
    if kind != "float":
        operators = " ".join(kernel.operators for kernel in engine.kernels)
        assert operators.count("dense") >= 4, operators


@pytest.mark.parametrize("kind", ["int4 for CPUs", "8da4w"])
def test_files(kind, tmp_path):
    program = torch.export.export(decoder(kind), ARGUMENTS)
    torch.export.save(program, tmp_path / "decoder.pt2")
    arguments = [argument.numpy() for argument in ARGUMENTS]
    module = qnn_ext.from_pytorch(tmp_path / "decoder.pt2")
    np.testing.assert_array_equal(
        Interpreter(module)(*arguments), Interpreter(qnn_ext.from_pytorch(program))(*arguments)
    )


def test_inputs_and_outputs_are_float32():
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.tensor(0.3, dtype=HALF)

    x = torch.linspace(-2, 2, 12, dtype=HALF)
    engine = qnn_ext.build(qnn_ext.from_pytorch(torch.export.export(Scaled(), (x,))), num_threads=1)
    assert (engine.inputs[0].dtype, engine.outputs[0].dtype) == ("float32", "float32")
    factor = torch.tensor(0.3, dtype=HALF).float()
    np.testing.assert_array_equal(engine(x.float().numpy()), (x.float() * factor).numpy())


def test_casts_round():
    """Where a program of float32 asks for it; but not values of bfloat16, which are float32 here."""

    class Rounded(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.to(HALF).to(torch.float32) * 3

    x = torch.cat([torch.randn(500), torch.tensor([1 + LAST, 1 + 3 * LAST, 1e38, 1e-40, 0.0])])
    module = qnn_ext.from_pytorch(torch.export.export(Rounded(), (x,)))
    for run in (qnn_ext.build(module, num_threads=1), Interpreter(module)):
        np.testing.assert_array_equal(run(x.numpy()), Rounded()(x).numpy())


@pytest.mark.parametrize("shape", [(16, 32), (64, 64), (80, 96), (128, 32), (208, 160)])
def test_int4_weights_are_unpacked(shape, rng):
    values = rng.integers(0, 16, shape).astype(np.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.from_numpy(values).int(), 1)
    np.testing.assert_array_equal(unpacked(packed.numpy()), values)


def test_zeros_of_int4_weights(rng):
    """w = (q − 8) · scale + zero, with zeros of their own for each group."""
    values = torch.from_numpy(rng.integers(0, 16, (32, 64))).int()
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1)
    parts = torch.from_numpy(rng.uniform(0.1, 1, (2, 32, 2))).to(HALF)

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("packed", packed)
            self.register_buffer("parts", parts)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.packed, 32, self.parts)

    x = torch.from_numpy(rng.normal(size=(3, 64))).to(HALF)
    program = torch.export.export(Product(), (x,))
    scale, zero = (parts[..., index].T.double().repeat_interleave(32, dim=1) for index in (0, 1))
    real = x.double() @ ((values - 8).double() * scale + zero).T
    found = qnn_ext.build(qnn_ext.from_pytorch(program), num_threads=1)(x.float().numpy())
    np.testing.assert_allclose(found, real.numpy(), rtol=0, atol=1e-5 * real.abs().max())
    for damaged, error, message in (
        (parts[:1], ModelFormatError, "in groups of 32 and scales of shape"),
        (parts * torch.nan, ModelFormatError, "must be finite"),
        (parts * torch.tensor([0, 1], dtype=HALF), UnsupportedOperatorError, "the scale 0 and another zero"),
    ):
        program._state_dict["parts"] = damaged
        with pytest.raises(error, match=message):
            qnn_ext.from_pytorch(program)
