"""MXNet's RNN against PyTorch's layers: both follow cuDNN, with the same gates in the same order."""

import numpy as np
import pytest
import torch
from torch import nn

from qnn_ext import Interpreter, build
from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.mxnet import from_mxnet
from tests.frontends.pytorch.recurrent import Layers, check

MODES = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN, "rnn_relu": nn.RNN}
STEPS, BATCH, DEPTH, SIZE = 6, 3, 5, 4


def exported(layer, mode, states="zeros", changes=None):
    """A symbol with its parameters as Gluon exports a layer: weights first, then biases.

    states: "zeros", of a batch that is left open, or "inputs"; changes: other attributes of the operator
    """
    nodes = [{"op": "null", "name": "data", "inputs": []}]
    params = {}

    def add(op, name, inputs=(), **options):
        options = {key: str(value) for key, value in options.items()}
        nodes.append({"op": op, "name": name, "inputs": [[index, 0, 0] for index in inputs], "attrs": options})
        return len(nodes) - 1

    ends = [f"l{k}{end}" for k in range(layer.num_layers) for end in (["", "_reverse"][: 1 + layer.bidirectional])]
    vectors = []
    for kind in ("weight", "bias"):
        for end in ends:
            for source in ("ih", "hh"):
                name = f"{kind}_{source}_{end}"
                params[name] = getattr(layer, name).detach().numpy()
                vectors.append(add("Reshape", f"{name}_vector", [add("null", name)], shape=(-1,)))
    joined = add("_rnn_param_concat", "parameters", vectors, dim=0, num_args=len(vectors))
    count = 2 if mode == "lstm" else 1
    shape = (len(ends), 0, SIZE)
    begin = [
        add("_zeros", f"zeros{k}", shape=shape, dtype="float32") if states == "zeros" else add("null", f"state{k}")
        for k in range(count)
    ]
    options = {"state_size": SIZE, "num_layers": layer.num_layers, "bidirectional": layer.bidirectional}
    options |= {"mode": mode, "p": 0.5, "state_outputs": True}
    rnn = add("RNN", "rnn", [0, joined, *begin], **options | (changes or {}))
    return {"nodes": nodes, "heads": [[rnn, k, 0] for k in range(count + 1)]}, params


def layer_of(mode, layers=1, bidirectional=False):
    torch.manual_seed(7)
    extra = {"nonlinearity": mode.removeprefix("rnn_")} if mode.startswith("rnn") else {}
    return MODES[mode](DEPTH, SIZE, layers, bidirectional=bidirectional, **extra)


@pytest.mark.parametrize("states", ["zeros", "inputs"])
@pytest.mark.parametrize("layers,bidirectional", [(1, False), (2, True)])
@pytest.mark.parametrize("mode", MODES)
def test_layers(mode, layers, bidirectional, states):
    layer = layer_of(mode, layers, bidirectional)
    given = [torch.randn(STEPS, BATCH, DEPTH)]
    if states == "inputs":
        cells = layers * (1 + bidirectional)
        given += [torch.randn(cells, BATCH, SIZE) for _ in range(2 if mode == "lstm" else 1)]
    feed = {name: value.numpy() for name, value in zip(("data", "state0", "state1"), given, strict=False)}
    module = from_mxnet(*exported(layer, mode, states), {name: value.shape for name, value in feed.items()})
    check(Layers(layer).eval(), tuple(given), list(Interpreter(module).run(feed).values()))


def test_an_engine(rng):
    layer = layer_of("gru")
    module = from_mxnet(*exported(layer, "gru"), {"data": (STEPS, BATCH, DEPTH)})
    x = rng.standard_normal((STEPS, BATCH, DEPTH)).astype(np.float32)
    for found, expected in zip(build(module)(x), Interpreter(module)(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes,error,message",
    [
        ({"projection_size": 2}, UnsupportedOperatorError, "projection_size=2"),
        ({"use_sequence_length": True}, UnsupportedOperatorError, "use_sequence_length=True; pad the sequences"),
        ({"lstm_state_clip_min": -1}, UnsupportedOperatorError, "lstm_state_clip_min=-1"),
        ({"mode": "lstm2"}, UnsupportedOperatorError, "mode=lstm2; supported: lstm, gru"),
        ({"state_size": 5}, ModelFormatError, r"input 2 has shape \(1, 0, 4\), but \(1, 3, 5\) follows"),
        ({"num_layers": 0}, ModelFormatError, "for 0 layers of size 4"),
        ({"mode": "gru"}, ModelFormatError, r"parameters have shape \(176,\), but 132 numbers follow from the data"),
    ],
)
def test_refused(changes, error, message):
    with pytest.raises(error, match=f"RNN.*{message}"):
        from_mxnet(*exported(layer_of("lstm"), "lstm", changes=changes), {"data": (STEPS, BATCH, DEPTH)})
