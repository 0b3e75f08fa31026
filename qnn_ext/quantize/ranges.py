"""Ranges of real values, as found by calibration, and the QParams derived from them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import QuantizationError, QuantizationWarning
from ..qparams import QParams, dtype_range

# Thresholds that are chosen, not measured: Relay divides them by 2^(bits−1), so that powers of two become shifts. The
# threshold itself is then one step out of range.
CHOSEN_METHODS = ("global_scale", "power2")

_SMALLEST_SCALE = 2.0**-60  # the product of two scales must be a normal float32


@dataclass(frozen=True, eq=False)
class Range:
    """Real values low … high, for a whole tensor or (vectors) for each slice along an axis.

    method: how it was found ("minmax", "kl_divergence" …), "" if it was set by hand
    extra:  figures for reports only ("clipped": share of values outside …), JSON values

    Raises QuantizationError for NaN, infinities, low > high and vectors of unequal length.
    """

    low: float | np.ndarray
    high: float | np.ndarray
    method: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            low, high = (np.asarray(np.asarray(value, np.float64) + 0.0) for value in (self.low, self.high))  # no -0
        except (TypeError, ValueError, OverflowError):
            raise QuantizationError(
                f"the bounds of a range must be numbers, found {self.low!r} … {self.high!r}"
            ) from None
        if low.shape != high.shape or low.ndim > 1 or low.size == 0:
            raise QuantizationError(
                f"a range needs two numbers or two vectors of the same length, found {low.shape} and {high.shape}"
            )
        if not (np.isfinite(low).all() and np.isfinite(high).all()):
            raise QuantizationError(
                f"range {_shown(low)} … {_shown(high)} is not finite: the tensor had NaN or infinite values; check "
                "the data set and the float model's results on it"
            )
        if (low > high).any():
            raise QuantizationError(f"range {_shown(low)} … {_shown(high)} is empty: low must not exceed high")
        for name, value in (("low", low), ("high", high)):
            value.flags.writeable = False
            object.__setattr__(self, name, value if value.ndim else float(value))

    @classmethod
    def of(cls, array: np.ndarray, axis: int | None = None, method: str = "minmax") -> Range:
        """The smallest and the largest value of an array, along an axis if given."""
        if array.size == 0:
            raise QuantizationError("an empty tensor has no range")
        others = None if axis is None else tuple(i for i in range(array.ndim) if i != axis % array.ndim)
        return cls(array.min(axis=others), array.max(axis=others), method)

    @property
    def per_channel(self) -> bool:
        """Whether low and high are vectors."""
        return isinstance(self.low, np.ndarray)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Range)
            and self.method == other.method
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    def __hash__(self) -> int:
        return hash((np.asarray(self.low).tobytes(), np.asarray(self.high).tobytes(), self.method))

    def __str__(self) -> str:
        if self.per_channel:
            return f"{_shown(np.asarray(self.low))} … {_shown(np.asarray(self.high))} ({np.size(self.low)} channels)"
        return f"{self.low:.6g} … {self.high:.6g}"


def _shown(values: np.ndarray) -> str:
    return f"{values:.6g}" if values.ndim == 0 else f"[{values.min():.6g}, {values.max():.6g}]"


def integer_range(dtype: str, bits: int, symmetric: bool) -> tuple[int, int]:
    """Smallest and largest integer used: for int8 with 8 bits −127 … 127 when symmetric, else −128 … 127; unsigned
    dtypes use 0 … 2^bits − 1, or 1 … 2^bits − 1 when symmetric, around 2^(bits−1)."""
    if dtype_range(dtype)[0] == 0:
        return (1 if symmetric else 0), 2**bits - 1
    half = 2 ** (bits - 1)
    return (1 - half if symmetric else -half), half - 1


def qparams_of(
    found: Range,
    dtype: str = "int8",
    bits: int = 8,
    symmetric: bool = True,
    power_of_two: bool = False,
    axis: int | None = None,
    site: str = "",
) -> QParams:
    """Scale and zero point with which `bits` bits of `dtype` cover a range.

    asymmetric: scale = (high − low) / (q_max − q_min) with low ≤ 0 ≤ high, zero_point = round(q_min − low / scale)
    symmetric:  scale = max(|low|, |high|) / (2^(bits−1) − 1); zero point 0, or 2^(bits−1) when unsigned
    power_of_two: the scale is the next power of two above; the last step of the threshold may saturate

    Zero is always exactly representable: padding and relu are exact. Chosen thresholds (CHOSEN_METHODS) are divided by
    2^(bits−1) as in Relay. A range that is zero everywhere gets the scale of −1 … 1 and a warning; channels that are
    zero get the mean scale of the others. `site` is named in messages.

    axis: the channel axis of a per-channel range. Raises QuantizationError.
    """
    if found.per_channel and axis is None:
        raise QuantizationError(f"{_named(site)}the range has {np.size(found.low)} channels, but one was expected")
    low = np.minimum(np.asarray(found.low, np.float64), 0.0)
    high = np.maximum(np.asarray(found.high, np.float64), 0.0)
    q_low, q_high = integer_range(dtype, bits, symmetric)
    chosen = power_of_two or found.method in CHOSEN_METHODS
    if symmetric:
        span, steps = np.maximum(-low, high), 2 ** (bits - 1) - (0 if chosen else 1)
    else:
        span, steps = high - low, q_high - q_low + (1 if chosen else 0)
    scale = _filled(span / steps, 1.0 / (2 ** (bits - 1)), found, site)
    if power_of_two:
        scale = np.exp2(np.ceil(np.log2(scale)))
    scale = scale.astype(np.float32)
    if symmetric:
        zero_point = np.full(scale.shape, 0 if q_low < 0 else 2 ** (bits - 1), np.int32)
    else:
        zero_point = np.clip(np.rint(q_low - low / scale), q_low, q_high).astype(np.int32)
    return QParams(scale, zero_point, dtype, axis if found.per_channel else None)


def _filled(scale: np.ndarray, fallback: float, found: Range, site: str) -> np.ndarray:
    """`scale` with a usable value where the range is zero."""
    used = scale >= _SMALLEST_SCALE
    if used.all():
        return scale
    if used.any():
        return np.where(used, scale, scale[used].mean())
    warnings.warn(
        f"{_named(site)}all values are zero (range {found}): the scale of the range −1 … 1 is used; if the tensor is "
        "not always zero, calibrate with data for which it is not",
        QuantizationWarning,
        stacklevel=3,
    )
    return np.full_like(scale, fallback)


def _named(site: str) -> str:
    return f"{site}: " if site else ""
