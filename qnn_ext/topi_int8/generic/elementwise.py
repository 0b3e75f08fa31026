"""TE computes of the elementwise QNN operators and of the Relax operators in integer epilogues.

Each rule takes a `Stage` (where operands are read and constants become tensors) and returns one element's expression,
so that a chain of them inlines into the kernel that starts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from ...numerics import bfloat16, elementary, fixed_point, float8, float_multiplier, piecewise, tir
from ...numerics.float_functions import FUNCTIONS
from ...numerics.multiplier import FixedPoint
from ...numerics.multiply import FITS, ROUNDS, multiplied
from ...numerics.quotient import BOUND, bounded_quotient
from ...numerics.saturate import saturated
from ...numerics.without_floats import equal_fixed_point
from ...qparams import dtype_range
from ...targets.features import current_backend, current_contracts
from .operands import SCALARS, Constants, Expr, Operand, Stage, defined, element, shifted_limit

_ZERO = tirx.const(0.0, "float32")


Rule = Callable[..., Expr]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the decorated (Stage, *operands, **attributes) -> expression for these operators."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def elementwise(
    name: str, operands: Sequence[Operand], attributes: dict[str, Any], shape: Sequence[int], constants: Constants
) -> te.Tensor:
    """The operator `name` as a TE stage over `shape`."""

    def body(*indices: Expr) -> Expr:
        return RULES[name](Stage(constants, indices), *operands, **attributes)

    return te.compute(tuple(shape), body, name=name.removeprefix("qnn.").replace(".", "_"))


# ---- quantize, dequantize, requantize ----------------------------------------------------------------------------


@rule("qnn.quantize")
def _quantize(
    stage: Stage, data: Operand, scale: Operand, zero_point: Operand, *, axis, out_dtype, rounding, reciprocal
) -> Expr:
    x = stage.read(data)
    if data.dtype == "float16":
        x = x.astype("float32")
    dtype = tir.dtype_of(x)
    limit = math.inf
    if scale.value is not None:
        factor = scale.value.astype(dtype)
        smallest = float(np.abs(factor).min(initial=1.0))
        limit = data.largest / smallest if smallest > 0 else math.inf
        factor = stage.along((np.ones((), dtype) / factor).astype(dtype) if reciprocal else factor, axis)
        real = x * factor if reciprocal else x / factor
    else:
        divisor = stage.parameter(scale, axis).astype(dtype)
        if _divides_by_reciprocal(data, scale, out_dtype) and rounding == "TONEAREST_EVEN" and not reciprocal:
            real = bounded_quotient(x, divisor)
            return tir.round_to_int(real, stage.parameter(zero_point, axis), out_dtype, BOUND)
        real = x * (tirx.const(1.0, dtype) / divisor) if reciprocal else x / divisor
    if rounding == "TONEAREST_EVEN":
        return tir.round_to_int(real, stage.parameter(zero_point, axis), out_dtype, limit)
    return tir.float_to_int(tir.round_half_away(real), stage.parameter(zero_point, axis), out_dtype)


def _divides_by_reciprocal(data: Operand, scale: Operand, out_dtype: str) -> bool:
    """Whether many elements are divided by one number, on a CPU that corrects a quotient in few instructions."""
    many = math.prod(data.shape) > SCALARS and math.prod(scale.shape) == 1
    narrow = data.dtype == scale.dtype == "float32" and out_dtype in ("int8", "uint8", "int16", "uint16")
    return many and narrow and not current_backend().grid and current_contracts()


@rule("qnn.range_scale")
def _range_scale(stage: Stage, ends: Operand, *, steps: int) -> Expr:
    low, high = tirx.min(_end(stage, ends, 0), _ZERO), tirx.max(_end(stage, ends, 1), _ZERO)
    return tirx.Select(low == high, tirx.const(1.0, "float32"), (high - low) / tirx.const(float(steps), "float32"))


@rule("qnn.range_zero_point")
def _range_zero_point(stage: Stage, ends: Operand, scale: Operand, *, start: int, dtype: str) -> Expr:
    position = tirx.const(float(start), "float32") - tirx.min(_end(stage, ends, 0), _ZERO) / stage.read(scale)
    return tir.round_to_int(position, tirx.const(0, "int32"), dtype).astype("int32")


def _end(stage: Stage, ends: Operand, which: int) -> Expr:
    """The least value of a range, or the greatest."""
    tensor = ends.tensor if ends.tensor is not None else stage.constants.add(ends.value)
    return element(tensor, [*stage.indices, which])


@rule("qnn.dequantize")
def _dequantize(stage: Stage, data: Operand, scale: Operand, zero_point: Operand, *, axis, out_dtype) -> Expr:
    # fenced, as a following addition must not contract with this multiplication
    real = tir.fence(
        stage.shifted(data, zero_point, axis).astype("float32") * stage.parameter(scale, axis).astype("float32")
    )
    if out_dtype == "float16":
        limit = tirx.const(65504.0, "float32")
        real = tirx.max(tirx.min(real, limit), -limit)
    return real.astype(out_dtype)


@rule("qnn.requantize")
def _requantize(
    stage: Stage,
    data: Operand,
    input_scale: Operand,
    input_zero_point: Operand,
    output_scale: Operand,
    output_zero_point: Operand,
    *,
    axis,
    rounding,
    compute_dtype,
    out_dtype,
) -> Expr:
    x = stage.shifted(data, input_zero_point, axis)
    zero_point = stage.parameter(output_zero_point, axis)
    if input_scale.value is None or output_scale.value is None:
        return _requantize_dynamic(stage, x, input_scale, output_scale, zero_point, axis, out_dtype)
    in_scale, out_scale = (scale.value.reshape(-1) for scale in (input_scale, output_scale))
    narrow = data.dtype in ("int8", "uint8", "int16", "uint16") and out_dtype not in ("int32", "int64")
    limit = shifted_limit(data, input_zero_point)
    return rescaled(stage, x, in_scale, out_scale, zero_point, axis, rounding, compute_dtype, out_dtype, narrow, limit)


def rescaled(
    stage: Stage,
    x: Expr,
    in_scale: np.ndarray,
    out_scale: np.ndarray,
    zero_point: Expr,
    axis: int,
    rounding: str,
    compute_dtype: str,
    out_dtype: str,
    narrow: bool = False,
    limit: float = math.inf,
) -> Expr:
    """saturate(round(x · in_scale / out_scale) + zero_point): the twin of op.requantize.rescale.

    narrow: x has at most 17 bits, so that adding a zero point cannot overflow int32
    limit: a bound on |x|, if known
    """
    if in_scale.size == 1 and out_scale.size == 1 and in_scale[0] == out_scale[0]:
        if narrow or limit < 2.0**30:
            return tir.saturating_add(x.astype("int32"), zero_point, out_dtype)
        total = x.astype("int64") + zero_point.astype("int64")
        return tir.saturate(defined(total, limit + 2.0**31), out_dtype)
    if rounding == "TONEAREST_EVEN":
        factor = float_multiplier(in_scale, out_scale)
        limit *= float(np.abs(factor).max(initial=0.0))
        return tir.requantize_float(x, stage.factor(factor, axis), zero_point, out_dtype, limit)
    ratio = in_scale.astype(np.float64) / out_scale.astype(np.float64)
    if compute_dtype == "int64":
        fp = fixed_point(ratio, tir.dtype_of(x), rounding)
        return fixed(stage, x, fp, zero_point, axis, rounding, out_dtype, limit)
    if rounding == "TFLITE" and compute_dtype == "float64" and current_backend().soft_float64:
        exact = _without_floats(stage, x, ratio, zero_point, axis, out_dtype)
        if exact is not None:
            return exact
    multiplier = stage.along(ratio.astype(compute_dtype), axis)
    return tir.requantize_float_relay(x, multiplier, zero_point, out_dtype, rounding)


def fixed(
    stage: Stage,
    x: Expr,
    fp: FixedPoint,
    zero_point: Expr,
    axis: int,
    rounding: str,
    out_dtype: str,
    limit: float = math.inf,
) -> Expr:
    """saturate(x · fp + zero_point) by an integer rounding rule.

    limit: a bound on |x|, if known
    """
    doubled = rounding == "TFLITE" and tir.dtype_of(x) == "int32" and current_backend().doubles
    if doubled and isinstance(zero_point, tirx.IntImm):
        product = multiplied_tflite(stage, x, fp, axis, limit)
        if out_dtype in ("int8", "uint8"):
            return saturated(product, int(zero_point), out_dtype)
        return tir.saturate(product.astype("int64") + zero_point.astype("int64"), out_dtype)
    multiplier, shift = stage.along(fp.multiplier, axis), stage.along(fp.shift, axis)
    narrow = rounding in ("TFLITE", "TFLITE_UPWARD") and tir.dtype_of(x) == "int32" and limit * fp.largest < 2.0**30
    return tir.requantize_fixed(
        x, multiplier, shift, zero_point, out_dtype, rounding, bool((fp.shift > 0).any()), narrow
    )


def _without_floats(
    stage: Stage, x: Expr, ratio: np.ndarray, zero_point: Expr, axis: int, out_dtype: str
) -> Expr | None:
    """The same for a float64 multiplier, with integers alone; None where that is not possible."""
    if tir.dtype_of(x) != "int32" or not isinstance(zero_point, tirx.IntImm) or out_dtype not in ("int8", "uint8"):
        return None
    found = equal_fixed_point(ratio, int(zero_point), out_dtype)
    if found is None:
        return None
    multiplier, shift = (stage.along(part, axis).astype("int64") for part in found)
    one = tirx.const(1, "int64")
    product = (x.astype("int64") * multiplier + (one << (shift - one))) >> shift
    return tir.saturate(product + zero_point.astype("int64"), out_dtype)


def multiplied_tflite(stage: Stage, x: Expr, fp: FixedPoint, axis: int, limit: float = math.inf) -> Expr:
    """x · fp of int32 x with TFLite's rounding, as int32 if the CPU has such a multiplication, else as int64.

    limit: a bound on |x|, if known
    """
    multiplier = stage.along(fp.multiplier, axis)
    if not current_backend().doubles:
        return tir.multiply_tflite(x, multiplier, stage.along(fp.shift, axis), bool((fp.shift > 0).any()))
    up, down = np.maximum(fp.shift, 0).astype(np.int32), np.minimum(fp.shift, 0).astype(np.int32)
    facts = FITS * (limit * 2.0 ** int(up.max(initial=0)) < 2.0**30) + ROUNDS * bool((down < 0).all())
    left, right = (stage.along(part if part.any() else np.zeros((), np.int32), axis) for part in (up, down))
    return multiplied(x, multiplier, left, right, facts)


def _requantize_dynamic(
    stage: Stage, x: Expr, input_scale: Operand, output_scale: Operand, zero_point: Expr, axis: int, out_dtype: str
) -> Expr:
    """For scales known only at run time: the float32 rule, dividing per element."""
    scales = [stage.parameter(scale, axis) for scale in (input_scale, output_scale)]
    wide = "float64" if any(tir.dtype_of(scale) == "float64" for scale in scales) else "float32"
    multiplier = (scales[0].astype(wide) / scales[1].astype(wide)).astype("float32")
    return tir.requantize_float(x, multiplier, zero_point, out_dtype)


# ---- tables ------------------------------------------------------------------------------------------------------


@rule("qnn.table")
def _table(stage: Stage, data: Operand, table: Operand) -> Expr:
    index = stage.read(data).astype("int32") - tirx.const(dtype_range(data.dtype)[0], "int32")
    tensor = table.tensor if table.tensor is not None else stage.constants.add(table.value)
    return element(tensor, [index])


@rule("qnn.piecewise")
def _piecewise(stage: Stage, data: Operand, coefficients: Operand, *scalars: Operand) -> Expr:
    rows = [stage.constants.add(row) for row in coefficients.constant()]
    values = (float(operand.constant().item()) for operand in scalars)
    return piecewise.expression(stage.read(data), lambda degree, index: element(rows[degree], [index]), *values)


@rule("qnn.bitcast")
def _bitcast(stage: Stage, data: Operand, *, out_dtype: str) -> Expr:
    x = stage.read(data)
    return x if data.dtype == out_dtype else tirx.reinterpret(out_dtype, x)


# ---- ordinary Relax operators ------------------------------------------------------------------------------------


def _binary(function: Callable[[Expr, Expr], Expr]) -> Rule:
    return lambda stage, lhs, rhs: function(stage.read(lhs), stage.read(rhs))


@rule("add")
def _add(stage: Stage, lhs: Operand, rhs: Operand) -> Expr:
    return defined(stage.read(lhs) + stage.read(rhs), lhs.largest + rhs.largest)


@rule("subtract")
def _subtract(stage: Stage, lhs: Operand, rhs: Operand) -> Expr:
    return defined(stage.read(lhs) - stage.read(rhs), lhs.largest + rhs.largest)


@rule("multiply")
def _multiply(stage: Stage, lhs: Operand, rhs: Operand) -> Expr:
    if "float" in lhs.dtype:  # TVM's simplifier turns NaN · 0 into 0 if it sees the 0
        factors = [stage.read(factor, immediate=factor.value is None or factor.value.any()) for factor in (lhs, rhs)]
        product = factors[0] * factors[1]
        return tir.fence(product) if isinstance(product, tirx.Mul) else product  # x · 1 is x, which may be infinite
    factors = [
        stage.factor(x.value, -1) if x.value is not None and x.value.size == 1 else stage.read(x) for x in (lhs, rhs)
    ]
    return defined(factors[0] * factors[1], lhs.largest * rhs.largest)


RULES["maximum"] = _binary(tirx.max)
RULES["minimum"] = _binary(tirx.min)


@rule("nn.relu")
def _relu(stage: Stage, data: Operand) -> Expr:
    return tirx.max(stage.read(data), tirx.const(0, data.dtype))


@rule("qnn.bias_first")
def _bias_first(stage: Stage, data: Operand, bias: Operand) -> Expr:
    return stage.read(data) + stage.read(bias)


@rule("qnn.fma")
def _fma(stage: Stage, a: Operand, b: Operand, c: Operand) -> Expr:
    return tir.fused_multiply_add(stage.read(a), stage.read(b), stage.read(c))


@rule("qnn.float_function")
def _float_function(stage: Stage, data: Operand, *, function: str) -> Expr:
    return FUNCTIONS[function](stage.read(data), elementary.TIR)


@rule("qnn.bfloat16")
def _bfloat16(stage: Stage, data: Operand, *, out_dtype: str) -> Expr:
    to_bits = out_dtype == bfloat16.BITS
    return (bfloat16.bits_of_expression if to_bits else bfloat16.rounded_expression)(stage.read(data))


@rule("qnn.float8")
def _float8(stage: Stage, data: Operand, *, dtype: str) -> Expr:
    return float8.rounded_expression(stage.read(data), dtype)


@rule("astype")
def _astype(stage: Stage, data: Operand, *, dtype: str) -> Expr:
    x = stage.read(data)
    if "float" in data.dtype and dtype.startswith(("int", "uint")):
        return tir.truncate(x, dtype)
    return x.astype(dtype)


@rule("clip")
def _clip(stage: Stage, data: Operand, low: Operand, high: Operand) -> Expr:
    x, dtype = stage.read(data), data.dtype
    bounds = [tirx.const(_bound(bound, dtype), dtype) for bound in (low, high)]
    return tirx.max(tirx.min(x, bounds[1]), bounds[0])


def _bound(operand: Operand, dtype: str) -> Any:
    value = operand.value.reshape(-1)[0].item()
    return int(value) if not dtype.startswith("float") else float(value)
