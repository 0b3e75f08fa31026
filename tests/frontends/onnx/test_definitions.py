"""Operators without a converter that ONNX defines by a graph of others: their graphs take their place."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext import QnnError, UnsupportedOperatorError

from .graphs import model, node, run_ort, value
from .single_op import MICROSOFT, compare, const, single_op

F32 = np.float32
CLOSE = 1e-6


@pytest.mark.parametrize("shape, axes", [((6, 2, 5), None), ((3, 9), [0, -1]), ((7, 3), [1, 0])])
def test_center_crop_pad(shape, axes, rng):
    data = rng.standard_normal((5, 4, 3)).astype(F32)
    attributes = {"axes": axes} if axes else {}
    compare("CenterCropPad", [data, const(shape, np.int64)], [F32], opset=18, **attributes)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_negative_log_likelihood(weighted, reduction, rng):
    """An omitted input, and an attribute that chooses among graphs."""
    data, labels = rng.standard_normal((4, 5)).astype(F32), rng.integers(0, 5, 4)
    weight = rng.random(5).astype(F32) if weighted else None
    attributes = {"reduction": reduction, "ignore_index": 2}
    compare("NegativeLogLikelihoodLoss", [data, labels, weight], [F32], CLOSE, opset=13, **attributes)


def test_two_graphs_do_not_share_names(rng):
    nodes = [node("CenterCropPad", ["x", "small"], ["y"]), node("CenterCropPad", ["y", "large"], ["z"])]
    constants = {"small": np.array([3, 2]), "large": np.array([5, 6])}
    proto = model(nodes, [value("x", (6, 4))], [value("z", None)], constants)
    feed = {"x": rng.standard_normal((6, 4)).astype(F32)}
    (found,) = qnn_ext.Interpreter(qnn_ext.from_onnx(proto)).run(feed).values()
    np.testing.assert_array_equal(found, run_ort(proto, feed)[0])


def test_an_omitted_input_between_others(rng):
    """A causal convolution that keeps its last inputs: y[t] = Σ w[k]·x[t + k − 2], then SiLU."""
    data, past = (rng.standard_normal((1, 4, length)).astype(F32) for length in (6, 2))
    weight = rng.standard_normal((4, 1, 3)).astype(F32)
    proto, feed = single_op("CausalConvWithState", [data, weight, None, past], [F32, F32], opset=27, activation="silu")
    found, state = qnn_ext.Interpreter(qnn_ext.from_onnx(proto)).run(feed).values()
    padded = np.concatenate([past, data], axis=2)
    sums = sum(weight[None, :, 0, k, None] * padded[:, :, k : k + 6] for k in range(3))
    np.testing.assert_allclose(found, sums / (1 + np.exp(-sums)), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(state, padded[:, :, -2:])


@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_microsoft_causal_convolution(activation, state, rng):
    data, past = (rng.standard_normal((2, 4, length)).astype(F32) for length in (6, 2))
    weight, bias = rng.standard_normal((4, 1, 3)).astype(F32), rng.standard_normal(4).astype(F32)
    inputs = [data, const(weight), const(bias), past if state else None]
    attributes = {"activation": activation, "ndim": 1, "dilation": 1}
    compare("CausalConvWithState", inputs, [F32, F32], 1e-5, domain=MICROSOFT, opset=17, **attributes)


@pytest.mark.parametrize("heads, groups, state", [(2, 2, False), (4, 2, True)])
@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_microsoft_linear_attention(rule, heads, groups, state, rng):
    """Of models with a recurrent state instead of a cache: S ← decay · S + β · k ⊗ (v − S·k), y = scale · S·q."""
    batch, length, size, width = 1, 5, 4, 3

    def rows(*shape):
        return (rng.standard_normal((batch, *shape)) * 0.5).astype(F32)

    query, key, values = (rows(length, n * w) for n, w in ((heads, size), (groups, size), (groups, width)))
    past = rows(groups, size, width) if state else None
    decay = -np.abs(rows(length, groups)) if "gated" in rule else None
    beta = np.abs(rows(length, groups)) if "delta" in rule else None
    attributes = {"q_num_heads": heads, "kv_num_heads": groups, "update_rule": rule, "scale": 0.5}
    inputs = [query, key, values, past, decay, beta]
    compare("LinearAttention", inputs, [F32, F32], 1e-5, domain=MICROSOFT, opset=17, **attributes)


def test_attributes_beyond_the_definition_are_refused(rng):
    data, weight = rng.standard_normal((2, 4, 6)).astype(F32), rng.standard_normal((4, 1, 3)).astype(F32)
    proto, _ = single_op("CausalConvWithState", [data, weight], [F32, F32], domain=MICROSOFT, dilation=2)
    with pytest.raises(UnsupportedOperatorError, match=r"CausalConvWithState.*the attribute dilation"):
        qnn_ext.from_onnx(proto)


@pytest.mark.parametrize(
    "op, inputs, attributes",
    [
        ("CenterCropPad", [np.ones((2, 3), F32), np.array([2, 3])], {}),
        ("CenterCropPad", [np.ones((2, 3), F32), const([2, 3], np.int64)], {"axes": [0, 5]}),
    ],
)
def test_what_does_not_fit_is_named(op, inputs, attributes):
    proto, _ = single_op(op, inputs, [F32], opset=20, **attributes)
    with pytest.raises(QnnError, match=op):
        qnn_ext.from_onnx(proto)
