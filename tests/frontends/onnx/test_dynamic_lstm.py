"""DynamicQuantizeLSTM against ONNX Runtime: float32 accuracy, as long as no hidden state sits at a midpoint."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import UnsupportedOperatorError

from .single_op import MICROSOFT, compare, const, full_range, single_op

STEPS, BATCH, INPUT, HIDDEN = 6, 2, 12, 8


def lstm_inputs(rng, dtype, directions, *, per_column=False, states=True, bias=True):
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
        None,
        state(),
        state(),
        None,
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
    "attributes,message",
    [({"clip": 1.0}, "clip"), ({"input_forget": 1}, "input_forget"), ({"activations": ["Relu"] * 3}, "activations")],
)
def test_refusals(attributes, message, rng):
    inputs = lstm_inputs(rng, np.int8, 1)
    model, _ = single_op("DynamicQuantizeLSTM", inputs, [np.float32], domain=MICROSOFT, **attributes)
    with pytest.raises(UnsupportedOperatorError, match=message):
        qnn_ext.from_onnx(model)
