"""Another batch size than the file's: a batch of three equals three single runs, in the oracle and compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qnn_ext
from qnn_ext import Interpreter
from qnn_ext.module import QnnModule, TensorSpec

DATA = Path(qnn_ext.__file__).parent / "data"
BATCH = 3
MODELS = [
    "digits_cnn_int8",
    "digits_cnn_uint8",
    "digits_cnn_int16x8",
    "digits_cnn_float32",
    "digits_cnn_float16",
    "digits_cnn_dynamic",
    "digits_lstm_int8",
]
FLOAT_MODELS = ("digits_cnn_float32", "digits_cnn_float16")


def single(name: str, numerics: str = "tflite") -> QnnModule:
    """The model as the file has it."""
    return qnn_ext.from_tflite(DATA / f"{name}.tflite", numerics=numerics)


def batched(name: str, count: int = BATCH, numerics: str = "tflite") -> QnnModule:
    """The model for `count` images at once."""
    (spec,) = single(name).inputs
    return qnn_ext.from_tflite(DATA / f"{name}.tflite", numerics=numerics, shapes={spec.name: (count, *spec.shape[1:])})


def images(spec: TensorSpec, count: int = BATCH) -> np.ndarray:
    """Digits that nobody trained on, in the dtype of the input."""
    with np.load(DATA / "digits_test.npz") as archive:
        pixels = archive["x"][:count].reshape(count, *spec.shape[1:]).astype(np.float32)
    pixels /= pixels.max()
    return pixels.astype(spec.dtype) if spec.qparams is None else spec.qparams.quantize(pixels)


def one_by_one(name: str, data: np.ndarray, numerics: str = "tflite") -> np.ndarray:
    """The outputs of single runs, each from the first state."""
    interpreter, results = Interpreter(single(name, numerics)), []
    for image in data:
        interpreter.reset_state()
        results.append(interpreter(image[np.newaxis]))
    return np.concatenate(results)


def assert_same(name: str, actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal; pure float networks up to the order of summation."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    if name in FLOAT_MODELS:
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-6)
    else:
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("numerics", ["tflite", "float32"])
@pytest.mark.parametrize("name", MODELS)
def test_oracle(name: str, numerics: str) -> None:
    module = batched(name, numerics=numerics)
    (spec,) = module.inputs
    assert spec.shape[0] == BATCH and module.outputs[0].shape[0] == BATCH
    data = images(spec)
    expected = one_by_one(name, data, numerics)
    assert len(np.unique(expected, axis=0)) == BATCH  # the images differ, or the test shows nothing
    assert_same(name, Interpreter(module)(data), expected)


def test_compiled() -> None:
    name = "digits_cnn_int8"
    module = batched(name)
    data = images(module.inputs[0])
    assert_same(name, qnn_ext.build(module)(data), one_by_one(name, data))


def test_states_grow_with_the_batch() -> None:
    module = batched("digits_lstm_int8", 2)
    assert module.states and all(state.initial.shape[0] == 2 for state in module.states)


def test_batch_of_one_is_the_file() -> None:
    for name in ("digits_cnn_int8", "digits_lstm_int8"):
        assert batched(name, 1).script() == single(name).script()
