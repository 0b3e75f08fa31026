"""Unary functions become tables; concatenate becomes requantize where QParams differ, then concat."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ... import op as qnn
from ...errors import UnsupportedOperatorError
from ...numerics.reference import domain
from ...op.base import call_attributes, constant, constant_value
from ...op.concatenate import rescale_tflite, split_arguments
from ...op.unary import UNARY, unary_table
from ...qparams import QParams
from ..rewrite import Emit, op_name
from .registry import canonical


@canonical(*(f"qnn.{name}" for name in UNARY))
def canonicalize_unary(call: relax.Call, emit: Emit) -> relax.Expr:
    """f(x) as a lookup in the table of f over all values of x's dtype."""
    data, *parameters = call.args
    values = [constant_value(parameter) for parameter in parameters]
    if any(value is None for value in values):
        raise UnsupportedOperatorError(f"{op_name(call)}: scales and zero points must be constant to compute its table")
    attributes = call_attributes(call)
    name = op_name(call).removeprefix("qnn.")
    source = QParams(values[0], values[1], str(data.ty.dtype))
    target = QParams(values[2], values[3], attributes.pop("out_dtype"))
    rounding = attributes.pop("rounding")
    return qnn.table(data, constant(unary_table(name, source, target, rounding, **attributes)))


@canonical("qnn.concatenate")
def canonicalize_concatenate(call: relax.Call, emit: Emit) -> relax.Expr:
    """Each input requantized to the result's QParams, then R.concat."""
    data, scales, zero_points, out_scale, out_zero = split_arguments(list(call.args))
    attributes = call_attributes(call)
    axis, rounding = attributes["axis"], attributes["rounding"]
    parts = []
    for x, scale, zero_point in zip(data, scales, zero_points, strict=True):
        values = [constant_value(expr) for expr in (scale, zero_point, out_scale, out_zero)]
        known = all(value is not None for value in values)
        same = known and values[0] == values[2] and values[1] == values[3]
        if same and str(x.ty.dtype) == attributes["out_dtype"]:
            parts.append(x)
            continue
        if rounding == "TFLITE" and not same:
            part = qnn.table(x, constant(_concatenate_table(str(x.ty.dtype), values, attributes["out_dtype"])))
        else:
            part = qnn.requantize(
                x,
                scale,
                zero_point,
                out_scale,
                out_zero,
                rounding=rounding,
                compute_dtype=attributes["compute_dtype"],
                out_dtype=attributes["out_dtype"],
            )
        parts.append(emit(part))
    return relax.op.concat(parts, axis=axis)


def _concatenate_table(dtype: str, values: list[np.ndarray | None], out_dtype: str) -> np.ndarray:
    """TFLite's float rescaling of an input is a function of a single value, so a table can represent it exactly."""
    if any(value is None for value in values) or dtype == "int32":
        raise UnsupportedOperatorError("qnn.concatenate: rounding TFLITE takes 8- or 16-bit data and constant QParams")
    scale, zero_point, out_scale, out_zero = (value.reshape(()) for value in values)  # type: ignore[union-attr]
    return rescale_tflite(domain(dtype), scale, zero_point, out_scale, out_zero, out_dtype)
