"""qnn.float8: float32 rounded to a float8 format, as float32 again."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import float8 as numerics
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo, *, dtype: str) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    if dtype not in numerics.FORMATS:
        raise ShapeError(f"dtype must be one of {', '.join(numerics.FORMATS)}, found {dtype!r}")
    return data.shape, "float32"


def _reference(data: np.ndarray, *, dtype: str) -> np.ndarray:
    return numerics.rounded(data, dtype)


FLOAT8 = define("float8", "data", _infer, _reference, Traits(Kind.POINTWISE), "rounding to float8")


def float8(data: relax.Expr, dtype: str) -> relax.Call:
    """The float8 nearest to each value, ties to even; beyond the largest, the largest. NaN stay.

    data:  float32
    dtype: "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz" or "float8_e5m2fnuz"

    Raises ShapeError. Source: ONNX, "Float stored in 8 bits", QuantizeLinear and Cast with saturate = 1.
    """
    return FLOAT8.call(data, dtype=dtype)


export_to_script(float8=float8)
