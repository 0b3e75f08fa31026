"""Lookup tables equal to what LiteRT's reference kernels compute for one quantized value: (QParams, QParams) -> table.

8-bit functions are float32 functions rounded half away from zero, except for HARD_SWISH, LEAKY_RELU, ABS and RSQRT,
which are fixed-point. 16-bit functions interpolate between 513 samples, or between 256 samples of the sigmoid.
Functions are rounded to float32 correctly; LiteRT takes tanh, expm1 and erfc from the C library, where glibc before
2.41 may be off by one unit in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import QnnError
from ..qparams import QParams, dtype_range
from . import gemmlowp
from .multiplier import FixedPoint, fixed_point, power_of_two
from .reference import Array, domain, float_to_int, multiply_tflite, round_half_away, saturate

Function = Callable[[Array], Array]
F32 = np.float32


def float32_function(function: Function) -> Function:
    """`function` evaluated in float64 and rounded to float32: independent of how NumPy vectorizes float32."""

    def run(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(x.astype(np.float64))).astype(np.float32)

    return run


erf = np.vectorize(math.erf, otypes=[np.float64])
erfc = np.vectorize(math.erfc, otypes=[np.float64])
exp_f32, tanh_f32, log_f32 = float32_function(np.exp), float32_function(np.tanh), float32_function(np.log)
elu_f32 = float32_function(lambda x: np.where(x < 0, np.expm1(x), x))


# ---- sampled functions -------------------------------------------------------------------------------------------


def table_8bit(function: Function, source: QParams, target: QParams) -> Array:
    """LUTPopulate for 8 bits: f32(f(s_in·(q − z_in)) · f32(1/s_out)), rounded half away from zero, plus z_out."""
    return float_to_int(round_half_away(_in_steps(function, source, target)), target.zero_point, target.dtype)


def table_xnnpack(function: Function, source: QParams, target: QParams) -> Array:
    """XNNPACK's for 8 bits: the zero point is added in float32, and midpoints go to the even integer."""
    scaled = _in_steps(function, source, target) + F32(target.zero_point)
    return float_to_int(np.rint(scaled), np.int64(0), target.dtype)


def _in_steps(function: Function, source: QParams, target: QParams) -> Array:
    """The function's results in steps of the output, before rounding."""
    real = F32(source.scale) * (domain(source.dtype).astype(np.int32) - source.zero_point).astype(np.float32)
    with np.errstate(all="ignore"):
        return function(real) * (F32(1) / F32(target.scale))


def sample_16bit(
    function: Function, low: Any, high: Any, out_scale: Any, dtype: type[np.floating] = np.float32
) -> Array:
    """LUTPopulate for int16: 513 samples of f over [low, high] in steps of out_scale, as int64.

    Each sample is moved by half the interpolation error at the middle of the segment after it.
    """
    first, last, scale = dtype(low), dtype(high), dtype(out_scale)
    step = (last - first) / dtype(512)
    inverse = dtype(65536) / (scale * dtype(32767) - scale * dtype(-32768))
    position = first + np.arange(512).astype(dtype) * step
    following = first + np.arange(1, 513).astype(dtype) * step
    with np.errstate(all="ignore"):
        value = round_half_away(function(position) * inverse)
        interpolated = round_half_away((function(following) * inverse + value) / dtype(2))
        middle = round_half_away(function(position + step / dtype(2)) * inverse)
        end = round_half_away(function(np.array([last])) * inverse)
        bias = round_half_away((interpolated - middle) / dtype(2))
        samples = np.concatenate([value - bias, end])
    samples = np.where(np.isnan(samples), 0, samples)  # ∞ − ∞: NaN becomes 0 in LiteRT's cast to int16
    return np.clip(samples, -32768, 32767).astype(np.int64)


def interpolate_16bit(q: Array, samples: Array) -> Array:
    """LUTLookup for int16 values: linear between the 513 samples, with the 7 low bits as the fraction."""
    index, offset = 256 + (q >> 7), q & 0x7F
    slope = (samples[index + 1] - samples[index]).astype(np.int16).astype(np.int64)
    return (samples[index] + ((slope * offset + 64) >> 7)).astype(np.int16).astype(np.int64)


