"""Mixed precision: a product on float16 operands, with casts around it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..op.arguments import factors_of, with_data
from ..op.base import constant, constant_value
from ..passes.layout.propagation import rebuild
from ..passes.rewrite import Emit

_LARGEST = float(np.finfo(np.float16).max)


def in_float16(product: relax.Call, emit: Emit) -> relax.Call:
    """A convolution or matrix product of float32 operands, computed from float16.

    float32(Σ float16(x) · float16(w)): operands are rounded to float16 (saturating at its largest number), the sum is
    float32 as in tensor cores. Constants are stored in float16. Bias and activation stay float32.
    """
    halves = with_data(product, *(_half(factor, emit) for factor in factors_of(product)))
    return rebuild(halves, halves.args, out_dtype="float32")


def _half(expr: Any, emit: Emit) -> Any:
    array = constant_value(expr)
    if array is not None:
        return constant(np.clip(array, -_LARGEST, _LARGEST).astype(np.float16))
    return emit(relax.op.astype(emit(relax.op.clip(expr, -_LARGEST, _LARGEST)), "float16"))
