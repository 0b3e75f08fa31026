"""LSTM, GRU and RNN in float."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ....recurrent_layers import Options, run_float_layers
from ...training import check_training
from ..registry import converter


@converter("aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input")
def _layers(
    importer: Any,
    x: relax.Expr,
    states: Any,
    parameters: list[relax.Expr],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[relax.Expr, ...]:
    check_training(train, dropout)
    kind = importer.node.target._schema.name.removeprefix("aten::")
    states = states if isinstance(states, list) else [states]
    options = Options(layers, bidirectional, batch_first)
    return tuple(run_float_layers(importer.assembly, kind, x, states, parameters, has_biases, options))
