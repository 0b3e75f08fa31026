"""Dynamically quantized layers against PyTorch: the range of the activations is found at run time."""

import numpy as np
import pytest
import torch
import torch.ao.nn.quantized.dynamic as nnqd

import qnn_ext
from qnn_ext.frontends.pytorch import from_pytorch

from .oracle import check, require_exact, run


def weight(rng, shape, per_channel):
    values = torch.from_numpy(rng.integers(-127, 128, shape).astype(np.int8))
    if not per_channel:
        return torch._make_per_tensor_quantized_tensor(values, 0.013, 0)
    scales = torch.from_numpy(rng.uniform(0.005, 0.025, shape[0]))
    return torch._make_per_channel_quantized_tensor(values, scales, torch.zeros(shape[0], dtype=torch.long), 0)


class Linear(torch.nn.Module):
    def __init__(self, rng, per_channel, reduce_range, relu=False):
        super().__init__()
        self.layer = nnqd.Linear(32, 24)
        self.layer.set_weight_bias(
            weight(rng, (24, 32), per_channel), torch.from_numpy(rng.normal(0, 1, 24).astype(np.float32))
        )
        self.function = torch.ops.quantized.linear_relu_dynamic if relu else torch.ops.quantized.linear_dynamic
        self.reduce_range = reduce_range

    def forward(self, x):
        return self.function(x, self.layer._packed_params._packed_params, self.reduce_range)


def activations(rng, shape, kind):
    x = {
        "normal": rng.normal(0.2, 1.3, shape),
        "positive": rng.uniform(0.5, 3, shape),
        "negative": rng.uniform(-3, -0.5, shape),
        "zeros": np.zeros(shape),
        "tiny": rng.normal(0, 1e-4, shape),
    }[kind]
    return torch.from_numpy(x.astype(np.float32))


@pytest.mark.parametrize("kind", ["normal", "positive", "negative", "zeros", "tiny"])
@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("reduce_range", [True, False])
def test_linear(rng, engine, kind, per_channel, reduce_range):
    """Equal floats; oneDNN's own product orders its roundings by shape: two units in the last place."""
    if not reduce_range:
        require_exact(engine)
    module = Linear(rng, per_channel, reduce_range)
    for shape in ((7, 32), (2, 3, 32)):
        x = activations(rng, shape, kind)
        if engine == "onednn":
            result, expected = run(module, x, engine=engine)
            np.testing.assert_allclose(result, expected, rtol=1e-6, atol=4e-6)
        else:
            check(module, x, engine=engine)


def test_linear_relu(rng, engine):
    result, expected = run(Linear(rng, True, True, relu=True), activations(rng, (7, 32), "normal"), engine=engine)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=4e-6)


def test_compiled(rng, engine):
    module = Linear(rng, True, True)
    result, expected = run(module, activations(rng, (7, 32), "normal"), engine=engine, compiled=True)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=4e-6)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent(rng, kind, bidirectional, batch_first):
    """Scripted: the checks within the layer are control flow. The gates are float: a few units in the last place."""
    torch.manual_seed(0)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = getattr(torch.nn, kind)(8, 6, 2, bidirectional=bidirectional, batch_first=batch_first)

        def forward(self, x):
            y, _ = self.layer(x)
            return y

    torch.backends.quantized.engine = "x86"
    model = torch.ao.quantization.quantize_dynamic(Network().eval(), {torch.nn.LSTM, torch.nn.GRU}, dtype=torch.qint8)
    x = torch.from_numpy(rng.normal(0, 1, (3, 5, 8)).astype(np.float32))
    module = from_pytorch(torch.jit.script(model), (x,))
    np.testing.assert_allclose(qnn_ext.Interpreter(module)(x.numpy()), model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert {note.operator for note in module.notes} == {f"aten::quantized_{kind.lower()}"}


def test_hidden_state(rng):
    """The states come in as inputs and go out as outputs."""
    torch.backends.quantized.engine = "x86"
    model = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.LSTM(4, 3)), dtype=torch.qint8)[0]

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = model

        def forward(self, x, h, c):
            y, (h, c) = self.layer(x, (h, c))
            return y, h, c

    inputs = [torch.from_numpy(rng.normal(0, 1, s).astype(np.float32)) for s in ((5, 2, 4), (1, 2, 3), (1, 2, 3))]
    module = from_pytorch(torch.jit.trace(Network().eval(), inputs), inputs)
    results = qnn_ext.Interpreter(module)(*[value.numpy() for value in inputs])
    for result, expected in zip(results, Network()(*inputs), strict=True):
        np.testing.assert_allclose(result, expected.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_float16_weights(rng):
    torch.backends.quantized.engine = "x86"
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
    half = torch.ao.quantization.quantize_dynamic(model, dtype=torch.float16)
    x = torch.from_numpy(rng.normal(0, 1, (3, 16)).astype(np.float32))
    module = from_pytorch(torch.jit.trace(half, (x,)), (x,))
    np.testing.assert_allclose(qnn_ext.Interpreter(module)(x.numpy()), half(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert module.notes and "float16" in module.notes[0].reason
