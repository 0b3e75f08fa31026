"""Quantized tables: the rows have PyTorch's bits; sums of rows are float32 sums in another order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import qnn_ext
from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
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


# ---- tables as tensors of bytes, also in programs of torch.export ---------------------------------------------------

KEPT = np.where(np.arange(ROWS) % 3 == 1, -1, np.cumsum(np.arange(ROWS) % 3 != 1) - 1).astype(np.int32)
FORMS = {
    "offsets": (OFFSETS,),
    "int32": (OFFSETS.int(),),
    "weights": (OFFSETS, WEIGHTS),
    "rows of indices": (),
}


class Bags(torch.nn.Module):
    """torch.ops.quantized.embedding_bag_*_rowwise_offsets; a pruned table lacks the rows whose place in KEPT is -1."""

    def __init__(self, bits: str, pruned: bool = False, kept: np.ndarray = KEPT, closed: bool = False) -> None:
        super().__init__()
        table = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(3))
        table = table[torch.from_numpy(KEPT >= 0)] if pruned else table
        self.register_buffer("table", getattr(torch.ops.quantized, f"embedding_bag_{bits}_prepack")(table))
        self.register_buffer("kept", torch.from_numpy(kept.copy()) if pruned or kept is not KEPT else None)
        self.operator = getattr(torch.ops.quantized, f"embedding_bag_{bits}_rowwise_offsets")
        self.closed = closed

    def forward(self, indices, offsets=None, weights=None):
        pruned = self.kept is not None
        return self.operator(self.table, indices, offsets, False, 0, pruned, weights, self.kept, self.closed)


def compared(network, *inputs, exported=False, build=False):
    """Raises unless the sums are PyTorch's but for the order of their terms."""
    program = torch.export.export(network, inputs) if exported else torch.jit.trace(network, inputs)
    module = from_pytorch(program, inputs)
    engine = qnn_ext.build(module) if build else qnn_ext.Interpreter(module)
    (ours,) = engine.run([value.numpy() for value in inputs]).values()
    theirs = network(*inputs).detach().numpy()
    assert np.abs(theirs).max() > 1
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=4e-6)


def some_indices(form: str = "offsets") -> torch.Tensor:
    indices = torch.randint(0, ROWS, (COUNT,), generator=torch.Generator().manual_seed(7))
    return indices.int() if form == "int32" else indices if FORMS[form] else indices.reshape(4, 5)


@pytest.mark.parametrize("bits", ["byte", "4bit", "2bit"])
@pytest.mark.parametrize("pruned", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_tables_of_bytes(bits, pruned, form):
    compared(Bags(bits, pruned), some_indices(form), *FORMS[form], build=form == "weights")


@pytest.mark.parametrize("bits", ["byte", "4bit", "2bit"])
@pytest.mark.parametrize("pruned", [False, True])
def test_exported_tables_of_bytes(bits, pruned):
    compared(Bags(bits, pruned), some_indices(), OFFSETS, WEIGHTS, exported=True)


def test_the_last_offset_of_tables_of_bytes():
    closed = torch.tensor([0, 3, 3, 20])
    compared(Bags("byte", closed=True), some_indices(), closed)
    compared(Bags("byte", closed=True), some_indices(), closed, exported=True)


def test_a_mapping_to_the_only_row_0_prunes_nothing():
    compared(Bags("byte", kept=np.zeros(1, np.int32)), some_indices(), OFFSETS)


def test_mappings_beyond_the_table_are_refused():
    network = Bags("byte", pruned=True)
    program = torch.export.export(network, (some_indices(), OFFSETS))
    program.state_dict["kept"][5] = ROWS
    with pytest.raises(ModelFormatError, match="compressed_indices_mapping"):
        from_pytorch(program)


@pytest.mark.parametrize("bits", ["byte", "4bit", "2bit"])
def test_tables_packed_in_the_graph(bits):
    """A constant is packed at import; one packed at run time is refused."""

    class Packing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(3)))

        def forward(self, indices, offsets, table=None):
            table = self.table if table is None else table
            packed = getattr(torch.ops.quantized, f"embedding_bag_{bits}_prepack")(table)
            return getattr(torch.ops.quantized, f"embedding_bag_{bits}_rowwise_offsets")(packed, indices, offsets)

    for exported in (False, True):
        compared(Packing(), some_indices(), OFFSETS, exported=exported)
        with pytest.raises(UnsupportedOperatorError, match="make it a buffer"):
            compared(Packing(), some_indices(), OFFSETS, torch.randn(ROWS, WIDTH), exported=exported)


def test_modules_quantized_by_pytorch():
    """torch.ao.nn.quantized.Embedding looks 4-bit tables up as bytes."""
    dtypes = {torch.quint8: "", torch.quint4x2: "_4bit"}

    quantization = torch.ao.quantization
    torch.manual_seed(0)
    for dtype, name in dtypes.items():
        qconfig = getattr(quantization, f"float_qparams_weight_only_qconfig{name}")
        kinds = {torch.nn.EmbeddingBag: qconfig, torch.nn.Embedding: qconfig}
        bags = torch.nn.Sequential(torch.nn.EmbeddingBag(ROWS, WIDTH, mode="sum"), torch.nn.Linear(WIDTH, 8))
        compared(quantization.quantize_dynamic(bags, kinds, dtype=dtype), some_indices("rows of indices"))
    lookup = quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Embedding(ROWS, WIDTH)), kinds, dtype=dtype)
    with pytest.raises(UnsupportedOperatorError, match="quint8"):
        compared(lookup, some_indices())


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_float_bags(mode):
    """Of the operator's results, nothing reads the others."""
    bags = torch.nn.EmbeddingBag(ROWS, WIDTH, mode=mode, padding_idx=3)
    compared(bags, some_indices(), OFFSETS)
    compared(bags, some_indices("rows of indices"))
