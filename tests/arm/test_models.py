"""Models on emulated ARM CPUs: bundled ones everywhere, the real ones of ../shared/models where they are. They equal
the oracle, and so the frameworks that `tests/models` compares it with.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import Interpreter, QnnModule
from tests.arm import emulator
from tests.arm.engines import emulated
from tests.cases.bundled import module_of
from tests.topi_int8.kernels import ARM_CPUS, cpu_target

DATA = Path(qnn_ext.__file__).parent / "data"
BUNDLED = (
    "digits_cnn_int8.tflite",
    "digits_cnn_uint8.tflite",
    "digits_cnn_int16x8.tflite",
    "digits_lstm_int8.tflite",
    "digits_cnn_qdq.onnx",
    "digits_cnn_qoperator.onnx",
    "digits_cnn_dynamic.onnx",
    "digits_transformer_qdq.onnx",
    "digits_cnn_eager.pt",
    "digits_cnn_pt2e_xnnpack.pt2",
    "digits_mxnet-symbol.json",
)
FLOAT = ("digits_cnn_float32.tflite", "digits_cnn_float16.tflite", "digits_cnn_dynamic.tflite")
REAL = (  # in this order two of them, at least, are drawn for each CPU
    "keras_lstm_mnist_ptq",
    "kws_ref_model",
    "vww_96_int8",
    "pretrainedResnet_quant",
    "ad01_int8",
    "micro_speech_quantized",
    "mobilenet_v1_0.25_128_quant",
    "tf2_mobilenet_v2_1.0_224_ptq",
)


def digits(module: QnnModule, count: int) -> list[np.ndarray]:
    """The first held-out digits as inputs of a model."""
    (spec,) = module.inputs
    with np.load(DATA / "digits_test.npz") as arrays:
        images = arrays["x"][:count].astype(np.float32).reshape(count, *spec.shape) / 16
    return [spec.qparams.quantize(image) if spec.qparams else image for image in images]


@cache
def engine_of(file: str, cpu: str) -> qnn_ext.Engine:
    """A bundled model built for one of ARM_CPUS."""
    return qnn_ext.build(module_of(file), cpu_target(cpu, 1))


@pytest.mark.one_in(2)
@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", ARM_CPUS)
@pytest.mark.parametrize("file", BUNDLED)
def test_bundled_model_equals_the_oracle(file, cpu):
    """The LSTM's state goes on from image to image, in both."""
    module = module_of(file)
    engine, oracle = emulated(engine_of(file, cpu)), Interpreter(module)
    for image in digits(module, 2):
        np.testing.assert_array_equal(engine(image), oracle(image), strict=True)


@pytest.mark.parametrize("cpu", ARM_CPUS)
def test_the_same_code_on_every_cpu_that_has_its_instructions(cpu):
    """And on no other: there it would end with an illegal instruction, if it used what its target offers."""
    file = "digits_cnn_int8.tflite"
    module, engine = module_of(file), engine_of(file, cpu)
    (image,) = digits(module, 1)
    expected, able = Interpreter(module)(image), emulator.cpus_of(cpu_target(cpu, 1))
    for emulated_cpu in able:
        np.testing.assert_array_equal(emulated(engine, emulated_cpu)(image), expected, emulated_cpu, strict=True)


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", ARM_CPUS)
@pytest.mark.parametrize("file", FLOAT)
def test_float_model(file, cpu):
    module = module_of(file)
    engine, oracle = emulated(qnn_ext.build(module, cpu_target(cpu, 1))), Interpreter(module)
    for image in digits(module, 2):
        np.testing.assert_allclose(engine(image), oracle(image), rtol=0, atol=1e-5)


@pytest.mark.sampled("cpu")
@pytest.mark.parametrize("cpu", ARM_CPUS)
@pytest.mark.parametrize("name", REAL)
def test_real_model_equals_litert(models, name, cpu):
    """XNNPACK's outputs for both of its inputs."""
    path = models / "tflite" / f"{name}.tflite"
    engine = emulated(qnn_ext.build(qnn_ext.from_tflite(path), cpu_target(cpu, 1)))
    with np.load(path.with_suffix(".npz")) as arrays:
        for trial in range(2):
            engine.reset_state()
            outputs = engine.run([arrays[f"input{trial}_{i}"] for i in range(len(engine.inputs))])
            for i, output in enumerate(outputs.values()):
                np.testing.assert_array_equal(output, arrays[f"xnnpack{trial}_{i}"], strict=True)
