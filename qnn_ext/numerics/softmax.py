"""Softmax in integers: a table of e^(−d·β·s) over the steps d below the row's maximum, then arithmetic on the row.

Every variant has one `..._exp_table` (computed once, at compile time) and one `..._row` that turns the looked-up
entries of a row into quantized probabilities. Rows are along the last axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import gemmlowp
from .multiplier import FixedPoint, fixed_point
from .reference import (
    Array,
    float_to_int,
    multiply_tflite,
    round_half_away,
    round_half_up,
    rounding_divide_by_pot,
    saturate,
)
from .tflite_tables import exp_f32, interpolate_16bit, sample_16bit

FLOAT_EXP_BITS = 23  # e^0 = 2²³ in the table of the float32 variant; f32 represents every entry exactly
DIFF_BITS = 5  # TFLite: differences from the maximum are Q5.26, e^x is Q0.31
SUM_BITS = 12  # TFLite: sums of exponentials are Q12.19


def steps_below_max(x: Array) -> Array:
    """d = max(row) − x, the table index of every element: 0 … 255, or 0 … 65535 for 16-bit data."""
    wide = x.astype(np.int32)
    return wide.max(axis=-1, keepdims=True) - wide


# ---- float32 -----------------------------------------------------------------------------------------------------


def float_exp_table(scale: float, beta: float, entries: int) -> Array:
    """int32: rint(2²³ · e^(−d·β·s)) for d < entries. Integers, so that their sum does not depend on the order."""
    exponent = -np.arange(entries, dtype=np.float64) * float(beta) * float(scale)
    return np.rint(np.exp(exponent) * 2.0**FLOAT_EXP_BITS).astype(np.int32)


def float_row(exps: Array, out_scale: Array, zero_point: Array, dtype: str) -> Array:
    """saturate(rint(f32(e) · r) + z), r = 1 / (f32(Σe) · s_out) in float32 with an exact sum."""
    total = exps.sum(axis=-1, keepdims=True, dtype=np.int64)
    factor = np.float32(1) / (total.astype(np.float32) * np.float32(out_scale))
    return float_to_int(np.rint(exps.astype(np.float32) * factor), zero_point, dtype)


# ---- TFLite, 8-bit data ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiffScale:
    """How TFLite scales a difference of `-d` steps to Q5.26, and the largest d it does not treat as −∞."""

    multiplier: FixedPoint
    largest: int

    def scaled(self, steps: Array) -> Array:
        """−d in Q5.26 for steps d ≤ largest."""
        return multiply_tflite((-steps).astype(np.int32), self.multiplier).astype(np.int64)


def diff_scale(scale: float, beta: float) -> DiffScale:
    """PreprocessSoftmaxScaling and CalculateInputRadius, for float32 scale and β."""
    real = float(np.float32(beta)) * float(np.float32(scale)) * (1 << (31 - DIFF_BITS))
    multiplier = fixed_point(min(real, 2.0**31 - 1))
    radius = ((1 << DIFF_BITS) - 1) * 2.0 ** (31 - DIFF_BITS) / 2.0 ** int(multiplier.shift)
    return DiffScale(multiplier, int(min(np.floor(radius), 2.0**31 - 2)))


def tflite_exp_table(scale: float, beta: float, entries: int = 256) -> Array:
    """int32: e^(−d·β·s) in Q0.31, 0 for negligible entries."""
    diff = diff_scale(scale, beta)
    steps = np.arange(entries)
    used = np.minimum(steps, diff.largest)
    return np.where(steps <= diff.largest, gemmlowp.exp_on_negative_values(diff.scaled(used)), 0).astype(np.int32)


def tflite_row(exps: Array, dtype: str) -> Array:
    """Probabilities as multiples of 2^−bits above the lowest value of `dtype`: int8, uint8 or int16."""
    low = np.iinfo(dtype).min
    bits = np.iinfo(dtype).bits
    inverse, over_unit = gemmlowp.reciprocal(_sum_of_exps(exps), SUM_BITS)
    out = rounding_divide_by_pot(gemmlowp.multiply(inverse, exps), over_unit + 31 - bits)
    return saturate(out + low, dtype)


def _sum_of_exps(exps: Array) -> Array:
    return rounding_divide_by_pot(exps, np.int64(SUM_BITS)).sum(axis=-1, keepdims=True)


def tflite_log_row(steps: Array, exps: Array, diff: DiffScale, dtype: str) -> Array:
    """Logarithms of probabilities: multiples of 1/16 below the highest value of `dtype`, int8 or uint8."""
    highest = np.iinfo(dtype).max
    log_sum = gemmlowp.log(_sum_of_exps(exps), SUM_BITS, DIFF_BITS)
    shift = int(diff.multiplier.shift)
    reverse = fixed_point(2.0 ** (31 - shift) / float(diff.multiplier.multiplier))
    limit = multiply_tflite((log_sum + gemmlowp.INT32_MIN).astype(np.int32), reverse)
    limit = np.minimum(diff.largest + 1, -limit)
    scaled = diff.scaled(np.minimum(steps, diff.largest))
    out = rounding_divide_by_pot(scaled - log_sum, np.int64(31 - DIFF_BITS - 4)) + highest
    return saturate(np.where(steps < limit, out, np.iinfo(dtype).min), dtype)


# ---- TFLite, 16-bit data -----------------------------------------------------------------------------------------


def tflite_exp_table_16bit(scale: float, beta: float) -> Array:
    """int32: e^(−d·β·s) in Q0.15 for d < 65536, interpolated from 513 samples over [−10, 0]."""
    step = 10.0 / 65535
    samples = sample_16bit(np.exp, step * -65535, 0.0, 2.0 / 65535, np.float64)
    real = np.float32(scale) * np.float32(beta)
    steps = np.arange(65536).astype(np.int32)
    scaled = multiply_tflite(-steps, fixed_point(float(real) / step)) + 32767
    return interpolate_16bit(np.clip(scaled, -32768, 32767), samples).astype(np.int32)


def reciprocal_samples_16bit() -> Array:
    """513 samples of 1 / (1 + x) over [0, 1] in Q0.15."""
    return sample_16bit(lambda x: 1.0 / (1.0 + x), 0.0, (1.0 / 65535) * 65535, 2.0 / 65535, np.float64)


def tflite_row_16bit(exps: Array) -> Array:
    """int16 probabilities in Q0.15."""
    total = exps.sum(axis=-1, keepdims=True, dtype=np.int64)
    headroom = gemmlowp.leading_zeros(total)
    shifted = ((total << (headroom - 1)) + (1 << 13)) >> 14
    centred = np.clip(shifted - ((1 << 15) + (1 << 16)), -32768, 32767)
    inverse = interpolate_16bit(centred, reciprocal_samples_16bit())
    shift = 31 - headroom
    result = (exps.astype(np.int64) * inverse + (np.int64(1) << (shift - 1))) >> shift
    return np.clip(result, 0, 32767).astype(np.int16)


# ---- LiteRT's optimized kernels, 8-bit data ----------------------------------------------------------------------


def optimized_exp_table(scale: float, beta: float, entries: int = 256) -> Array:
    """float32: e^(−d·f32(s·β)) for d < entries (PopulateSoftmaxLookupTable)."""
    return exp_f32(-(np.float32(scale) * np.float32(beta) * np.arange(entries, dtype=np.float32)))


def optimized_row(exps: Array, out_scale: Array, zero_point: Array, dtype: str, rounding: str) -> Array:
    """saturate(round(e · r) + z), r = 1 / (Σe · s_out), in float32 with the sum added up one by one."""
    total = np.cumsum(exps, axis=-1, dtype=np.float32)[..., -1:]
    real = exps * (np.float32(1) / (total * np.float32(out_scale)))
    return float_to_int(round_half_up(real) if rounding == "UPWARD" else round_half_away(real), zero_point, dtype)


def optimized_log_row(x: Array, exps: Array, scale: float, out_scale: Array, zero_point: Array, dtype: str) -> Array:
    """saturate(rint(f32(s_in / s_out) · x − (s_in · max + ln Σe) / s_out) + z), in float32, Σe added up one by one."""
    log_sum = np.log(np.cumsum(exps, axis=-1, dtype=np.float32)[..., -1:].astype(np.float64)).astype(np.float32)
    in_scale, step = np.float32(scale), np.float32(out_scale)
    offset = (in_scale * x.max(axis=-1, keepdims=True).astype(np.float32) + log_sum) / step
    return float_to_int(np.rint(in_scale / step * x.astype(np.float32) - offset), zero_point, dtype)


# ---- ONNX Runtime, 8-bit data ------------------------------------------------------------------------------------

ONNXRUNTIME_RESERVE = 5.0  # a row's sum stays below the largest float32 by this natural logarithm


def onnxruntime_exp_table(scale: float, length: int) -> Array:
    """float32: e^(−d·s + c) for d < 256, with c so large as ONNX Runtime's float32 sum of `length` such allows."""
    most = np.float32(np.finfo(np.float32).max) / np.float32(length)
    scale = float(scale)
    shift = max(0.0, float(np.log(most)) - ONNXRUNTIME_RESERVE) / scale
    return np.exp((shift - np.arange(256, dtype=np.float64)) * scale).astype(np.float32)


def onnxruntime_factor(out_scale: Array) -> float:
    """⌊1 / s_out⌋, of a quotient in float32."""
    return float(np.floor(np.float32(1) / np.float32(out_scale)))


def onnxruntime_row(exps: Array, out_scale: Array, zero_point: Array, dtype: str) -> Array:
    """saturate(rint(e·⌊1 / s_out⌋ / Σe) + z), in float64 but for the sum, added up in float32 one by one."""
    total = np.cumsum(exps, axis=-1, dtype=np.float32)[..., -1:].astype(np.float64)
    return float_to_int(np.rint(exps.astype(np.float64) * onnxruntime_factor(out_scale) / total), zero_point, dtype)


# ---- choice ------------------------------------------------------------------------------------------------------


def exp_table(dtype: str, scale: float, beta: float, rounding: str) -> np.ndarray:
    """The int32 table over max − x that the variant for `rounding` looks up, for data of `dtype`."""
    entries = 1 << np.iinfo(dtype).bits
    if rounding == "TONEAREST_EVEN":
        return float_exp_table(scale, beta, entries)
    if dtype == "int16":
        return tflite_exp_table_16bit(scale, beta)
    return tflite_exp_table(scale, beta)
