"""Sounds as model inputs: the PCM samples of a .wav file become values from −1 to 1, quantized with the input's scale.

Integer inputs without a scale take samples of their own dtype as they are. Nothing is resampled or cut: a model is made
for a rate and a length, and what differs from them would be answered wrongly.
"""

from __future__ import annotations

import io
import math
import os
import wave
from pathlib import Path

import numpy as np

from .errors import InputError
from .files.reading import read_bytes
from .module import TensorSpec


def load_sound(path: str | os.PathLike, spec: TensorSpec) -> np.ndarray:
    """The sound as a value for the input `spec`, which has as many elements as the file has samples. Several channels
    need an axis of their own, before or behind that of time.

    Samples of n bits become s / 2ⁿ⁻¹. Raises InputError if the file is not PCM of 8, 16, 24 or 32 bits, or if it does
    not fit.
    """
    source = Path(path)
    samples, rate = _samples(source)
    frames, channels = samples.shape
    if samples.size != math.prod(spec.shape) or (channels > 1 and channels not in spec.shape):
        raise InputError(
            f"{source}: {frames} samples of {channels} channel{'s' if channels > 1 else ''} at {rate} Hz do not fill "
            f"input {spec.name!r} of shape {spec.shape}: cut or resample the sound"
        )
    last = [size for size in spec.shape if size > 1][-1:]
    values = samples if channels == 1 or last == [channels] else samples.T
    if spec.qparams is None and spec.dtype == str(samples.dtype):
        return values.reshape(spec.shape)
    real = (values / -float(np.iinfo(samples.dtype).min)).astype(np.float32).reshape(spec.shape)
    if spec.qparams is not None:
        return spec.qparams.quantize(real)
    if not spec.dtype.startswith("float"):
        raise InputError(f"{source}: {samples.dtype} samples are no values for input {spec.name!r} of {spec.dtype}")
    return real.astype(spec.dtype)


def _samples(source: Path) -> tuple[np.ndarray, int]:
    """The samples, (frames, channels), signed, and their rate. 24 bits become the upper ones of 32."""
    try:
        with wave.open(io.BytesIO(read_bytes(source, InputError))) as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            content = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise InputError(f"{source}: not a .wav file of PCM samples: {error}") from None
    content = content[: len(content) - len(content) % (width * channels)]
    if width == 1:  # the only ones without a sign
        values = (np.frombuffer(content, np.uint8) ^ 0x80).view(np.int8)
    elif width == 3:
        triples = np.frombuffer(content, np.uint8).reshape(-1, 3)
        values = np.pad(triples, ((0, 0), (1, 0))).view("<i4").reshape(-1)
    elif width in (2, 4):
        values = np.frombuffer(content, f"<i{width}")
    else:
        raise InputError(f"{source}: samples of {8 * width} bits are not supported, only of 8, 16, 24 and 32")
    return values.reshape(-1, channels).astype(values.dtype.newbyteorder("="), copy=False), rate
