"""AudioSpectrogram and Mfcc, the custom operators of keyword spotting networks that take samples of sound.

Both are products with constant matrices in float64, as LiteRT computes: its sums are in another order, so that results
differ in the last bits, and where a spectrum cancels to less than 10⁻¹⁵ of the loudest part.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....op.base import constant
from ..node import Node
from ..registry import converter
from .fourier import checked_exponentials
from .shape import check_elements, reshape

_FLOOR = 1e-12
"""The smallest energy of a band, of which the logarithm is taken."""


@converter("AudioSpectrogram", max_version=1)
def convert_audio_spectrogram(node: Node) -> relax.Expr:
    """(samples, channels) → (channels, frames, bins): |Σ window[n] · x[t · stride + n] · exp(−2πi k n / length)|² with
    a periodic Hann window, or its root. The length is the next power of two."""
    options, shape = node.custom_map(), node.shape(0)
    window, stride = (int(node.custom_number(options, name, int)) for name in ("window_size", "stride"))
    if len(shape) != 2 or node.dtype(0) != "float32" or window < 2 or stride < 1:
        raise node.malformed(f"windows of {window}, every {stride}, over {node.dtype(0)} of shape {shape}")
    samples, channels = shape
    if samples < window:
        raise node.unsupported(f"{samples} samples, less than a window of {window}")
    length = 1 << (window - 1).bit_length()
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    tables = [constant(table[:window] * hann[:, None]) for table in checked_exponentials(node, length, length // 2 + 1)]
    places = np.arange(0, samples - window + 1, stride)[:, None] + np.arange(window)
    check_elements(node, (channels, *places.shape), "folded")
    lines = node.emit(relax.op.permute_dims(node.input(0), [1, 0]))
    frames = node.emit(relax.op.take(lines, constant(places.reshape(-1)), axis=1, mode="clip"))
    wide = node.emit(relax.op.astype(reshape(node, frames, [channels, *places.shape]), "float64"))
    parts = [node.emit(relax.op.matmul(wide, table)) for table in tables]
    squares = [node.emit(relax.op.multiply(part, part)) for part in parts]
    power = node.emit(relax.op.astype(node.emit(relax.op.add(*squares)), "float32"))
    return power if options.get("magnitude_squared", False) else relax.op.sqrt(power)


@converter("Mfcc", max_version=1)
def convert_mfcc(node: Node) -> relax.Expr:
    """(channels, frames, bins) of squared magnitudes → (channels, frames, coefficients): the cosine transform of the
    logarithms of sums of magnitudes in bands, which are triangles evenly spaced in mel."""
    options, shape = node.custom_map(), node.shape(0)
    low, high, bands, count = (
        int(node.custom_number(options, name, int))  # LiteRT reads the frequencies as integers, too
        for name in (
            "lower_frequency_limit", "upper_frequency_limit", "filterbank_channel_count", "dct_coefficient_count",
        )
    )  # fmt: skip
    rates = node.integers(1)
    if len(shape) != 3 or node.dtype(0) != "float32" or len(rates) != 1:
        raise node.malformed(f"a spectrogram of {node.dtype(0)} {shape} and {len(rates)} sample rates")
    bins, rate = shape[2], rates[0]
    if bins < 2 or rate < 1 or not 1 <= count <= bands or not 0 <= low < high:
        raise node.malformed(f"{count} of {bands} bands from {low} to {high} Hz of {bins} bins at {rate} Hz")
    check_elements(node, (bins, bands), "folded")
    if int(high / (0.5 * rate / (bins - 1))) >= bins:
        raise node.malformed(f"bands up to {high} Hz, more than half of the sample rate {rate}")
    magnitudes = node.emit(relax.op.sqrt(node.emit(relax.op.astype(node.input(0), "float64"))))
    energies = node.emit(relax.op.matmul(magnitudes, constant(_triangles(bins, rate, bands, low, high))))
    logs = node.emit(relax.op.log(node.emit(relax.op.maximum(energies, constant(np.float64(_FLOOR))))))
    order, place = np.arange(count), np.arange(bands) + 0.5
    cosines = np.sqrt(2 / bands) * np.cos(np.pi / bands * np.outer(place, order))
    return relax.op.astype(node.emit(relax.op.matmul(logs, constant(cosines))), "float32")


def _triangles(bins: int, rate: int, bands: int, low: int, high: int) -> np.ndarray:
    """The share of each bin in each band: (bins, bands). A bin belongs to the falling edge of one and the rising edge
    of the next one; the first bin belongs to none."""
    width = 0.5 * rate / (bins - 1)  # in Hz
    bottom, top = 1127 * np.log1p(np.array([low, high]) / 700)
    centers = bottom + (top - bottom) / (bands + 1) * np.arange(1, bands + 2)
    mels = 1127 * np.log1p(np.arange(bins) * width / 700)
    first, last = int(1.5 + low / width), int(high / width)
    table = np.zeros((bins, bands))
    for place in range(first, last + 1):
        band = min(int(np.searchsorted(centers, mels[place])), bands) - 1  # that of the falling edge, −1 for none
        below = bottom if band < 0 else centers[band]
        falling = (centers[band + 1] - mels[place]) / (centers[band + 1] - below)
        if band >= 0:
            table[place, band] = falling
        if band + 1 < bands:
            table[place, band + 1] = 1 - falling
    return table
