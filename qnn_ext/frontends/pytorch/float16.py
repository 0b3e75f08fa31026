"""float16 as PyTorch computes with it, in scripts and in exported programs."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...op.base import shape_of


def is_factor_of_float32(dtype: str, other: Any) -> bool:
    """Whether PyTorch multiplies, or divides, by a second operand in float32: one without dimensions, beside float16.
    It is not rounded to float16 first; the result is.

    dtype: of the result
    other: the second operand, a number or an expression
    """
    return dtype == "float16" and not (isinstance(other, relax.Expr) and shape_of(other))
