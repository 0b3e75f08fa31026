"""Numerics: rounding and fixed point, each rule written once in NumPy (the oracle) and once in TIR (the kernels).

`multiplier` turns real scales into the numbers that a rule multiplies by, `reference` contains the NumPy rules, `tir`
the same rules as expressions. The two agree bit for bit; tests/numerics checks that on exhaustive edge data.
"""

from .multiplier import FixedPoint, fixed_point, float_multiplier
from .rounding import (
    COMPUTE_DTYPES,
    ROUNDINGS,
    Rounding,
    check_requantize_rounding,
    check_rounding,
    check_sum_rounding,
)

__all__ = [
    "COMPUTE_DTYPES",
    "ROUNDINGS",
    "FixedPoint",
    "Rounding",
    "check_requantize_rounding",
    "check_rounding",
    "check_sum_rounding",
    "fixed_point",
    "float_multiplier",
]
