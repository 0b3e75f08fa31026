"""The names of the rounding rules and which arithmetic each may run in."""

from __future__ import annotations

from typing import Literal

from ..errors import QnnError

Rounding = Literal["TONEAREST_EVEN", "TFLITE", "UPWARD", "TONEAREST"]  # of every operator that rounds

# TONEAREST_EVEN  rint(f32(x)·m) + zp                       PyTorch, ONNX Runtime, XNNPACK
# TFLITE          gemmlowp: high multiply, then shift       TFLite reference and Micro kernels
#                 float64: midpoint away from zero, then zp  TFLite's FULLY_CONNECTED
# UPWARD          midpoint towards +∞                       Relay's default
# TONEAREST       midpoint away from zero                   Relay
ROUNDINGS: tuple[Rounding, ...] = ("TONEAREST_EVEN", "TFLITE", "UPWARD", "TONEAREST")
COMPUTE_DTYPES = ("int64", "float32", "float64")

_ALLOWED: dict[str, tuple[str, ...]] = {
    "TONEAREST_EVEN": ("float32",),
    "TFLITE": ("int64", "float64"),
    "UPWARD": COMPUTE_DTYPES,
    "TONEAREST": COMPUTE_DTYPES,
}


def check_rounding(rounding: str, compute_dtype: str | None = None) -> str:
    """The compute dtype of a rounding rule: `compute_dtype`, or the rule's first one if that is None.

    Raises QnnError if the rule does not exist or is not defined in that arithmetic.
    """
    if rounding not in _ALLOWED:
        raise QnnError(f"rounding must be one of {', '.join(ROUNDINGS)}, found {rounding!r}")
    allowed = _ALLOWED[rounding]
    if compute_dtype is None:
        return allowed[0]
    if compute_dtype not in allowed:
        raise QnnError(f"rounding {rounding} computes in {' or '.join(allowed)}, not in {compute_dtype!r}")
    return compute_dtype


def check_sum_rounding(rounding: str, compute_dtype: str | None = None) -> str:
    """The same for add and subtract, which have two more: "UPWARD" in "int32" is XNNPACK's 8-bit addition, and
    "TFLITE_SHIFTED" that of 16 bits in LiteRT's optimized kernels."""
    if (rounding, compute_dtype) == ("UPWARD", "int32"):
        return "int32"
    return _check_with("TFLITE_SHIFTED", rounding, compute_dtype)


def check_requantize_rounding(rounding: str, compute_dtype: str | None = None) -> str:
    """The same for requantize, which has one more: "TFLITE_UPWARD", TFLITE's two roundings, both with midpoints up."""
    return _check_with("TFLITE_UPWARD", rounding, compute_dtype)


def _check_with(another: str, rounding: str, compute_dtype: str | None) -> str:
    """`check_rounding` with one more rule, which is defined in int64."""
    if rounding in ROUNDINGS:
        return check_rounding(rounding, compute_dtype)
    if rounding != another:
        raise QnnError(f"rounding must be one of {', '.join(ROUNDINGS)}, {another}, found {rounding!r}")
    if compute_dtype not in (None, "int64"):
        raise QnnError(f"rounding {another} computes in int64, not in {compute_dtype!r}")
    return "int64"
