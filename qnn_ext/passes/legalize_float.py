"""Operators that stay ordinary Relax, legalized to our own formulas instead of TVM's.

The formulas are those of the interpreter and of the float epilogues of integer kernels, as vector code: exp and
functions built on it, softmax, and layer normalization along the last axis; argmax and argmin; running sums; casts of
floats to integers; maximum pooling; and products, in legalize_float_products.py.
Everything else keeps TVM's legalization; legalize_moves.py annotates some of the moves.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from tvm import relax, te, topi

from ..numerics import elementary, extremes, tir
from ..op.arguments import data_of
from ..op.base import constant_value, has_float_rows, shape_of
from ..topi_int8.generic import attention, float_rows, max_pool
from ..topi_int8.generic.extreme_position import (
    compared_position,
    extreme_position,
    has_keys,
    has_order,
    lines_along,
    searched_position,
)
from ..topi_int8.generic.reduce import reduced
from ..topi_int8.generic.row_extremes import has_vectors, row_extremes
from ..topi_int8.generic.running_sum import running_sum
from . import legalize_float_products as products
from . import legalize_moves as moves
from .legalize_resize import bilinear, is_enlarged

Legalization = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]

ELEMENTARY = ("exp", "erf", "tanh", "sigmoid", "nn.silu", "nn.gelu", "nn.gelu_tanh")


def float_legalizations() -> dict[str, Legalization]:
    """Legalizations by operator, for the `customize_legalize_map` of `relax.transform.LegalizeOps`."""
    rules = {f"relax.{name}": _elementary(name) for name in ELEMENTARY}
    rules["relax.nn.softmax"] = _guarded(_softmax)
    rules["relax.nn.log_softmax"] = _guarded(_log_softmax)
    rules["relax.nn.layer_norm"] = _guarded(_layer_norm)
    rules["relax.argmax"] = rules["relax.argmin"] = _extreme_position
    rules["relax.cumsum"] = _guarded(_running_sum, _has_elements)
    of_integers = _guarded(_max_pool2d, _has_few_cells)
    rules["relax.nn.max_pool2d"] = _guarded(_float_max_pool, _is_float_pool, of_integers)
    rules["relax.nn.max_pool1d"] = rules["relax.nn.max_pool3d"] = _guarded(_float_max_pool, _is_float_pool)
    rules["relax.floor_mod"] = _guarded(_floor_mod, _is_float32)
    rules["relax.logical_not"] = _guarded(_logical_not, _is_bool)
    rules["relax.astype"] = _guarded(_truncate, _makes_integers)
    rules["relax.concat"], rules["relax.stack"] = moves.concat, moves.stack
    rules["relax.strided_slice"], rules["relax.take"] = moves.strided_slice, moves.take
    rules["relax.scatter_elements"], rules["relax.scatter_nd"] = moves.scatter_elements, moves.scatter_nd
    rules["relax.qnn.write_rows"] = moves.write_rows
    rules["relax.qnn.attention"] = _attention
    rules["relax.max"] = rules["relax.min"] = _guarded(_along_axes, _is_float)
    rules["relax.matmul"] = _guarded(products.matmul, products.is_by_lanes)
    rules["relax.nn.conv2d"] = _guarded(products.conv2d, products.is_plain_nhwc)
    rules["relax.image.resize2d"] = _guarded(bilinear, is_enlarged)
    rules["relax.multiply"] = _guarded(_among_tensors(topi.multiply), _has_zero)
    rules["relax.divide"] = _guarded(_among_tensors(topi.divide), _has_zero)
    return rules


def _has_zero(call: relax.Call) -> bool:
    """Whether an operand is the float 0: TVM's simplifier replaces 0·x and 0/x by 0, even if x is NaN, infinite or
    0."""
    values = [constant_value(operand) for operand in call.args]
    return any(
        value is not None and value.size == 1 and value.dtype.kind == "f" and not value.any() for value in values
    )


def _among_tensors(function: Callable[..., te.Tensor]) -> Legalization:
    """The function on two tensors, so that a constant operand does not become a number in the code."""
    return lambda builder, call: builder.call_te(function, *call.args, primfunc_name_hint=function.__name__)


def _is_bool(call: relax.Call) -> bool:
    return str(data_of(call).ty.dtype) == "bool"


def _logical_not(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """By the lowest bit: TVM's simplifier makes a < b of ¬(a ≥ b), which is false where one of them is NaN."""

    def negated(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: (x(*i).astype("int8") ^ 1).astype("bool"), name="logical_not")

    return builder.call_te(negated, data_of(call), primfunc_name_hint="logical_not")


