"""relay.frontend.mxnet_qnn_op_utils: scales from MXNet's ranges of values, as oneDNN took them."""

from __future__ import annotations

from typing import Any

from ..errors import QnnError
from .arrays import array_of
from .expressions import Call, Constant, const
from .quantized import dequantize, quantize

LEVELS = {"int8": 127.5, "uint8": 255.5}
"""The largest magnitude, in steps, of a range around zero."""


def scale_of(range_min: float, range_max: float, dtype: str) -> float:
    """max(|min|, |max|) / levels."""
    if dtype not in LEVELS:
        raise QnnError(f"the dtype must be {' or '.join(LEVELS)}, found {dtype}")
    return max(abs(float(range_min)), abs(float(range_max))) / LEVELS[dtype]


def get_mkldnn_int8_scale(range_min: float, range_max: float) -> float:
    return scale_of(range_min, range_max, "int8")


def get_mkldnn_uint8_scale(range_min: float, range_max: float) -> float:
    return scale_of(range_min, range_max, "uint8")


def quantize_mxnet_min_max(
    data: Any, min_range: float, max_range: float, out_dtype: str = "int8"
) -> tuple[Call, float, int]:
    """data / scale, rounded; and the scale and the zero point, which is 0."""
    scale = scale_of(min_range, max_range, out_dtype)
    return quantize(data, const(scale, "float32"), const(0, "int32"), out_dtype=out_dtype), scale, 0


def dequantize_mxnet_min_max(data: Any, min_range: float, max_range: float, in_dtype: str = "int8") -> Call:
    """data · scale."""
    return dequantize(data, const(scale_of(min_range, max_range, in_dtype), "float32"), const(0, "int32"))


def quantize_conv_bias_mkldnn_from_var(bias_var: Any, bias_scale: Any) -> Call:
    """The bias in int32, with one scale for each channel; an expression."""
    scale = bias_scale if hasattr(bias_scale, "asnumpy") else array_of(bias_scale)
    return quantize(bias_var, Constant(scale), const(0, "int32"), axis=0, out_dtype="int32")
