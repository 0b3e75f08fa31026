"""Inputs and outputs as real values: what QParams compute outside of the model is computed in it, bit for bit."""

from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import QnnError
from qnn_ext.racing.race import drawn

DATA = Path(qnn_ext.__file__).parent / "data"


@pytest.mark.parametrize("name", ["digits_cnn_int8.tflite", "digits_cnn_uint8.tflite"])
def test_real_values_in_and_out(name):
    module = qnn_ext.from_tflite(DATA / name)
    integer = qnn_ext.build(module, num_threads=1)
    real = qnn_ext.build(module, num_threads=1, io="float32")
    assert [spec.dtype for spec in (*real.inputs, *real.outputs)] == ["float32", "float32"]
    assert all(spec.qparams is None for spec in (*real.inputs, *real.outputs))
    (spec,) = module.inputs
    rng = np.random.default_rng(3)
    low, high = (
        float(spec.qparams.dequantize(np.array(end))) for end in (np.iinfo(spec.dtype).min, np.iinfo(spec.dtype).max)
    )
    values = rng.uniform(low - 1, high + 1, spec.shape).astype(np.float32)
    values.flat[:4] = [np.inf, -np.inf, low, high]
    values.flat[4:40] = (np.arange(36) + 0.5) * np.float32(spec.qparams.scale)  # midpoints
    (expected,) = integer.run([values], quantize=True, dequantize=True).values()
    np.testing.assert_array_equal(real(values), expected)


def test_a_float_model_and_states_stay():
    module = qnn_ext.from_onnx(DATA / "digits_cnn_float32.onnx")
    assert qnn_ext.build(module, num_threads=1, io="float32").inputs == module.inputs
    module = qnn_ext.from_tflite(DATA / "digits_cnn_int8.tflite")
    assert qnn_ext.build(module, num_threads=1, io="model")(*drawn(module.inputs)).dtype == np.int8
    with pytest.raises(QnnError, match="io: must be one of 'model', 'float32', found 'int8'"):
        qnn_ext.build(module, io="int8")
