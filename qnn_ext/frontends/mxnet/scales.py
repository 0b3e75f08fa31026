"""MXNet's scales: a quantized tensor is (q, min, max), has no zero point, and q = x · S / max(|min|, |max|).

S is 127.5 for int8 and 255.5 for uint8 (quantization_utils.h, kInt8Range and kUint8Range), so that the ends of the
ranges round to 128 and 256 and saturate. All arithmetic is float32, in MXNet's order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from ... import op as qnn
from ...errors import ModelFormatError
from ...numerics import reference
from ...op.base import constant

F32 = np.float32
LEVELS = {"int8": F32(127.5), "uint8": F32(255.5), "int32": F32(2147483647)}
INT_MAX = F32(2147483647)  # 2³¹ in float32


@dataclass(frozen=True)
class Range:
    """The real range that a tensor's integers span."""

    low: np.float32
    high: np.float32

    @property
    def largest(self) -> np.float32:
        """max(|min|, |max|)."""
        return F32(max(abs(self.low), abs(self.high)))

    def symmetric(self) -> Range:
        """(−largest, largest)."""
        return Range(F32(-self.largest), self.largest)


def scale_of(dtype: str, span: Range) -> np.float32:
    """Integer steps per real unit; INT_MAX for an empty range, as in GetQuantizeScale."""
    if dtype not in LEVELS:
        raise ModelFormatError(f"a quantized tensor must be int8, uint8 or int32, found {dtype}")
    return F32(LEVELS[dtype] / span.largest) if span.largest else INT_MAX


def out_dtype(out_type: str, span: Range | None) -> str:
    """The dtype that `out_type` (int8, uint8, auto) means: auto is uint8 for a calibrated range without negatives."""
    if out_type == "auto":
        return "uint8" if span is not None and span.low >= 0 else "int8"
    if out_type not in ("int8", "uint8"):
        raise ModelFormatError(f"out_type must be int8, uint8 or auto, found {out_type}")
    return out_type


def saturate(real: np.ndarray, dtype: str) -> np.ndarray:
    """rint and clip, on constants."""
    return reference.float_to_int(np.rint(real), np.int64(0), dtype)


def round_saturate(real: relax.Expr, dtype: str) -> relax.Call:
    """rint and clip, on an expression that is already in integer steps."""
    return qnn.quantize(real, 1.0, 0, out_dtype=dtype, reciprocal=True)


def rescaled(data: relax.Expr, factor: np.ndarray | np.float32, dtype: str, axis: int = 1) -> relax.Call:
    """saturate(rint(f32(data) · factor)), factor a scalar or one per channel along `axis`."""
    factor = np.asarray(factor, F32)
    return qnn.requantize(data, constant(factor), 0, 1.0, 0, axis=axis if factor.ndim else 0, out_dtype=dtype)


def as_real(data: relax.Expr, factor: np.ndarray | np.float32 = F32(1), axis: int = 1) -> relax.Call:  # noqa: B008
    """f32(data) · factor, factor a scalar or one per channel along `axis`."""
    factor = np.asarray(factor, F32)
    return qnn.dequantize(data, constant(factor), 0, axis=axis if factor.ndim else 0)
