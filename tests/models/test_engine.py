"""Compiled models: bundled ones everywhere, the real ones of ../shared/models where they are. The engine equals the
oracle bit for bit, and so LiteRT: its reference kernels under numerics="tflite", XNNPACK under "float32"."""

from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import Interpreter
from tests.cpus import TARGETS
from tests.models.real_models import REAL

DATA = Path(qnn_ext.__file__).parent / "data"
BUNDLED = ("digits_cnn_int8", "digits_cnn_uint8", "digits_cnn_int16x8", "digits_lstm_int8")
ALIKE = ("mobilenet_v1_0.75_192_quant", "mobilenet_v2_quantized_1x3x224x224", "tf2_mobilenet_v2_1.0_224_ptq")
"""Large models of the same layers as mobilenet_v1_0.25_128_quant and mobilenet_v2_1.0_224_quant."""
FLOAT = ("digits_cnn_float32", "digits_cnn_float16", "digits_cnn_dynamic")


def digits(spec: qnn_ext.TensorSpec, count: int) -> list[np.ndarray]:
    """The first held-out digits as inputs of a model."""
    with np.load(DATA / "digits_test.npz") as arrays:
        images = arrays["x"][:count].astype(np.float32) / 16
    images = images.reshape(count, *spec.shape)
    return [spec.qparams.quantize(image) if spec.qparams else image for image in images]


@pytest.mark.sampled("target", whole="native")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("numerics", ["tflite", "float32"])
@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_model_equals_the_oracle(name, numerics, target):
    module = qnn_ext.from_tflite(DATA / f"{name}.tflite", numerics=numerics)
    engine, oracle = qnn_ext.build(module, target), Interpreter(module)
    for image in digits(module.inputs[0], 4):  # the LSTM's state goes on from image to image, in both
        np.testing.assert_array_equal(engine(image), oracle(image))


@pytest.mark.parametrize("name", FLOAT)
def test_float_models(name):
    module = qnn_ext.from_tflite(DATA / f"{name}.tflite")
    engine, oracle = qnn_ext.build(module), Interpreter(module)
    for image in digits(module.inputs[0], 4):
        np.testing.assert_allclose(engine(image), oracle(image), rtol=0, atol=1e-5)


@pytest.mark.sampled("numerics", "golden")
@pytest.mark.parametrize("numerics,golden", [("tflite", "ref"), ("float32", "xnnpack")])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive("another MobileNet")] if name in ALIKE else []) for name in REAL],
)
def test_real_model_equals_litert(models, name, numerics, golden):
    path = models / "tflite" / f"{name}.tflite"
    engine = qnn_ext.build(qnn_ext.from_tflite(path, numerics=numerics))
    assert not engine.notes
    with np.load(path.with_suffix(".npz")) as arrays:
        for trial in range(2):
            engine.reset_state()
            outputs = engine.run([arrays[f"input{trial}_{i}"] for i in range(len(engine.inputs))])
            for i, output in enumerate(outputs.values()):
                np.testing.assert_array_equal(output, arrays[f"{golden}{trial}_{i}"])