def _is_float32(call: relax.Call) -> bool:
    return str(data_of(call).ty.dtype) == "float32"


def _by_tvm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(builder, call)


def _guarded(
    rule: Legalization, applies: Callable[[relax.Call], bool] = has_float_rows, otherwise: Legalization = _by_tvm
) -> Legalization:
    """`rule` for the calls it applies to, by default TVM's own legalization for the others."""

    def legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return (rule if applies(call) else otherwise)(builder, call)

    return legalize


def _elementary(name: str) -> Legalization:
    function = getattr(elementary, name.removeprefix("nn."))

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: function(x(*i), elementary.TIR), name=name.removeprefix("nn."))

    def rule(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        return builder.call_te(compute, data_of(call), primfunc_name_hint=f"float_{name.removeprefix('nn.')}")

    return _guarded(rule, _is_float32)


def _softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return builder.call_te(float_rows.softmax, data_of(call), int(call.attrs.axis), primfunc_name_hint="softmax")


def _log_softmax(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis = int(call.attrs.axis)
    return builder.call_te(float_rows.log_softmax, data_of(call), axis, primfunc_name_hint="log_softmax")


def _attention(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    scale = float(call.attrs.scale)
    return builder.call_te(attention.attention, *call.args, scale=scale, primfunc_name_hint="attention")


def _layer_norm(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    epsilon = float(call.attrs.epsilon)
    return builder.call_te(float_rows.layer_norm, *call.args, epsilon, primfunc_name_hint="layer_norm")


def _is_float(call: relax.Call) -> bool:
    return str(data_of(call).ty.dtype) in ("float16", "float32", "float64")


def _along_axes(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Replaces TVM's own, which starts at the lowest finite number and so never finds −∞."""
    data = data_of(call)
    shape = shape_of(data)
    ndim = len(shape)
    axes = range(ndim) if call.attrs.axis is None else sorted({int(axis) % ndim for axis in call.attrs.axis})
    length = prod(shape[axis] for axis in axes)
    if list(axes) == list(range(ndim - len(axes), ndim)) and has_vectors(str(data.ty.dtype), length):
        return _of_rows(builder, call, length)
    combine = extremes.largest if str(call.op.name) == "relax.max" else extremes.smallest
    keepdims, dtype, name = bool(call.attrs.keepdims), str(call.ty.dtype), str(call.op.name).removeprefix("relax.")

    def compute(x: te.Tensor) -> te.Tensor:
        return reduced(x, tuple(axes), keepdims, combine, dtype, name)

    return builder.call_te(compute, data, primfunc_name_hint=name) if axes else data


def _of_rows(builder: relax.BlockBuilder, call: relax.Call, length: int) -> relax.Expr:
    """A maximum or minimum along the last axes, which have so many elements."""
    data, name = data_of(call), str(call.op.name).removeprefix("relax.")
    rows = builder.emit(builder.call_te(topi.reshape, data, (prod(shape_of(data)) // length, length)))
    found = builder.call_te(row_extremes, rows, name == "max", primfunc_name_hint=name)
    return builder.call_te(topi.reshape, builder.emit(found), shape_of(call))


def _floor_mod(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """TVM's a − ⌊a / b⌋·b, with the product rounded separately."""

    def compute(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        multiple = topi.multiply(topi.floor(topi.divide(a, b)), b)
        rounded = te.compute(multiple.shape, lambda *i: tir.fence(multiple(*i)), name="multiple")
        return topi.subtract(a, rounded)

    return builder.call_te(compute, *call.args, primfunc_name_hint="floor_mod")


def _makes_integers(call: relax.Call) -> bool:
    """Whether a cast turns floats into integers."""
    source, target = str(data_of(call).ty.dtype), str(call.ty.dtype)
    return "float" in source and target.startswith(("int", "uint"))


def _truncate(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    dtype = str(call.ty.dtype)

    def compute(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *i: tir.truncate(x(*i), dtype), name="cast")

    return builder.call_te(compute, data_of(call), primfunc_name_hint="cast")


def _max_pool_sizes(call: relax.Call) -> tuple[list[int], ...]:
    """Output size, pool size, strides, and padding before the first row and column."""
    out_size = list(shape_of(call)[1:3])
    sizes = (call.attrs.pool_size, call.attrs.strides, call.attrs.padding[:2])
    return out_size, *([int(value) for value in values] for values in sizes)


def _has_few_cells(call: relax.Call) -> bool:
    attrs, data = call.attrs, data_of(call)
    plain = str(attrs.layout) == str(attrs.out_layout) == "NHWC" and all(int(step) == 1 for step in attrs.dilation)
    if not plain or str(data.ty.dtype).startswith("float"):
        return False
    _, pool_size, *_ = sizes = _max_pool_sizes(call)
    return prod(pool_size) <= max_pool.MOST_CELLS and max_pool.has_cells_inside(shape_of(data)[1:3], *sizes)


def _max_pool2d(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    sizes = _max_pool_sizes(call)
    return builder.call_te(max_pool.max_pool2d, data_of(call), *sizes, primfunc_name_hint="max_pool2d")


def _is_float_pool(call: relax.Call) -> bool:
    return _is_float(call) and str(call.attrs.layout) == str(call.attrs.out_layout)


def _float_max_pool(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    attrs = call.attrs
    axes = [axis for axis, letter in enumerate(str(attrs.layout)) if letter in "DHW"]
    geometry = (attrs.pool_size, attrs.strides, attrs.padding[: len(axes)], attrs.dilation)
    sizes = [[int(value) for value in values] for values in geometry]
    hint = str(call.op.name).removeprefix("relax.nn.")
    return builder.call_te(
        max_pool.float_max_pool, data_of(call), shape_of(call), axes, *sizes, primfunc_name_hint=hint
    )


def _has_keys(call: relax.Call) -> bool:
    data = data_of(call)
    shape = shape_of(data)
    along_last = call.attrs.axis is not None and int(call.attrs.axis) in (-1, len(shape) - 1)
    return along_last and has_keys(str(data.ty.dtype), shape)


def _has_elements(call: relax.Call) -> bool:
    return 0 not in shape_of(data_of(call)) and bool(shape_of(data_of(call)))


def _running_sum(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    sizes = axis, str(call.ty.dtype), bool(call.attrs.exclusive)
    return builder.call_te(running_sum, data_of(call), *sizes, primfunc_name_hint="cumsum")


def _extreme_position(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    x, largest, keepdims = data_of(call), str(call.op.name) == "relax.argmax", bool(call.attrs.keepdims)
    if _has_keys(call):
        return builder.call_te(extreme_position, x, largest, keepdims, primfunc_name_hint="extreme_position")
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    if axis is not None and has_order(str(x.ty.dtype), lines := lines_along(shape_of(x), axis)):
        flat = builder.emit(builder.call_te(topi.reshape, x, lines))
        found = builder.call_te(compared_position, flat, largest, primfunc_name_hint="extreme_position")
        return builder.call_te(topi.reshape, builder.emit(found), shape_of(call))
    result = builder.call_te(searched_position, x, axis, largest, keepdims, primfunc_name_hint="extreme_position")
    if axis is not None and axis % len(shape_of(x)) != len(shape_of(x)) - 1:
        # fused, it would jump through all operands of what computes its data, such as an interpolation's, at once
        moves.note(builder, result, {"op_pattern": moves.OPAQUE})
    return result
