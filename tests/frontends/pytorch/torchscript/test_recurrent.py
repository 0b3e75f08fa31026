"""Float LSTM, GRU and RNN of TorchScript, whole layers and single cells; cells that are dynamically quantized."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import qnn_ext
from qnn_ext.errors import UnsupportedOperatorError
from qnn_ext.frontends.pytorch import from_pytorch
from tests.frontends.pytorch.recurrent import LAYERS, check, network

from .oracle import require_exact

pytestmark = pytest.mark.filterwarnings("ignore")


def run(scripted, inputs, compiled=False):
    """The results of the imported module."""
    module = from_pytorch(scripted, inputs)
    arrays = [value.numpy() for value in inputs]
    runner = qnn_ext.build(module, num_threads=1) if compiled else qnn_ext.Interpreter(module)
    return list(runner.run(arrays).values())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name, with_states):
    module, inputs = network(name, with_states)
    traced = torch.jit.trace(module, inputs, check_trace=False)
    check(module, inputs, run(traced, inputs, compiled=name == "gru" and with_states))


class Steps(nn.Module):
    """Two steps of a cell."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state = self.cell(x[0])
        state = self.cell(x[1], state)
        return state if isinstance(state, tuple) else (state,)


CELLS = {
    "lstm": lambda: nn.LSTMCell(5, 4),
    "gru": lambda: nn.GRUCell(5, 4),
    "rnn": lambda: nn.RNNCell(5, 4),
    "relu": lambda: nn.RNNCell(5, 4, nonlinearity="relu"),
}


class Scripted(nn.Module):
    """One step of a cell in a script, where the operator stays whole."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor):
        return self.cell(x[0])


@pytest.mark.parametrize("kind", CELLS)
def test_cells(kind):
    """Traced, where PyTorch takes them apart and computes in place, and scripted."""
    torch.manual_seed(1)
    x = torch.randn(2, 3, 5)
    steps = Steps(CELLS[kind]()).eval()
    check(steps, (x,), run(torch.jit.trace(steps, (x,), check_trace=False), (x,)))
    one = Scripted(CELLS[kind]()).eval()
    scripted = torch.jit.script(one)
    assert f"aten::{'rnn_tanh' if kind == 'rnn' else 'rnn_relu' if kind == 'relu' else kind}_cell" in str(
        scripted.inlined_graph
    )
    with torch.no_grad():
        expected = copy.deepcopy(one).double()(x.double())
    expected = expected if isinstance(expected, tuple) else (expected,)
    for result, real in zip(run(scripted, (x,)), expected, strict=True):
        np.testing.assert_allclose(result, real.numpy(), rtol=0, atol=16 * 2.0**-24)


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16])
@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn", "relu"])
def test_quantized_cells(kind, dtype):
    """Integers are equal; the gates' sigmoid and tanh differ by some units in the last place."""
    require_exact("x86")
    torch.manual_seed(2)
    torch.backends.quantized.engine = "x86"
    whole = torch.ao.quantization.quantize_dynamic(
        Scripted(CELLS[kind]()).eval(), {nn.LSTMCell, nn.GRUCell, nn.RNNCell}, dtype=dtype
    )
    x = torch.randn(2, 3, 5)
    with torch.no_grad():
        expected = whole(x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    scripted = torch.jit.script(whole)
    assert "cell_dynamic" in str(scripted.inlined_graph)
    module = from_pytorch(scripted, (x,), engine="x86")
    results = list(qnn_ext.Interpreter(module).run([x.numpy()]).values())
    for result, real in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, real.numpy(), rtol=0, atol=16 * 2.0**-24)
    reason = "gates" if dtype is torch.qint8 else "float16"
    assert {note.operator for note in module.notes if reason in note.reason} == {f"quantized::{_operator(kind)}"}


def _operator(kind):
    name = {"rnn": "rnn_tanh", "relu": "rnn_relu"}.get(kind, kind)
    return f"quantized_{name}_cell_dynamic"


class States(nn.Module):
    """A layer with states of its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor):
        return self.layer(x)[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_layers_with_float16_weights(kind):
    torch.manual_seed(3)
    module = States(kind(5, 4, num_layers=2, bidirectional=True)).eval()
    half = torch.ao.quantization.quantize_dynamic(module, {kind}, dtype=torch.float16)
    x = torch.randn(6, 2, 5)
    traced = torch.jit.trace(half, x, check_trace=False)
    (found,) = run(traced, (x,))
    np.testing.assert_allclose(found, half(x).detach().numpy(), rtol=0, atol=16 * 2.0**-24)
    assert np.abs(found - module(x).detach().numpy()).max() > 1e-5  # weights of float32 would be far from that


def test_dropout_while_training_is_refused():
    module, inputs = network("lstm with dropout in eval mode", False)
    with pytest.raises(UnsupportedOperatorError, match="eval"):
        from_pytorch(torch.jit.trace(module.train(), inputs, check_trace=False), inputs)


def test_quantized_projection_is_refused():
    """QNNPACK reads weights that are not there; the other engines refuse themselves."""
    if "qnnpack" not in torch.backends.quantized.supported_engines:
        pytest.skip("PyTorch has no QNNPACK here")
    torch.backends.quantized.engine = "qnnpack"
    layer = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LSTM(8, 8, proj_size=4)), {nn.LSTM}, torch.qint8)
    x = torch.randn(5, 2, 8)
    traced = torch.jit.trace(layer, x, check_trace=False)
    with pytest.raises(UnsupportedOperatorError, match="proj_size"):
        from_pytorch(traced, (x,), engine="qnnpack")
