"""Quantized tables: the rows have PyTorch's bits; sums of rows are float32 sums in another order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import qnn_ext
from qnn_ext.frontends.pytorch import from_pytorch

ROWS, WIDTH, COUNT = 50, 24, 20
DTYPES = {"byte": torch.quint8, "4bit": torch.quint4x2}
OFFSETS = torch.tensor([0, 3, 3, 9])
WEIGHTS = torch.linspace(-2, 3, COUNT)
BAGS = {
    "offsets": {"offsets": OFFSETS},
    "the last offset": {"offsets": torch.tensor([0, 3, 3, 20]), "include_last_offset": True},
    "weights": {"offsets": OFFSETS, "per_sample_weights": WEIGHTS},
    "int32": {"offsets": OFFSETS.int()},
    "rows of indices": {},
}


class Lookup(torch.nn.Module):
    """One operator of torch.ops.quantized on a random table; its tensors are inputs."""

    def __init__(self, operator: str, bits: str, **options: object) -> None:
        super().__init__()
        weight = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(3))
        observer = torch.ao.quantization.PerChannelMinMaxObserver(
            dtype=DTYPES[bits], qscheme=torch.per_channel_affine_float_qparams, ch_axis=0
        )
        observer(weight)
        table = torch.quantize_per_channel(weight, *observer.calculate_qparams(), 0, DTYPES[bits])
        self.packed = torch.ao.nn.quantized.modules.embedding_ops.EmbeddingPackedParams(ROWS, WIDTH, DTYPES[bits])
        self.packed.set_weight(table)
        self.operator = getattr(torch.ops.quantized, f"{operator}_{bits}")
        self.options = {name: value for name, value in options.items() if not isinstance(value, torch.Tensor)}
        self.names = [name for name in options if name not in self.options]

    def forward(self, indices: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        return self.operator(
            self.packed._packed_weight, indices, **dict(zip(self.names, tensors, strict=True)), **self.options
        )


def results(network: Lookup, *inputs: torch.Tensor, build: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Ours and PyTorch's."""
    module = from_pytorch(torch.jit.trace(network, inputs), inputs)
    engine = qnn_ext.build(module) if build else qnn_ext.Interpreter(module)
    (ours,) = engine.run([value.numpy() for value in inputs]).values()
    return np.asarray(ours), network(*inputs).numpy()


@pytest.mark.parametrize("bits", DTYPES)
def test_rows(bits):
    """Each is q · s + b rounded once; (q − z) · s, and a product rounded before the sum, have other last bits."""
    ours, theirs = results(Lookup("embedding", bits), torch.arange(ROWS))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("bits", DTYPES)
@pytest.mark.parametrize("kind", BAGS)
def test_bags(bits, kind):
    """The second of the first four's bags is empty."""
    options, indices = BAGS[kind], torch.randint(0, ROWS, (COUNT,), generator=torch.Generator().manual_seed(7))
    tensors = [value for value in options.values() if isinstance(value, torch.Tensor)]
    if not options:
        indices = indices.reshape(4, 5)
    elif kind == "int32":
        indices = indices.int()
    ours, theirs = results(Lookup("embedding_bag", bits, **options), indices, *tensors)
    assert ours.shape == theirs.shape == (4 if kind != "the last offset" else 3, WIDTH)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=4e-6)


def test_offsets_are_read_when_it_runs():
    network, indices = Lookup("embedding_bag", "4bit", offsets=OFFSETS), torch.arange(COUNT)
    module = from_pytorch(torch.jit.trace(network, (indices, OFFSETS)), (indices, OFFSETS))
    engine = qnn_ext.build(module)
    for offsets in (OFFSETS, torch.tensor([0, 0, 19, 20])):
        (ours,) = engine.run([indices.numpy(), offsets.numpy()]).values()
        np.testing.assert_allclose(ours, network(indices, offsets).numpy(), rtol=0, atol=1e-5)
