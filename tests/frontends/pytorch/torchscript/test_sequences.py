"""Packed sequences: the same results as PyTorch's for lengths that the import has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import qnn_ext
from qnn_ext.errors import InputError, UnsupportedOperatorError
from qnn_ext.frontends.pytorch import from_pytorch
from qnn_ext.passes.bodies import has_loops

from .oracle import require_exact

pytestmark = pytest.mark.filterwarnings("ignore")

BATCH, STEPS, DEPTH = 4, 5, 3
BOTH = {"bidirectional": True, "num_layers": 2}


class Packed(nn.Module):
    """A layer on packed sequences, from padded ones to padded ones."""

    def __init__(self, layer: nn.Module, in_order: bool, total: int | None = None, padding: float = 0.0) -> None:
        super().__init__()
        self.layer = layer
        self.in_order = in_order
        self.batch_first = bool(layer.batch_first)
        self.total = total
        self.padding = padding

    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        packed = pack_padded_sequence(x, lengths, batch_first=self.batch_first, enforce_sorted=self.in_order)
        y, last = self.layer(packed)
        y, n = pad_packed_sequence(y, self.batch_first, self.padding, self.total)
        return y, n, last


class WithState(Packed):
    """The same with initial states, which are permuted with the sequences."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor, state: torch.Tensor):
        packed = pack_padded_sequence(x, lengths, batch_first=self.batch_first, enforce_sorted=self.in_order)
        y, last = self.layer(packed, state)
        y, n = pad_packed_sequence(y, self.batch_first, self.padding, self.total)
        return y, n, last


def samples(layer: nn.Module, count: int = 3, in_order: bool = False) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches with lengths; the longest takes all steps. Beyond a sequence's end there is no number."""
    found = []
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, STEPS + 1, (BATCH,), generator=generator)
        lengths[seed % BATCH] = STEPS
        x = torch.randn(BATCH, STEPS, DEPTH, generator=generator)
        x[torch.arange(STEPS) >= lengths[:, None]] = torch.nan
        if in_order:
            lengths, order = lengths.sort(descending=True)
            x = x[order]
        found.append((x if layer.batch_first else x.transpose(0, 1).contiguous(), lengths))
    return found


def flat(values: Any) -> list[np.ndarray]:
    if isinstance(values, torch.Tensor):
        return [values.detach().numpy()]
    return [array for value in values for array in flat(value)]


def check(module: nn.Module, graph: Any, inputs: Sequence[tuple[torch.Tensor, ...]], engine: str | None = None) -> None:
    """The interpreter and one program with loops give PyTorch's results."""
    imported = from_pytorch(graph, inputs[0], engine=engine)
    assert has_loops(imported.ir)
    built = qnn_ext.build(imported, num_threads=1)
    assert built.compiled[0].program is not None
    for given in inputs:
        with torch.no_grad():
            expected = flat(module(*given))
        for runner in (qnn_ext.Interpreter(imported), built):
            results = list(runner.run([value.numpy() for value in given]).values())
            for result, wanted in zip(results, expected, strict=True):
                assert result.dtype == wanted.dtype
                np.testing.assert_allclose(result, wanted, rtol=0, atol=16 * 2.0**-24)


LAYERS = {
    "lstm": lambda: nn.LSTM(DEPTH, 4),
    "lstm of two layers": lambda: nn.LSTM(DEPTH, 4, batch_first=True, **BOTH),
    "gru": lambda: nn.GRU(DEPTH, 4, batch_first=True),
    "gru of two layers": lambda: nn.GRU(DEPTH, 4, **BOTH),
    "rnn": lambda: nn.RNN(DEPTH, 4, **BOTH),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, in_order, scripted):
    torch.manual_seed(1)
    layer = LAYERS[name]()
    module, inputs = Packed(layer, in_order).eval(), samples(layer, in_order=in_order)
    graph = torch.jit.script(module) if scripted else torch.jit.trace(module, inputs[0], check_trace=False)
    check(module, graph, inputs)


def test_total_length_and_padding():
    torch.manual_seed(2)
    layer = nn.GRU(DEPTH, 4, batch_first=True, bidirectional=True)
    module = Packed(layer, False, STEPS + 2, -1.5).eval()
    check(module, torch.jit.script(module), samples(layer))