def table_16bit(function: Function, source: QParams, target: QParams) -> Array:
    """The int16 table of a float32 function that LiteRT samples at 513 points."""
    scale = F32(source.scale)
    low, high = dtype_range("int16")
    zero = int(source.zero_point)
    samples = sample_16bit(function, scale * F32(low - zero), scale * F32(high - zero), target.scale)
    return interpolate_16bit(domain("int16").astype(np.int64), samples).astype(np.int16)


def sampled(function: Function, source: QParams, target: QParams) -> Array:
    """The table of a float32 function that LiteRT looks up: exact for 8 bits, interpolated for int16."""
    return (table_16bit if source.dtype == "int16" else table_8bit)(function, source, target)


def exp(source: QParams, target: QParams) -> Array:
    """EXP."""
    return sampled(exp_f32, source, target)


def log(source: QParams, target: QParams) -> Array:
    """LOG; the output's lowest value for arguments ≤ 0."""
    lowest = F32(dtype_range(target.dtype)[0] - int(target.zero_point)) * F32(target.scale)
    return sampled(lambda x: np.where(x <= 0, lowest, log_f32(x)).astype(np.float32), source, target)


def sqrt(source: QParams, target: QParams) -> Array:
    """SQRT, truncated to an integer instead of rounded, for every dtype; 0 for negative arguments."""
    x = F32(source.scale) * np.maximum(_shifted(source), 0).astype(np.float32)
    scaled = np.trunc(float32_function(np.sqrt)(x) / F32(target.scale))
    return float_to_int(scaled, target.zero_point, target.dtype)


def elu(source: QParams, target: QParams, alpha: float = 1.0) -> Array:
    """ELU, 8 bits; its alpha is 1."""
    if alpha != 1.0:
        raise QnnError(f"rounding TFLITE: TFLite has no quantized kernel for ELU with alpha {alpha}, only for 1")
    _only("ELU", source, "int8", "uint8")
    return table_8bit(elu_f32, source, target)


def gelu(source: QParams, target: QParams, approximate: bool = False) -> Array:
    """GELU: 0.5·x·erfc(−x·√½), or with tanh when `approximate`."""
    root = F32(math.sqrt(2 / math.pi))
    erfc_f32 = float32_function(erfc)

    def exact(x: Array) -> Array:
        return F32(0.5) * x * erfc_f32(x * F32(-math.sqrt(0.5)))

    def with_tanh(x: Array) -> Array:
        return F32(0.5) * x * (F32(1) + tanh_f32(root * (x + F32(0.044715) * x * x * x)))

    return sampled(with_tanh if approximate else exact, source, target)


# ---- sigmoid and tanh --------------------------------------------------------------------------------------------


def sigmoid(source: QParams, target: QParams) -> Array:
    """LOGISTIC; int16 takes only the output scale 1/32768."""
    if source.dtype != "int16":
        return table_8bit(lambda x: F32(1) / (F32(1) + exp_f32(-x)), source, target)
    _check_q15("LOGISTIC", source, target)
    x = _q15_scaled(source, (0,))
    magnitude = _interpolated_sigmoid(np.abs(x), 9, 0x7FFF << 10)
    result = np.where(x >= 0, magnitude + (1 << 9), (1 << 25) - magnitude + (1 << 9) - 1)
    return (result >> 10).astype(np.int16)


def xnnpack_sigmoid(source: QParams, target: QParams) -> Array:
    """LOGISTIC: in float64."""
    return table_xnnpack(float32_function(lambda x: 1 / (1 + np.exp(-x))), source, target)


def xnnpack_tanh(source: QParams, target: QParams) -> Array:
    """TANH."""
    return table_xnnpack(tanh_f32, source, target)


def xnnpack_elu(source: QParams, target: QParams) -> Array:
    """ELU."""
    return table_xnnpack(elu_f32, source, target)


