"""relay.*: elementwise operators, reductions, and what moves or reshapes tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..frontends.building import padded
from ..op.base import constant_value, normalize_axis, shape_of
from .arrays import array_of
from .expressions import Call, Constant, Op, Tuple, TupleWrapper, as_expr
from .lowering import OPERATORS, Context, operator, split_results

__all__ = [
    "broadcast_to",
    "cast",
    "clip",
    "concatenate",
    "expand_dims",
    "full",
    "ones",
    "repeat",
    "reshape",
    "round",
    "split",
    "squeeze",
    "stack",
    "strided_slice",
    "take",
    "tile",
    "transpose",
    "where",
    "zeros",
]
"""Beside ELEMENTWISE and REDUCTIONS, which Python's own names keep from being defined here."""


def _one(name: str, function: Callable[[Any], Any]) -> Callable[..., Any]:
    def rule(c: Context, data: Any) -> Any:
        return function(data)

    rule.__name__ = name
    rule.__doc__ = f"Elementwise {name}."
    return operator(name)(rule)


def _two(name: str, function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def rule(c: Context, lhs: Any, rhs: Any) -> Any:
        return function(lhs, rhs)

    rule.__name__ = name
    rule.__doc__ = f"Elementwise {name} with NumPy's broadcasting."
    return operator(name, operands=2)(rule)


_UNARY = [
    "abs",
    "ceil",
    "cos",
    "erf",
    "exp",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "logical_not",
    "negative",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]
_BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "power",
    "mod",
    "floor_divide",
    "floor_mod",
    "maximum",
    "minimum",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
    "left_shift",
    "right_shift",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
]
ELEMENTWISE = {
    **{name: _one(name, getattr(relax.op, name)) for name in _UNARY},
    **{name: _two(name, getattr(relax.op, name)) for name in _BINARY},
}
"""The operators with the same name in Relay and Relax."""


@operator("round")
def round(c: Context, data: Any) -> Any:
    """Elementwise rounding, midpoints away from zero: sign(x) · ⌊|x| + ½⌋."""
    half = relax.const(0.5, str(data.ty.dtype))
    raised = c.emit(relax.op.add(c.emit(relax.op.abs(data)), half))
    return relax.op.multiply(c.emit(relax.op.sign(data)), c.emit(relax.op.floor(raised)))


@operator("cast")
def cast(c: Context, data: Any, dtype: str) -> Any:
    """The same values in another dtype."""
    return relax.op.astype(data, dtype)


@operator("clip")
def clip(c: Context, a: Any, a_min: float, a_max: float) -> Any:
    """min(max(a, a_min), a_max)."""
    return relax.op.clip(a, a_min, a_max)


