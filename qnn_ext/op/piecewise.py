"""qnn.piecewise: a function of float32 as sixteen cubic polynomials, which wide registers look up by the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics.piecewise import ROWS, SEGMENTS, evaluated
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo, coefficients: TensorInfo, *scalars: TensorInfo) -> tuple[Shape, str]:
    for info in (data, coefficients, *scalars):
        check_dtype(info, "float32")
    if coefficients.shape != (ROWS, SEGMENTS):
        raise ShapeError(f"coefficients must have shape ({ROWS}, {SEGMENTS}), found {coefficients.shape}")
    for info in scalars:
        if info.shape != ():
            raise ShapeError(f"{info.name} must be a scalar, found shape {info.shape}")
    _check_segments(*(info.value for info in scalars))
    return data.shape, "float32"


def _check_segments(low: Any, high: Any, factor: Any, offset: Any) -> None:
    """Raises ShapeError if an argument has no segment, as kernels look it up unchecked."""
    if any(value is None or not np.isfinite(value) for value in (low, high, factor, offset)):
        raise ShapeError("low, high, factor and offset must be finite constants")
    if not low <= high or factor < 0:
        raise ShapeError(f"low {low} must be at most high {high}, and factor {factor} not negative")
    first, last = (float(bound) * float(factor) + float(offset) for bound in (low, high))
    if not (first >= -0.499 and last < 1e6):
        raise ShapeError(f"the first segment, {first:.6g} before rounding, must be 0, and the last below 1e6")


PIECEWISE = define(
    "piecewise",
    "data coefficients low high factor offset",
    _infer,
    evaluated,
    Traits(Kind.POINTWISE, others=("coefficients", "low", "high", "factor", "offset")),
    "function made of cubic polynomials",
)


def piecewise(data: relax.Expr, coefficients: Any, low: Any, high: Any, factor: Any, offset: Any) -> relax.Call:
    """y = ((c₃[i]·x' + c₂[i])·x' + c₁[i])·x' + c₀[i].

    x' = clip(x, low, high), i = min(rint(x'·factor + offset), 15)

    data: float32; NaN counts as low. coefficients: float32 (4, 16), the rows c₀ to c₃; low, high, factor, offset:
    float32 scalars. All but the data are constants. Every multiplication with its sum is rounded once.
    Raises ShapeError, also when low·factor + offset does not round to 0.
    Source: tables of polynomials, as libraries of elementary functions have them (Tang, "Table-driven implementation of
    the exponential function", 1989).
    """
    return PIECEWISE.call(data, coefficients, low, high, factor, offset)


export_to_script(piecewise=piecewise)
