"""How requantize rounds: the qconfig's rounding, set on every requantize of an integer module."""

from __future__ import annotations

import numpy as np
from tvm import IRModule, relax

from ..op.arguments import argument, data_of
from ..op.base import OPS, along_axis, call_attributes, constant, constant_value, shape_of
from ..passes.rewrite import Emit, op_name, rewrite


def set_rounding(mod: IRModule, rounding: str, round_for_shift: bool = True) -> IRModule:
    """`mod` with this rounding in all requantizes from 32 bits.

    rounding:        "TONEAREST_EVEN" (as they are), "UPWARD" or "TONEAREST"
    round_for_shift: False truncates where the quotient of the scales is 2⁻ⁿ: ⌊q / 2ⁿ⌋, an arithmetic shift, which is
                     UPWARD of q − 2ⁿ⁻¹

    A quantize after float operators in registers is no requantize: it rounds to nearest, ties to even.
    """
    if rounding == "TONEAREST_EVEN" and round_for_shift:
        return mod

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        if op_name(value) != "qnn.requantize" or str(data_of(value).ty.dtype) != "int32":
            return None
        attributes = call_attributes(value)
        if attributes["rounding"] != "TONEAREST_EVEN":
            return None
        shifts = None if round_for_shift else _shifts(value)
        if shifts is not None:
            return _truncated(value, shifts, emit)
        if rounding == "TONEAREST_EVEN":
            return None
        changes = {**attributes, "rounding": rounding, "compute_dtype": "int64"}
        return OPS["requantize"].call(*value.args, **changes)

    return rewrite(mod, rule)


def _shifts(call: relax.Call) -> np.ndarray | None:
    """n of the quotients 2⁻ⁿ with n ≥ 0, one or one per channel; None if they are not of this form."""
    scale, out_scale = (constant_value(argument(call, name)) for name in ("input_scale", "output_scale"))
    if scale is None or out_scale is None:
        return None
    fraction, exponent = np.frexp(scale.astype(np.float64) / out_scale.astype(np.float64))
    return 1 - exponent if (fraction == 0.5).all() and (exponent <= 1).all() else None


def _truncated(call: relax.Call, shifts: np.ndarray, emit: Emit) -> relax.Call:
    data, *parameters = call.args
    axis = call_attributes(call)["axis"]
    half = np.where(shifts > 0, np.exp2(np.maximum(shifts, 1) - 1), 0).astype(np.int32)
    placed = along_axis(half, axis, len(shape_of(data)))
    lower = emit(relax.op.subtract(data, constant(placed)))
    changes = {**call_attributes(call), "rounding": "UPWARD", "compute_dtype": "int64"}
    return OPS["requantize"].call(lower, *parameters, **changes)
