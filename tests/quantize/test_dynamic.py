"""Dynamic quantization: integer products whose scales are found at run time, without data."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext.compiling.coverage import coverage
from qnn_ext.errors import QuantizationError
from qnn_ext.quantize.config import QConfig
from qnn_ext.quantize.dynamic import dynamic
from tests.quantize.digits import FLOAT_ACCURACY, NETWORKS, accuracy, held_out, network
from tests.quantize.networks import float_module

FORMATS = {
    "uint8": ({"dtype_input": "uint8", "symmetric": False}, 0, 255),
    "int8": ({"dtype_input": "int8", "symmetric": False}, -128, 127),
    "symmetric": ({"dtype_input": "int8", "symmetric": True}, -127, 127),
    "unsigned symmetric": ({"dtype_input": "uint8", "symmetric": True}, 1, 255),
    "4 bits": ({"dtype_input": "uint8", "symmetric": False, "nbit_input": 4}, 0, 15),
}


def expected_product(x, w, symmetric, low, high):
    """Σ (q_x − z)·q_w · (s_x·s_w) as ONNX's DynamicQuantizeLinear and MatMulInteger define it."""
    one = np.float32
    if symmetric:
        scale, zero_point = one(np.abs(x).max() / one(high - (low + high + 1) // 2)), (low + high + 1) // 2
    else:
        bottom, top = min(x.min(), one(0)), max(x.max(), one(0))
        scale = one((top - bottom) / one(high - low)) or one(1)
        zero_point = int(np.clip(np.rint(one(low) - bottom / scale), low, high))
    scale = scale or one(1)
    q = np.clip(np.rint(x / scale) + zero_point, low, high).astype(np.int64)
    weight_scale = np.abs(w).max(0).astype(np.float32) / one(127)
    q_w = np.clip(np.rint(w / weight_scale), -127, 127).astype(np.int64)
    return ((q - zero_point) @ q_w).astype(np.float32) * (scale * weight_scale)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["mixed", "positive", "negative", "zero"])
def test_formula(form, kind, rng):
    settings, low, high = FORMATS[form]
    w = rng.normal(size=(24, 8)).astype(np.float32)
    module = float_module((5, 24), lambda emit, x: emit(relax.op.matmul(x, relax.const(w))))
    x = rng.normal(size=(5, 24)).astype(np.float32)
    x = {"mixed": x, "positive": np.abs(x) + 1, "negative": -np.abs(x), "zero": x * 0}[kind]
    quantized = dynamic(module, QConfig(dynamic=True, **settings))
    found = qnn_ext.Interpreter(quantized)(x)
    np.testing.assert_allclose(found, expected_product(x, w, settings["symmetric"], low, high), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(qnn_ext.build(quantized, num_threads=1)(x), found)


def test_a_product_behind_interpolation_multiplies_integers(rng):
    """Interpolated values are quantized, since integers of a scale that is not known cannot be interpolated."""
    w = rng.normal(size=(6, 3, 3, 3)).astype(np.float32)

    def body(emit, x):
        y = emit(relax.op.image.resize2d(x, (12, 10), layout="NCHW", method="linear"))
        return emit(relax.op.nn.conv2d(y, relax.const(w)))

    module = float_module((1, 3, 6, 5), body)
    quantized = dynamic(module, QConfig(dynamic=True))
    engine = qnn_ext.build(quantized, num_threads=1)
    assert coverage(quantized).share == 1
    x = rng.normal(size=(1, 3, 6, 5)).astype(np.float32)
    exact = qnn_ext.Interpreter(module)(x)
    assert 0 < np.abs(engine(x) - exact).max() < 0.03 * np.abs(exact).max()


def test_convolution_and_bias(rng):
    w, bias = rng.normal(size=(6, 3, 3, 3)).astype(np.float32), rng.normal(size=(1, 6, 1, 1)).astype(np.float32)

    def body(emit, x):
        y = emit(relax.op.nn.conv2d(x, relax.const(w), padding=1))
        return emit(relax.op.nn.relu(emit(relax.op.add(y, relax.const(bias)))))

    module = float_module((1, 3, 7, 7), body)
    quantized = dynamic(module, QConfig(dynamic=True))
    assert coverage(quantized).share == 1
    x = rng.normal(size=(1, 3, 7, 7)).astype(np.float32)
    exact, found = qnn_ext.Interpreter(module)(x), qnn_ext.Interpreter(quantized)(x)
    assert 0 < np.abs(found - exact).max() < 0.02 * exact.max(), "eight bits: about one percent of the largest value"
    np.testing.assert_array_equal(qnn_ext.build(quantized, num_threads=1)(x), found)


@pytest.mark.parametrize("name", NETWORKS)
def test_digits(name):
    module = network(name)
    quantized = dynamic(module, QConfig(dynamic=True))
    assert coverage(quantized).share == 1, "attention products are integers, too"
    images, labels = held_out()
    found = qnn_ext.build(quantized, num_threads=1)(images)
    assert accuracy(found, labels) >= FLOAT_ACCURACY[name] - 0.005


def test_skipped_layers_stay_float(rng):
    w = rng.normal(size=(8, 8)).astype(np.float32)
    module = float_module((2, 8), lambda emit, x: emit(relax.op.matmul(x, relax.const(w))))
    with pytest.raises(QuantizationError, match="keeps all of them in float"):
        dynamic(module, QConfig(dynamic=True, skip_dense_layer=True))


def test_powers_of_two_need_calibration():
    with pytest.raises(QuantizationError, match="powers of two"):
        dynamic(float_module((2, 2), lambda emit, x: x), QConfig(dynamic=True, quantization_formula="cambricon"))
