"""DynamicQuantizeLSTM against ONNX Runtime: float32 accuracy, as long as no hidden state sits at a midpoint."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ModelFormatError

from .single_op import MICROSOFT, compare, const, full_range, single_op

STEPS, BATCH, INPUT, HIDDEN = 6, 2, 12, 8


def lstm_inputs(rng, dtype, directions, *, per_column=False, states=True, bias=True, lengths=None, peepholes=False):
    shape = (directions, 4 * HIDDEN) if per_column else (directions,)
    middle = 0 if dtype is np.int8 else 128

    def qparams():
        return const(rng.uniform(0.005, 0.01, shape)), const(np.full(shape, middle), dtype)

    def state():
        return rng.standard_normal((directions, BATCH, HIDDEN)).astype(np.float32) if states else None

    return [
        rng.standard_normal((STEPS, BATCH, INPUT)).astype(np.float32),
        const(full_range(rng, dtype, directions, INPUT, 4 * HIDDEN), dtype),
        const(full_range(rng, dtype, directions, HIDDEN, 4 * HIDDEN), dtype),
        const(rng.standard_normal((directions, 8 * HIDDEN)) * 0.3) if bias else None,
        lengths,
        state(),
        state(),
        const(rng.standard_normal((directions, 3 * HIDDEN)) * 0.3) if peepholes else None,
        *qparams(),
        *qparams(),
    ]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype,per_column", [(np.int8, True), (np.uint8, False)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm(direction, dtype, per_column, rng):
    inputs = lstm_inputs(rng, dtype, 1 + (direction == "bidirectional"), per_column=per_column)
    attributes = {"hidden_size": HIDDEN, "direction": direction}
    compare("DynamicQuantizeLSTM", inputs, [np.float32] * 3, 2e-6, domain=MICROSOFT, **attributes)


def test_lstm_without_bias_and_states(rng):
    inputs = lstm_inputs(rng, np.int8, 1, states=False, bias=False)
    compare("DynamicQuantizeLSTM", inputs, [np.float32] * 3, 2e-6, domain=MICROSOFT, hidden_size=HIDDEN)


@pytest.mark.parametrize(
    "attributes",
    [
        {"clip": 0.5},
        {"input_forget": 1},
        {"activations": ["HardSigmoid", "Softsign", "LeakyRelu"], "activation_alpha": [0.3, 0.1]},
    ],
    ids=lambda attributes: next(iter(attributes)),
)
def test_options(attributes, rng):
    inputs = lstm_inputs(rng, np.int8, 1, peepholes=True)
    compare("DynamicQuantizeLSTM", inputs, [np.float32] * 3, 2e-6, domain=MICROSOFT, hidden_size=HIDDEN, **attributes)


@pytest.mark.parametrize("constant", [True, False])
def test_lengths(constant, rng):
    """Sequences of unequal lengths. All steps still share one scale, and all hidden states of a step."""
    lengths = np.array([STEPS, 2], np.int32)
    inputs = lstm_inputs(rng, np.int8, 2, lengths=const(lengths, np.int32) if constant else lengths)
    attributes = {"hidden_size": HIDDEN, "direction": "bidirectional"}
    compare("DynamicQuantizeLSTM", inputs, [np.float32] * 3, 2e-6, domain=MICROSOFT, **attributes)


@pytest.mark.parametrize(
    "position,array,message",
    [
        (1, np.zeros((1, INPUT, 4 * HIDDEN), np.int32), "input 1 must be int8 or uint8"),
        (2, np.zeros((1, HIDDEN, 4), np.int8), "R has shape"),
        (8, np.ones(3, np.float32), "input 8 must have shape"),
        (11, np.ones((1, 7), np.int8), "input 11 must have shape"),
    ],
)
def test_malformed(position, array, message, rng):
    inputs = lstm_inputs(rng, np.int8, 1)
    inputs[position] = const(array, array.dtype)
    model, _ = single_op("DynamicQuantizeLSTM", inputs, [np.float32], domain=MICROSOFT, hidden_size=HIDDEN)
    with pytest.raises(ModelFormatError, match=message):
        qnn_ext.from_onnx(model)
