"""Products of floats in 16 bits: operands rounded to float16 or bfloat16, sums and results in float32.

    float32(Σ round(x) · round(w))

Of products with block-wise quantized weights, activations are rounded; their integers are exact in 16 bits.

What a product is here does not depend on the target. Where an instruction multiplies such operands, `float_products`
hands them over in 16 bits; elsewhere their rounded values are multiplied in float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from tvm import IRModule, relax

from .. import op as qnn
from ..errors import QnnError
from ..numerics import bfloat16
from ..op.arguments import factors_of, with_data
from ..op.base import constant, constant_value
from ..op.relax_table import traits_of
from ..qparams import PRECISIONS
from .bodies import everywhere
from .layout.propagation import rebuild
from .rewrite import Emit, op_name, rewrite

HALVES = PRECISIONS[1:]

_LARGEST = float(np.finfo(np.float16).max)


def at_precision(mod: IRModule, precision: str) -> IRModule:
    """`mod` with all products of float32 activations, those of loops too, at this precision. Raises QnnError."""
    if precision not in PRECISIONS:
        raise QnnError(f"precision: must be one of {', '.join(map(repr, PRECISIONS))}, found {precision!r}")
    if precision == "float32":
        return mod
    return everywhere(mod, partial(_at_precision, precision=precision))


def _at_precision(mod: IRModule, precision: str) -> IRModule:
    known: dict[Any, relax.Expr] = {}

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if _is_float(value):
            return in_precision(value, emit, precision, known)
        if op_name(value) == "qnn.blockwise_dense":
            data, weight = factors_of(value)
            return with_data(value, _operand(data, emit, precision, known), weight)
        return None

    return rewrite(mod, rule)


def _is_float(value: relax.Expr) -> bool:
    """Whether it is a product of two float32 tensors."""
    product = isinstance(value, relax.Call) and traits_of(value).product is not None
    return product and all(str(factor.ty.dtype) == "float32" for factor in factors_of(value))


def in_precision(
    product: relax.Call, emit: Emit, precision: str, known: dict[Any, relax.Expr] | None = None
) -> relax.Call:
    """A convolution or matrix product of float32 tensors from operands of 16 bits; bias and activation stay float32.

    float16:  operands are rounded to float16, saturating at its largest number; constants are stored in float16
    bfloat16: operands are rounded to bfloat16, beyond whose largest number is infinity; constants are rounded now
    known:    tensors that have been rounded before → their rounded values
    """
    known = {} if known is None else known
    changed = with_data(product, *(_operand(factor, emit, precision, known) for factor in factors_of(product)))
    return rebuild(changed, changed.args, out_dtype="float32") if precision == "float16" else changed


def _operand(factor: relax.Expr, emit: Emit, precision: str, known: dict[Any, relax.Expr]) -> relax.Expr:
    rounded = _half if precision == "float16" else _bfloat16
    if constant_value(factor) is not None:
        return rounded(factor, emit)
    if factor not in known:
        known[factor] = rounded(factor, emit)
    return known[factor]


def _half(factor: relax.Expr, emit: Emit) -> relax.Expr:
    array = constant_value(factor)
    if array is not None:
        return constant(np.clip(array, -_LARGEST, _LARGEST).astype(np.float16))
    return emit(relax.op.astype(emit(relax.op.clip(factor, -_LARGEST, _LARGEST)), "float16"))


def _bfloat16(factor: relax.Expr, emit: Emit) -> relax.Expr:
    array = constant_value(factor)
    return constant(bfloat16.rounded(array)) if array is not None else emit(qnn.bfloat16(factor))
