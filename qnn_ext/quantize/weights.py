"""Ranges of weights: from their values alone, per tensor or per channel. Symmetric around zero."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import QuantizationError
from .ranges import Range, integer_range, qparams_of

_FACTORS = np.linspace(1.0, 0.2, 41)  # thresholds that the search tries, as factors of the largest weight
_MOST_AT_ONCE = 1 << 20  # elements of a temporary array


def weight_range(
    value: np.ndarray,
    axis: int | None = None,
    mode: str = "max",
    bits: int = 8,
    power_of_two: bool = False,
    site: str = "weight",
) -> Range:
    """The range −t … t of a weight.

    axis: the dimension along which each slice has its own t; None for a single t
    mode: "max":    t = max |w|: no weight is clipped
          "power2": t = 2^⌈log2 max |w|⌉, as in Relay: if scales are powers of two, requantize is a shift
          "mse":    the t with the smallest Σ (w − dequantize(quantize(w)))², of max |w| · 1.00, 0.98 … 0.20
    bits, power_of_two: of the integers, for "mse"

    Raises QuantizationError naming the site for NaN and infinities, and for an unknown mode.
    """
    if mode not in WEIGHT_MODES:
        raise QuantizationError(f"weight_scale must be one of {', '.join(map(repr, WEIGHT_MODES))}, found {mode!r}")
    value = np.asarray(value)
    bad = value.size - int(np.count_nonzero(np.isfinite(value)))
    if bad or not value.size:
        found = f"{bad} of {value.size} weights are NaN or infinite" if bad else "the weight is empty"
        raise QuantizationError(f"site {site!r}: {found}: check the float model, or keep the layer in float")
    rows = value.reshape(1, -1) if axis is None else np.moveaxis(value, axis, 0).reshape(value.shape[axis], -1)
    threshold = WEIGHT_MODES[mode](rows, bits, power_of_two)
    if axis is None:
        threshold = threshold[0]
    return Range(0.0 - threshold, threshold, mode)


def _max(rows: np.ndarray, bits: int, power_of_two: bool) -> np.ndarray:
    return np.abs(rows).max(axis=1).astype(np.float64)


def _power2(rows: np.ndarray, bits: int, power_of_two: bool) -> np.ndarray:
    largest = _max(rows, bits, power_of_two)
    return np.where(largest > 0, np.exp2(np.ceil(np.log2(np.where(largest > 0, largest, 1.0)))), 0.0)


def _mse(rows: np.ndarray, bits: int, power_of_two: bool) -> np.ndarray:
    at_once = max(1, _MOST_AT_ONCE // rows.shape[1])
    parts = [
        _mse_of_rows(rows[start : start + at_once].astype(np.float32), bits, power_of_two)
        for start in range(0, rows.shape[0], at_once)
    ]
    return np.concatenate(parts)


def _mse_of_rows(rows: np.ndarray, bits: int, power_of_two: bool) -> np.ndarray:
    largest = _max(rows, bits, power_of_two)
    used = largest > 0
    best, least = largest.copy(), np.full(largest.shape, np.inf)
    low, high = integer_range("int8", bits, symmetric=True)
    for factor in _FACTORS if used.any() else ():
        threshold = np.where(used, largest, 1.0) * factor
        found = Range(-threshold, threshold, "mse")
        scale = np.asarray(qparams_of(found, "int8", bits, True, power_of_two, axis=0).scale).reshape(-1, 1)
        error = rows - np.clip(np.rint(rows / scale), low, high) * scale
        squares = np.einsum("ij,ij->i", error, error, dtype=np.float64)
        better = used & (squares < least)
        best, least = np.where(better, threshold, best), np.where(better, squares, least)
    return best


WEIGHT_MODES: dict[str, Callable[[np.ndarray, int, bool], np.ndarray]] = {"max": _max, "power2": _power2, "mse": _mse}
