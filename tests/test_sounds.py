"""Sounds of every sample width, quantized as other values are; what does not fit is refused."""

import wave

import numpy as np
import pytest

from qnn_ext.errors import InputError
from qnn_ext.module import TensorSpec
from qnn_ext.qparams import QParams
from qnn_ext.sounds import load_sound


def _write(path, width, channels, content):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(16000)
        file.writeframes(content)
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_samples_become_real_values(tmp_path, width):
    most = 1 << (8 * width - 1)
    values = [-most, -1, 0, 1, most - 1]
    offset = most if width == 1 else 0  # 8 bits have no sign
    content = b"".join((value + offset).to_bytes(width, "little", signed=width > 1) for value in values)
    path = _write(tmp_path / "a.wav", width, 1, content)
    found = load_sound(path, TensorSpec("x", (1, 5), "float32"))
    np.testing.assert_array_equal(found, np.array([values], np.float64).astype(np.float32) / np.float32(most))
    qparams = QParams(0.01, 3, "int8")
    np.testing.assert_array_equal(load_sound(path, TensorSpec("x", (1, 5), "int8", qparams)), qparams.quantize(found))


def test_channels_have_an_axis_and_integers_stay(tmp_path):
    samples = np.arange(6, dtype="<i2").reshape(3, 2)
    path = _write(tmp_path / "a.wav", 2, 2, samples.tobytes())
    np.testing.assert_array_equal(load_sound(path, TensorSpec("x", (1, 3, 2), "int16")), samples[None])
    np.testing.assert_array_equal(load_sound(path, TensorSpec("x", (1, 2, 3), "int16")), samples.T[None])
    with pytest.raises(InputError, match="cut or resample"):
        load_sound(path, TensorSpec("x", (1, 6), "int16"))
    with pytest.raises(InputError, match="no values for input 'x' of int8"):
        load_sound(path, TensorSpec("x", (1, 3, 2), "int8"))


@pytest.mark.parametrize("content", [b"", b"RIFF", b"RIFF\x04\0\0\0WAVE", bytes(100)])
def test_what_is_no_sound(tmp_path, content):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"not a \.wav file of PCM samples"):
        load_sound(path, TensorSpec("x", (1, 5), "float32"))
