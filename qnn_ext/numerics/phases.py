"""Transposed convolutions as ordinary ones: weights of all output phases at once.

y[q] = Σ_k x[(q − k) / s]·w[k] over all k for which s divides q − k. Write q = s·Y + r and k = r + s·t: phase r of the
output is the ordinary convolution Σ_t x[Y − t]·w[r + s·t]. So the s_h·s_w phases become output channels of one
convolution with ⌈k / s⌉ taps, whose result is interleaved. No zeros are inserted between pixels, and everything stays
in integers.
"""

from __future__ import annotations

import numpy as np

Pair = tuple[int, int]


def tap_counts(kernel: Pair, phases: Pair) -> Pair:
    """⌈k / s⌉ along both axes."""
    return -(-kernel[0] // phases[0]), -(-kernel[1] // phases[1])


def phase_weight(weight: np.ndarray, phases: Pair, zero_point: np.ndarray | int = 0) -> np.ndarray:
    """OHWI weights (O, k_h, k_w, I) as (s_h·s_w·O, taps_h, taps_w, I): w'[r·O + o, T−1−t] = w[o, r + s·t].

    Taps beyond the kernel contain the zero point (a scalar or one per output channel), that is, real 0.
    """
    out, height, width, depth = weight.shape
    (sh, sw), (th, tw) = phases, tap_counts((height, width), phases)
    padded = np.empty((out, sh * th, sw * tw, depth), weight.dtype)
    padded[:] = np.asarray(zero_point).reshape(-1, 1, 1, 1)
    padded[:, :height, :width] = weight
    split = padded.reshape(out, th, sh, tw, sw, depth)
    return split[:, ::-1, :, ::-1].transpose(2, 4, 0, 1, 3, 5).reshape(sh * sw * out, th, tw, depth)


def dilate_weight(weight: np.ndarray, dilation: Pair, zero_point: np.ndarray | int = 0) -> np.ndarray:
    """OHWI weights with dilation − 1 zero points between neighbouring taps."""
    if dilation == (1, 1):
        return weight
    out, height, width, depth = weight.shape
    extent = ((height - 1) * dilation[0] + 1, (width - 1) * dilation[1] + 1)
    dilated = np.empty((out, *extent, depth), weight.dtype)
    dilated[:] = np.asarray(zero_point).reshape(-1, 1, 1, 1)
    dilated[:, :: dilation[0], :: dilation[1]] = weight
    return dilated