def tanh(source: QParams, target: QParams) -> Array:
    """TANH, as 2·sigmoid(2x) − 1 for int16, which takes only the output scale 1/32768."""
    if source.dtype != "int16":
        return table_8bit(tanh_f32, source, target)
    _check_q15("TANH", source, target)
    x = _q15_scaled(source, (0, 1))
    magnitude = _interpolated_sigmoid(np.abs(x), 8, 0xFFFF << 8)
    result = np.where(x >= 0, magnitude - (1 << 23) + (1 << 7), -magnitude + (1 << 23) + (1 << 7) - 1)
    return (result >> 8).astype(np.int16)


def _sigmoid_samples() -> Array:
    """sigmoid(i / 24) · 2¹⁶ for i < 256, each moved by half the interpolation error at the following midpoint."""

    def scaled(i: Array) -> Array:
        return 65536 / (1 + np.exp(-i / 24))

    i = np.arange(256.0)
    error = scaled(i + 0.5) - (scaled(i) + scaled(i + 1)) / 2
    samples = np.rint(scaled(i) + error / 2).astype(np.int64)
    samples[-1] = 0xFFFF
    return samples


def _interpolated_sigmoid(x: Array, fraction_bits: int, saturated: int) -> Array:
    """sigmoid(x) in units of 2^−16 · 2^−fraction_bits, for x ≥ 0 in units of 1/24 · 2^−fraction_bits."""
    samples = _sigmoid_samples()
    index = np.minimum(x >> fraction_bits, 254)
    fraction = x & ((1 << fraction_bits) - 1)
    value = (samples[index] << fraction_bits) + fraction * (samples[index + 1] - samples[index])
    return np.where(x >> fraction_bits >= 255, saturated, value)


def _q15_scaled(source: QParams, shifts: tuple[int, ...]) -> Array:
    """All int16 values times s·3·4096, rounded; exact if the scale is 2^(shift − 12) for one of the shifts."""
    multiplier, shift = _q15_multiplier(source, shifts)
    return (domain("int16").astype(np.int64) * multiplier + ((1 << shift) >> 1)) >> shift


def _q15_multiplier(source: QParams, shifts: tuple[int, ...]) -> tuple[int, int]:
    """s·3·4096 as multiplier · 2^−shift, with 15 bits; 0 for scales so small that no bits remain."""
    exponent = power_of_two(source.scale)
    if exponent is not None and 12 + exponent in shifts:
        return 3 << 12 + exponent, 0
    real, shift = float(source.scale) * 4096 * 3, 0
    while real <= 32767 / 2 and shift <= 30:
        real, shift = real * 2, shift + 1
    return int(real), shift


def _check_q15(name: str, source: QParams, target: QParams) -> None:
    if source.zero_point or target.zero_point or float(target.scale) != 2.0**-15:
        raise QnnError(f"{name} on int16 needs zero points of 0 and the output scale 1/32768, found {source}, {target}")


# ---- fixed point -------------------------------------------------------------------------------------------------


def _shifted(source: QParams) -> Array:
    return domain(source.dtype).astype(np.int32) - source.zero_point


def _scaled(x: Array, multiplier: np.floating) -> Array:
    """int32 x times a real multiplier of either sign."""
    product = multiply_tflite(x.astype(np.int32), fixed_point(abs(float(multiplier))))
    return -product if multiplier < 0 else product


def leaky_relu(source: QParams, target: QParams, alpha: float = 0.01, signed: bool = False) -> Array:
    """LEAKY_RELU: one multiplier for each sign, computed in float32.

    signed: as LiteRT's optimized kernel for 16 bits, which multiplies by a negative multiplier; the others negate a
            product. Midpoints differ.
    """
    x, scale, out_scale = _shifted(source), F32(source.scale), F32(target.scale)
    slope = scale * F32(alpha) / out_scale
    positive = _scaled(x, scale / out_scale)
    negative = multiply_tflite(x.astype(np.int32), fixed_point(float(slope))) if signed else _scaled(x, slope)
    return saturate(np.where(x >= 0, positive, negative) + target.zero_point, target.dtype)


def absolute(source: QParams, target: QParams) -> Array:
    """ABS: multiplied only if the scales differ."""
    x, scale, out_scale = np.abs(_shifted(source)), F32(source.scale), F32(target.scale)
    value = x.astype(np.int64) if scale == out_scale else _scaled(x, scale / out_scale)
    return saturate(value + target.zero_point, target.dtype)


