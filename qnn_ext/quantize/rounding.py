"""How integers are rounded: requantize as the qconfig says, and what float operators compute in registers by one
multiplication."""

from __future__ import annotations

import numpy as np
from tvm import IRModule, relax

from ..op.arguments import argument, data_of
from ..op.base import OPS, along_axis, call_attributes, constant, constant_value, shape_of
from ..passes.rewrite import Emit, Rebuild, consumers, emit_named, op_name, rewrite

_LEAST = 1e-37  # scale that has a float32 reciprocal


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


def with_reciprocals(mod: IRModule) -> IRModule:
    """`mod` with floats multiplied by reciprocals of their scales where they are quantized, in constants that they are
    multiplied by in any case if there are any. Dividing takes as long as a dozen other operators of an epilogue; what
    is quantized here comes from no format that defines a division."""
    new = Rebuild(mod["main"])
    readers = consumers(new.function, new.bindings)
    factors = {  # product that only one operator reads → its operand and its constant
        binding.var: found
        for binding in new.bindings
        if len(readers[binding.var]) == 1 and (found := _constant_factor(binding.value)) is not None
    }
    with new.main():
        for binding in new.bindings:
            value = binding.value
            reciprocal = _reciprocal(value)
            if reciprocal is None:
                new.keep(binding)
                continue
            data, scale = value.args[0], value.args[1]
            if data in factors and reciprocal.size == 1:
                x, factor = factors[data]
                steps = constant((factor * reciprocal.reshape(())).astype(np.float32))
                data = emit_named(new.builder, relax.op.multiply(new.substituted(x), steps), str(data.name))
                scale = constant(np.float32(1))
            attributes = {**call_attributes(value), "reciprocal": True}
            new.bind(binding.var, OPS["quantize"].call(new.substituted(data), scale, value.args[2], **attributes))
    return new.live_module()


def _reciprocal(value: relax.Expr) -> np.ndarray | None:
    """1 / scale of a quantize, in float64; None of others, and where it is no float32."""
    if op_name(value) != "qnn.quantize" or call_attributes(value)["rounding"] != "TONEAREST_EVEN":
        return None
    scale = constant_value(argument(value, "scale"))
    if scale is None or not (np.isfinite(scale) & (scale > _LEAST)).all():
        return None
    return np.asarray(1 / scale.astype(np.float64))


def _constant_factor(value: relax.Expr) -> tuple[relax.Expr, np.ndarray] | None:
    """The variable and the constant of a product of floats, if it has the variable's shape."""
    if op_name(value) != "multiply":
        return None
    for x, other in (value.args, reversed(value.args)):
        factor = constant_value(other)
        if factor is not None and isinstance(x, relax.Var) and str(x.ty.dtype) == "float32":
            return (x, factor) if np.broadcast_shapes(shape_of(x), factor.shape) == shape_of(x) else None
    return None


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
