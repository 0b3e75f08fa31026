"""TensorFlow Lite Micro's operators on sound, against Micro."""

import contextlib

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ModelFormatError, QnnError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter

from .signal_cases import ANSWERS, INT16, cases, single

CASES = {case.name: case for case in cases()}


@pytest.fixture(scope="module")
def answers():
    with np.load(ANSWERS) as stored:
        return dict(stored)


@pytest.mark.parametrize("name", CASES)
def test_equals_micro(answers, name):
    case = CASES[name]
    interpreter = Interpreter(from_tflite(case.model))
    for number, call in enumerate(case.calls):
        expected = case.written([answers[f"{name}/{index}"][number] for index in range(case.outputs)])
        found = list(interpreter.run(call).values())
        found = [found[-1]] if len(expected) < case.outputs else case.written(found)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["chain", "rfft float32 32", "irfft int32 8", "framer 4 10 4 False", "stacker 1 1 2"])
def test_compiled(name):
    case = CASES[name]
    module = from_tflite(case.model)
    interpreter, engine = Interpreter(module), qnn_ext.build(module, num_threads=1)
    for call in case.calls:
        for one, other in zip(interpreter.run(call).values(), engine.run(call).values(), strict=True):
            np.testing.assert_array_equal(one, other)


def bank(**changes):
    tables = {"weights": [1, 2], "unweights": [3, 4], "starts": [0, 1], "places": [0, 1], "widths": [1, 1], **changes}
    constants = [np.int16(table) for table in tables.values()]
    return single("SignalFilterBank", [((4,), "uint32")], [((1,), "uint64")], constants, num_channels=1)


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (bank(starts=[0, 4]), ModelFormatError, "bins beyond the 4"),
        (bank(places=[0, 2]), ModelFormatError, "weights beyond the 2"),
        (bank(widths=[1]), ModelFormatError, "tables of"),
        (bank(weights=[1, -2]), UnsupportedOperatorError, "weights below zero"),
        (
            single("SignalRfft", [((8,), "int16")], [((14,), "int16")], T=INT16, fft_length=12),
            UnsupportedOperatorError,
            "no power of two",
        ),
        (
            single("SignalFramer", [((8,), "int16")], [((2, 3), "int16"), ((), "bool")], frame_size=3, frame_step=4,
                   prefill=True),
            UnsupportedOperatorError,
            "leave samples out",
        ),
        (
            single("SignalWindow", [((8,), "int16")], [((8,), "int16")], [np.int16([1, 2, 3])], shift=12),
            ModelFormatError,
            "a window of 3",
        ),
        (
            single("SignalRfft", [((), "int16")], [((10,), "int16")], T=INT16, fft_length=8),
            ModelFormatError,
            r"of shape \(\)",
        ),
        (
            single("SignalDelay", [((8,), "int16")], [((8,), "int16")], delay_length=-1),
            ModelFormatError,
            "delay_length is -1",
        ),
    ],
)  # fmt: skip
def test_refused(model, error, message):
    with pytest.raises(error, match=message):
        from_tflite(model)


def test_no_bins():
    model = single("SignalEnergy", [((8,), "int16")], [((4,), "uint32")], start_index=2, end_index=2)
    np.testing.assert_array_equal(Interpreter(from_tflite(model))(np.ones(8, np.int16)), np.zeros(4, np.uint32))


@pytest.mark.parametrize("name", CASES)
def test_damaged_options(rng, name):
    """No exception but ours leaves the import, whatever the options are."""
    for _ in range(3):
        model = bytearray(CASES[name].model)
        place = model.find(b"\x00", len(model) // 2)
        for index in rng.integers(max(place, 0), len(model), 3):
            model[index] = rng.integers(0, 256)
        with contextlib.suppress(QnnError):
            from_tflite(bytes(model))