def negative(source: QParams, target: QParams) -> Array:
    """NEG: the raw integer negated, wrapping around, regardless of the QParams."""
    return (-domain(source.dtype).astype(np.int32)).astype(target.dtype)


def rsqrt(source: QParams, target: QParams) -> Array:
    """RSQRT; the output's highest value for arguments ≤ 0, of which LiteRT rejects negative ones."""
    if source.dtype == "int16":
        highest = F32(32767) * F32(target.scale)
        root = float32_function(np.sqrt)
        return table_16bit(lambda x: np.where(x <= 0, highest, F32(1) / root(x)).astype(np.float32), source, target)
    shift = 20  # keeps the intermediate an integer
    real = 1 / float(np.sqrt(F32(source.scale)) * F32(target.scale))
    scale = fixed_point(real)
    out = FixedPoint(scale.multiplier, np.asarray(scale.shift - shift))
    highest_value = dtype_range(target.dtype)[1]
    table = []
    for value in _shifted(source).tolist():
        if value <= 0:
            table.append(highest_value)
            continue
        multiplier, exponent = gemmlowp.inverse_sqrt(value)
        inverse = FixedPoint(np.asarray(multiplier), np.asarray(exponent + shift))
        data = multiply_tflite(np.asarray(1, np.int32), inverse)
        table.append(int(multiply_tflite(np.asarray(data, np.int32), out)) + int(target.zero_point))
    return saturate(np.array(table), target.dtype)


def hardswish(source: QParams, target: QParams) -> Array:
    """HARD_SWISH, 8 bits, in 16-bit fixed point: x · (clamp(x / 3, −1, 1) + 1) / 2."""
    _only("HARD_SWISH", source, "int8", "uint8")
    fine_scale = F32(1 / 128) * F32(source.scale)
    output, output_exponent = _multiplier_16bit(fine_scale / F32(target.scale))
    reluish, exponent = _multiplier_16bit(fine_scale / (F32(3) / F32(32768)))
    if output_exponent > 0:
        raise QnnError(f"HARD_SWISH needs an output scale above 1/128 of the input's, found {source} and {target}")
    x = _shifted(source).astype(np.int64) << 7
    on_output_scale = _multiply_16bit(x, output)
    gate = np.clip(x << (exponent - 1), -32768, 32767) if exponent > 0 else x
    gate = _multiply_16bit(gate, reluish)
    gate = np.clip(gate << 1, -32768, 32767) if exponent > 0 else _divided_16bit(gate, -exponent)
    gate = (gate + (1 << 15)) >> 1
    product = gate * on_output_scale
    high = np.where(product < 0, -(-product >> 15), product >> 15)  # truncates
    return saturate(_divided_16bit(high, -output_exponent) + target.zero_point, target.dtype)


def _multiplier_16bit(real: np.floating) -> tuple[int, int]:
    fp = fixed_point(float(real))
    multiplier = int(fp.multiplier)
    return (32767 if multiplier >= gemmlowp.INT32_MAX - (1 << 15) else (multiplier + (1 << 15)) >> 16), int(fp.shift)


def _multiply_16bit(x: Array, multiplier: int) -> Array:
    """SaturatingRoundingDoublingHighMul on int16: midpoints up; a positive multiplier cannot saturate."""
    return (x * multiplier + (1 << 14)) >> 15


def _divided_16bit(x: Array, exponent: int) -> Array:
    """RoundingDivideByPOT on int16, x / 2^exponent with midpoints away from zero. From 2¹⁶ on, its mask of low bits,
    truncated to 16 bits, is −1, and the result is 1 for x ≥ 0, else −1."""
    if exponent < 16:
        return gemmlowp.rescale(x, -exponent)
    return np.where(x >= 0, 1, -1)


def _only(name: str, source: QParams, *dtypes: str) -> None:
    if source.dtype not in dtypes:
        raise QnnError(f"rounding TFLITE: LiteRT has no {name} on {source.dtype}, only on {' and '.join(dtypes)}")