@operator("where", operands=3)
def where(c: Context, condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y."""
    return relax.op.where(condition, x, y)


# ---- reductions --------------------------------------------------------------------------------------------------


def _reduction(name: str) -> Callable[..., Any]:
    function = getattr(relax.op, name)

    def rule(c: Context, data: Any, axis: Any = None, keepdims: bool = False, exclude: bool = False) -> Any:
        rank = len(shape_of(data))
        axes = (
            list(range(rank)) if axis is None else [normalize_axis(one, rank) for one in np.atleast_1d(axis).tolist()]
        )
        if exclude:
            axes = [one for one in range(rank) if one not in axes]
        if name in ("mean", "variance") and not str(data.ty.dtype).startswith("float"):
            raise ShapeError(f"{name} takes floats, found {data.ty.dtype}: cast to float32 first")
        return function(data, axes, keepdims)

    rule.__name__ = name
    rule.__doc__ = f"The {name} over axes, all if None; `exclude`: over the other axes."
    return operator(name)(rule)


def _arg(name: str) -> Callable[..., Any]:
    function = getattr(relax.op, name)

    def rule(
        c: Context,
        data: Any,
        axis: int | None = None,
        keepdims: bool = False,
        exclude: bool = False,
        select_last_index: bool = False,
    ) -> Any:
        if exclude or select_last_index:
            raise ShapeError("exclude and select_last_index are not supported: give the axis")
        return relax.op.astype(c.emit(function(data, axis, keepdims)), "int32")

    rule.__name__ = name
    rule.__doc__ = f"The index of the first {name[3:]}imum, as int32."
    return operator(name)(rule)


REDUCTIONS = {
    **{name: _reduction(name) for name in ("sum", "max", "min", "mean", "prod", "variance")},
    **{name: _arg(name) for name in ("argmax", "argmin")},
}

# ---- shapes ------------------------------------------------------------------------------------------------------


@operator("reshape")
def reshape(c: Context, data: Any, newshape: Any, allowzero: bool = False) -> Any:
    """Another shape; 0 keeps a dimension, −1 is what remains, −2 all dimensions that are left, −3 a product of two."""
    given = [int(dim) for dim in np.atleast_1d(newshape)]
    shape, left = [], list(shape_of(data))
    for dim in given:
        if dim == 0 and not allowzero:
            shape.append(left.pop(0))
        elif dim == -2:
            shape, left = [*shape, *left], []
        elif dim == -3:
            shape.append(left.pop(0) * left.pop(0))
        elif dim < -3:
            raise ShapeError(f"reshape to {given}: split a dimension by its sizes, −4 is not supported")
        else:
            left = left[1:]
            shape.append(dim)
    return relax.op.reshape(data, shape)


@operator("transpose")
def transpose(c: Context, data: Any, axes: Sequence[int] | None = None) -> Any:
    """The axes in another order, reversed if None."""
    return relax.op.permute_dims(data, axes if axes is None else list(axes))


@operator("squeeze")
def squeeze(c: Context, data: Any, axis: Any = None) -> Any:
    """Without dimensions of size 1."""
    return relax.op.squeeze(data, axis if axis is None else [int(one) for one in np.atleast_1d(axis)])


@operator("expand_dims")
def expand_dims(c: Context, data: Any, axis: int, num_newaxis: int = 1) -> Any:
    """With `num_newaxis` dimensions of size 1 inserted at `axis`."""
    first = axis if axis >= 0 else axis + len(shape_of(data)) + 1
    return relax.op.expand_dims(data, list(range(first, first + num_newaxis)))


@operator("broadcast_to")
def broadcast_to(c: Context, data: Any, shape: Any) -> Any:
    """Broadcast to a shape."""
    return relax.op.broadcast_to(data, [int(dim) for dim in shape])


@operator("repeat")
def repeat(c: Context, data: Any, repeats: int, axis: int) -> Any:
    """Each element `repeats` times along `axis`."""
    return relax.op.repeat(data, int(repeats), axis)


@operator("tile")
def tile(c: Context, data: Any, reps: Any) -> Any:
    """The whole tensor repeated along each axis."""
    return relax.op.tile(data, [int(times) for times in reps])


@operator("take", operands=2)
def take(c: Context, data: Any, indices: Any, batch_dims: int = 0, axis: int | None = None, mode: str = "clip") -> Any:
    """Elements by index along `axis`, of the flattened tensor if None; indices beyond the end take the last element."""
    if batch_dims or mode not in ("clip", "fast"):
        raise ShapeError(f"batch_dims must be 0 and mode clip or fast, found {batch_dims} and {mode}")
    if axis is None:
        data, axis = c.emit(relax.op.reshape(data, (-1,))), 0
    last = shape_of(data)[axis] - 1
    return relax.op.take(data, c.emit(relax.op.clip(indices, 0, last)), axis)


@operator("strided_slice")
def strided_slice(
    c: Context, data: Any, begin: Any, end: Any, strides: Any = None, axes: Any = None, slice_mode: str = "end"
) -> Any:
    """data[begin:end:strides] along `axes`, the first ones if None; with slice_mode "size", `end` holds sizes."""
    begin, end = list(map(int, begin)), list(map(int, end))
    axes = list(range(len(begin))) if axes is None else list(map(int, axes))
    steps = list(map(int, strides)) if strides is not None else [1]
    steps = steps * len(begin) if len(steps) == 1 else steps
    if slice_mode == "size":
        sizes = shape_of(data)
        end = [first + size if size >= 0 else sizes[axis] for first, size, axis in zip(begin, end, axes, strict=True)]
    return relax.op.strided_slice(data, axes, begin, end, steps)


@operator("nn.pad")
def pad(c: Context, data: Any, pad_width: Any, pad_value: Any = 0, pad_mode: str = "constant") -> Any:
    """Padding by (before, after) for each axis."""
    if pad_mode != "constant":
        raise ShapeError(f"pad_mode must be constant, found {pad_mode}")
    value = constant_value(pad_value) if hasattr(pad_value, "ty") else np.asarray(pad_value)
    if value is None:
        raise ShapeError("pad_value must be a constant")
    return padded(c.emit, data, [int(width) for pair in pad_width for width in pair], value.item())


OPERATORS["concatenate"] = lambda c, data, axis: relax.op.concat(data, axis)


def concatenate(data: Any, axis: int) -> Call:
    """The tensors of a tuple, one after the other along `axis`."""
    return Call(Op("concatenate"), [_tuple(data)], axis=int(axis))


OPERATORS["stack"] = lambda c, data, axis: relax.op.stack(data, axis)


def stack(data: Any, axis: int) -> Call:
    """The tensors of a tuple along a new axis."""
    return Call(Op("stack"), [_tuple(data)], axis=int(axis))


def _tuple(data: Any) -> Any:
    return Tuple(list(data)) if isinstance(data, (list, tuple)) else as_expr(data)


OPERATORS["split"] = lambda c, data, sections, axis: split_results(c, relax.op.split(data, sections, axis))


def split(data: Any, indices_or_sections: Any, axis: int = 0) -> TupleWrapper:
    """Equal parts, or parts between indices, along `axis`."""
    if isinstance(indices_or_sections, int):
        return TupleWrapper(Call(Op("split"), [data], sections=indices_or_sections, axis=axis), indices_or_sections)
    sections = [int(index) for index in indices_or_sections]
    return TupleWrapper(Call(Op("split"), [data], sections=sections, axis=axis), len(sections) + 1)


def _filled(name: str, value: float) -> Callable[..., Any]:
    def build(shape: Any, dtype: str = "float32") -> Any:
        return Constant(np.full([int(dim) for dim in shape], value, dtype))

    build.__name__ = name
    build.__doc__ = f"A constant of {name}."
    return build


zeros, ones = _filled("zeros", 0), _filled("ones", 1)


def full(fill_value: Any, shape: Any = (), dtype: str = "") -> Any:
    """A constant tensor of one value, given as a scalar constant."""
    value = array_of(as_expr(fill_value).data)  # type: ignore[attr-defined]
    return Constant(np.full([int(dim) for dim in shape], value, dtype or value.dtype))
