"""qnn.bfloat16: float32 rounded to bfloat16, as float32 again or as its bits."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..numerics import bfloat16 as numerics
from .base import Shape, TensorInfo, check_dtype, check_out_dtype, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo, *, out_dtype: str) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    check_out_dtype(out_dtype, "float32", numerics.BITS)
    return data.shape, out_dtype


def _reference(data: np.ndarray, *, out_dtype: str) -> np.ndarray:
    return numerics.rounded(data) if out_dtype == "float32" else numerics.bits_of(data).reshape(np.shape(data))


BFLOAT16 = define("bfloat16", "data", _infer, _reference, Traits(Kind.POINTWISE), "rounding to bfloat16")


def bfloat16(data: relax.Expr, out_dtype: str = "float32") -> relax.Call:
    """The bfloat16 nearest to each value, ties to even; beyond the largest, infinity.

    data:      float32
    out_dtype: "float32", or "uint16" for the bits of the bfloat16

    Raises ShapeError. Source: IEEE 754 roundTiesToEven; PyTorch `x.to(torch.bfloat16)`.
    """
    return BFLOAT16.call(data, out_dtype=out_dtype)


export_to_script(bfloat16=bfloat16)