def test_initial_states():
    torch.manual_seed(3)
    layer = nn.GRU(DEPTH, 4, **BOTH)
    inputs = [(*sample, torch.randn(4, BATCH, 4)) for sample in samples(layer)]
    module = WithState(layer, False).eval()
    check(module, torch.jit.trace(module, inputs[0], check_trace=False), inputs)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dynamically_quantized_layers(kind):
    """Neither padding nor sequences that have ended or wait take part in the ranges of activations."""
    require_exact("x86")
    torch.manual_seed(4)
    torch.backends.quantized.engine = "x86"
    wrap, states = (Packed, False) if kind is nn.LSTM else (WithState, True)
    module = wrap(kind(DEPTH, 4, **BOTH), False).eval()
    inputs: list[Any] = samples(module.layer)
    if states:
        inputs = [(*sample, 3 * torch.randn(4, BATCH, 4)) for sample in inputs]
    module = torch.ao.quantization.quantize_dynamic(module, {kind}, dtype=torch.qint8)
    check(module, torch.jit.script(module), inputs, "x86")
    check(module, torch.jit.trace(module, inputs[0], check_trace=False), inputs, "x86")


def test_known_lengths():
    """The result has as many steps as the longest sequence."""
    torch.manual_seed(5)

    class Known(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(DEPTH, 4)

        def forward(self, x):
            packed = pack_padded_sequence(x, torch.tensor([2, 4, 1, 3]), enforce_sorted=False)
            y, last = self.layer(packed)
            return pad_packed_sequence(y)[0], last

    module, x = Known().eval(), torch.randn(STEPS, BATCH, DEPTH)
    check(module, torch.jit.trace(module, (x,), check_trace=False), [(x,)])


def test_lengths_out_of_range():
    module = Packed(nn.GRU(DEPTH, 4), False).eval()
    inputs = samples(module.layer)
    imported = from_pytorch(torch.jit.script(module), inputs[0])
    for wrong in ([5, 0, 2, 1], [5, 6, 2, 1], [5, 2**32 + 1, 2, 1]):
        given = [inputs[0][0].numpy(), np.array(wrong)]
        for runner in (qnn_ext.Interpreter(imported), qnn_ext.build(imported, num_threads=1)):
            with pytest.raises(InputError, match="pack_padded_sequence"):
                runner.run(given)


def refused(module: nn.Module, inputs: Sequence[torch.Tensor], pattern: str) -> None:
    graph = torch.jit.trace(module.eval(), tuple(inputs), check_trace=False)
    with pytest.raises(UnsupportedOperatorError, match=pattern):
        from_pytorch(graph, tuple(inputs))


def test_refusals():
    class Changed(Packed):
        def forward(self, x, lengths):
            packed = pack_padded_sequence(x, lengths)
            return pad_packed_sequence(PackedSequence(packed.data * 2, packed.batch_sizes))[0]

    class Unpadded(Packed):
        def forward(self, x, lengths):
            return self.layer(pack_padded_sequence(x, lengths))[0].data

    class Foreign(Packed):
        def forward(self, x):
            return self.layer(PackedSequence(x[:, 0], torch.tensor([3, 2])))[1]

    layer, x = nn.GRU(DEPTH, 4), torch.randn(STEPS, BATCH, DEPTH)
    lengths = torch.tensor([5, 4, 2, 1])
    refused(Changed(layer, True), (x, lengths), "aten::mul on the data of packed sequences")
    refused(Unpadded(layer, True), (x, lengths), "output 0 is a packed sequence")
    refused(Packed(layer, True), (x, lengths - (lengths > 4).long()), "longest sequence has 4 of 5 steps")
    refused(Foreign(layer, True), (x,), "pack_padded_sequence did not make")


@pytest.mark.parametrize("descending", [False, True])
def test_sort_and_scatter(descending):
    class Ordered(nn.Module):
        def forward(self, x, y):
            values, places = x.sort(descending=descending)
            return values, places, y.clone().scatter_(0, places, x), y.scatter(0, places[:3], values[:3]), y[places]

    inputs = (torch.tensor([3, -1, 7, 2**40, 0]), torch.tensor([10, 20, 30, 40, 50]))
    module = Ordered().eval()
    imported = from_pytorch(torch.jit.trace(module, inputs), inputs)
    for x in ([3, -1, 7, 2**40, 0], [5, 5, -(2**40), 5, 1], [0, 0, 0, 0, 0]):
        given = torch.tensor(x), inputs[1]
        expected = flat(module(*given))
        for runner in (qnn_ext.Interpreter(imported), qnn_ext.build(imported, num_threads=1)):
            for result, wanted in zip(runner.run([value.numpy() for value in given]).values(), expected, strict=True):
                np.testing.assert_array_equal(result, wanted)
