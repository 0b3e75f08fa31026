"""PT2E programs against PyTorch, layer by layer: a quantized value may differ by one step, and only on a tie.

PyTorch runs these programs in float32, where a sum of products can fall to the other side of a tie; the integer sum is
exact. How many values differ is asserted for each network."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer.embedding_quantizer import EmbeddingQuantizer

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.errors import UnsupportedOperatorError
from qnn_ext.frontends.pytorch.exported import from_exported_program
from qnn_ext.op.base import definition_of

from .networks import (
    NETWORKS,
    QUANTIZERS,
    Cnn,
    images,
    layer_differences,
    pt2e,
    run_torch,
    seeded,
    unit,
    x86_quantizer,
    xnnpack_quantizer,
)

# Averages of four integers fall on ties; in all else these programs equal PyTorch
MOST_DIFFERENCES = {("cnn", "x86"): 5}


def operators(module: qnn_ext.QnnModule) -> Counter:
    """How often each operator is called."""
    calls = (binding.value for block in module.ir["main"].body.blocks for binding in block.bindings)
    return Counter(str(call.op.name).removeprefix("relax.") for call in calls if hasattr(call, "op"))


def is_integer_product(module: qnn_ext.QnnModule) -> bool:
    """Whether no product of weights runs in float."""
    found = operators(module)
    return not any(found[name] for name in ("nn.conv1d", "nn.conv2d", "nn.conv3d"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("quantizer", QUANTIZERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_static(network, quantizer):
    make, data = NETWORKS[network]
    program = pt2e(seeded(make), data(4), QUANTIZERS[quantizer]())
    x = data(1, seed=99)[0]
    different, _, largest = layer_differences(program, x)
    assert different <= MOST_DIFFERENCES.get((network, quantizer), 0) and largest <= 1
    module = from_exported_program(program)
    compiled, oracle = qnn_ext.build(module)(x.numpy()), Interpreter(module)(x.numpy())
    np.testing.assert_allclose(compiled, oracle, rtol=0, atol=1e-6)
    assert is_integer_product(module)
    if not different:
        np.testing.assert_allclose(oracle, run_torch(program, x)[0], rtol=0, atol=1e-6)


def test_all_layers_of_a_cnn_are_integer():
    module = from_exported_program(pt2e(seeded(Cnn), images(4), x86_quantizer()))
    found = operators(module)
    assert found["qnn.conv2d"] == 7 and found["qnn.dense"] == 1
    assert not [note for note in module.notes if "conv" in note.operator or "matmul" in note.operator]


def test_weights_stay_integers_and_dead_parameters_stay_out():
    module = from_exported_program(pt2e(seeded(Cnn), images(4), x86_quantizer()))
    for block in module.ir["main"].body.blocks:
        for binding in block.bindings:
            if definition_of(binding.value) is not None and "conv2d" in binding.value.op.name:
                assert str(binding.value.args[1].ty.dtype) == "int8"
    assert "batch_norm" not in module.script()


@pytest.mark.parametrize("quantizer", ["x86", "xnnpack"])
def test_float_weights_quantized_in_the_graph(quantizer):
    """fold_quantize=False leaves quantize operators on float weights: they are computed at import."""
    make, data = NETWORKS["encoder"]
    program = pt2e(seeded(make), data(2), QUANTIZERS[quantizer](), fold_quantize=False)
    x = data(1, seed=99)[0]
    assert layer_differences(program, x)[0] == 0
    assert "model does not quantize" not in str([n for n in from_exported_program(program).notes if "linear" in n.node])


class Small(nn.Module):
    """Convolution with batch normalization and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.dense = unit(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dense(self.conv(x).mean((2, 3)))


@pytest.mark.exhaustive("cnn_pt2e_x86_qat in tests/models")
def test_quantization_aware_training():
    program = pt2e(seeded(Small), images(2), x86_quantizer(is_qat=True), qat=True)
    x = images(1, seed=99)[0]
    different, total, largest = layer_differences(program, x)
    assert different <= total // 1000 and largest <= 1
    assert operators(from_exported_program(program))["qnn.conv2d"] == 1


@pytest.mark.parametrize("quantizer", [x86_quantizer, xnnpack_quantizer])
def test_decomposed_program(quantizer):
    """run_decompositions splits linear layers into permute and addmm."""
    make, data = NETWORKS["encoder"]
    program = pt2e(seeded(make), data(2), quantizer())
    x = data(1, seed=99)[0]
    whole, split = (Interpreter(from_exported_program(p))(x.numpy()) for p in (program, program.run_decompositions()))
    np.testing.assert_allclose(split, whole, rtol=0, atol=1e-6)
    assert operators(from_exported_program(program.run_decompositions()))["qnn.dense"] >= 6


def test_names_are_the_layers():
    script = from_exported_program(pt2e(seeded(Small), images(2), x86_quantizer())).script()
    assert "conv_0" in script and "dense" in script


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense = nn.Embedding(50, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.table(x)
        return rows, self.dense(rows)


def test_a_table_with_zero_points_that_are_no_integers_stays_packed():
    """As torchao's EmbeddingQuantizer has them: (q − zero_point) · scale, all in float32."""
    x = torch.randint(0, 50, (2, 12), generator=torch.Generator().manual_seed(1))
    program = pt2e(seeded(Table), [x], EmbeddingQuantizer())
    module = from_exported_program(program)
    rows, dense = (result.detach().numpy() for result in program.module()(x))
    found, product = Interpreter(module).run([x.numpy()]).values()
    np.testing.assert_array_equal(found, rows)
    np.testing.assert_allclose(product, dense, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(next(iter(qnn_ext.build(module).run([x.numpy()]).values())), rows)
    assert operators(module)["qnn.blockwise_dequantize"] == 1


@pytest.mark.parametrize("axis", [0, 1])
def test_zero_points_that_are_no_integers(axis):
    generator = torch.Generator().manual_seed(axis)
    shape = (3, 4, 5)
    q = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    scale, zero = (torch.rand(shape[axis], generator=generator) * factor + 0.01 for factor in (0.1, 255))

    class Dequantized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.quantized_decomposed.dequantize_per_channel(x, scale, zero, axis, 0, 255, torch.uint8)

    module = from_exported_program(torch.export.export(Dequantized(), (q,)))
    np.testing.assert_array_equal(Interpreter(module)(q.numpy()), Dequantized()(q).numpy())


def test_activations_whose_zero_points_are_no_integers_are_refused():
    class Quantized(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scale, zero = torch.full((4,), 0.1), torch.full((4,), 2.5)
            return torch.ops.quantized_decomposed.quantize_per_channel(x, scale, zero, 1, 0, 255, torch.uint8)

    with pytest.raises(UnsupportedOperatorError, match=r"node 'quantize_per_channel'.*no integers.*per_tensor_affine"):
        from_exported_program(torch.export.export(Quantized(), (torch.randn(2, 4),)))


def test_a_program_lowered_for_pytorchs_kernels_names_what_to_import():
    from torchao.quantization.pt2e.lowering import lower_pt2e_quantized_to_x86

    x = torch.randn(2, 16)
    prepared = prepare_pt2e(torch.export.export(nn.Sequential(nn.Linear(16, 4)).eval(), (x,)).module(), x86_quantizer())
    prepared(x)
    lowered = lower_pt2e_quantized_to_x86(convert_pt2e(prepared), (x,))
    with pytest.raises(UnsupportedOperatorError, match=r"onednn\.qlinear_pointwise.*what convert_pt2e returns"):
        from_exported_program(torch.export.export(lowered, (x,)))
