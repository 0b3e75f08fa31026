"""Numerics: rounding and fixed point, each rule written once as NumPy (the oracle) and once as TIR (the kernels).

`multiplier` turns real scales into what a rule multiplies by, `reference` holds the NumPy rules, `tir` the same rules
as expressions. The two equal each other bit for bit; tests/numerics checks that on exhaustive edge data.
"""

from .multiplier import FixedPoint, fixed_point, float_multiplier
from .rounding import COMPUTE_DTYPES, ROUNDINGS, Rounding, check_rounding, check_sum_rounding

__all__ = [
    "COMPUTE_DTYPES",
    "ROUNDINGS",
    "FixedPoint",
    "Rounding",
    "check_rounding",
    "check_sum_rounding",
    "fixed_point",
    "float_multiplier",
]
