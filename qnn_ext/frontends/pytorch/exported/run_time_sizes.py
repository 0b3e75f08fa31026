"""Operators of an exported program that read tensors whose sizes are known only at run time, or such a size itself,
which the program has as a number; and those that make tensors of such sizes, from numbers computed from data.

Where a converter takes numbers from shapes, it has a counterpart here (`counterparts.py`); those in `_CARRYING` take
none, and what they emit carries the sizes on (`sizes.py`). All other operators are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils._sympy.value_ranges import bound_sympy
from tvm import relax

from .... import op as qnn
from ....errors import UnsupportedOperatorError
from ....op.base import constant, shape_of
from ... import data_dependent as build
from ... import sized_shapes as shapes
from ...counterparts import Counterparts
from ...sizes import Size, Sizes, refusal
from .values import axes_of, cast, dtype_name

_CARRYING = """
    _log_softmax _softmax _to_copy abs acos add addmm alias all amax amin any argmax argmin argwhere asin atan
    bitwise_and bitwise_not bitwise_or bitwise_xor bmm cat ceil choose_qparams clamp clamp_max clamp_min clone
    concat contiguous convert_element_type cos cumsum dequantize_per_channel dequantize_per_tensor detach div
    dropout elu embedding eq erf exp expm1 float floor floor_divide ge gelu getitem gt hardsigmoid hardswish
    hardtanh index index_select isfinite isinf isnan layer_norm le leaky_relu lift_fresh_copy linear log log1p
    log_softmax logical_and logical_not logical_or logical_xor lt masked_fill masked_select matmul max maximum
    mean min minimum mm mul ne neg nonzero nonzero_numpy permute pow prod quantize_per_channel quantize_per_tensor
    reciprocal relu relu6 remainder round rsqrt rsub select sigmoid sign silu sin softmax softplus sqrt square
    squeeze stack sub sum swapaxes t tan tanh to transpose type_as unbind unsqueeze where
 nms
"""
_COUNTERPARTS = Counterparts(_CARRYING)
_converter = _COUNTERPARTS.of
_WITH_DIMS = frozenset((
    "_unsafe_view", "arange", "broadcast_to", "expand", "full", "new_full", "new_ones", "new_zeros", "ones", "reshape",
    "view", "zeros",
))  # fmt: skip
_NUMBERS: dict[str, Callable[[Sizes, Any, Any], Any]] = {
    "add": Sizes.plus,
    "sub": Sizes.minus,
    "mul": Sizes.times,
    "floordiv": lambda sizes, one, two: sizes.quotient(one, two),
    "sym_max": Sizes.greatest,
    "sym_min": Sizes.least,
    "max": Sizes.greatest,
    "min": Sizes.least,
}


def convert_with_sizes(importer: Any, name: str, arguments: Callable[[], list[Any]]) -> Any:
    """The result of an operator that reads a tensor with such a size, or one itself; None where it does not, or where
    its own converter does it right. Raises UnsupportedOperatorError.

    name: the node's target; arguments: what it reads
    """
    sizes = importer.assembly.builder.sizes
    short = name.split(".")[1] if "." in name else name
    numbers = _computed_dims(importer) if short in _WITH_DIMS else {}
    if sizes.none and not numbers:
        return None
    values = arguments()
    if numbers:
        declared = {number: _declared(importer, sizes, node) for number, node in numbers.items()}
        values = [_replaced(value, declared) if isinstance(value, list) else value for value in values]
        return _COUNTERPARTS.converters[short](importer, sizes, *values)
    read = list(_leaves(values))
    if not any(isinstance(value, Size) or sizes.of(value) for value in read):
        return None
    if "." not in name and short in _NUMBERS and all(isinstance(value, (int, Size)) for value in values):
        return _NUMBERS[short](sizes, *values)
    if short in _COUNTERPARTS.converters:
        return _COUNTERPARTS.converters[short](importer, sizes, *values)
    number = next((value for value in read if isinstance(value, Size)), None)
    if number is not None and short in ("add", "sub", "mul", "div", "rsub"):
        return None  # a tensor and a number, which `cast` makes a tensor
    if number is not None:
        raise refusal(number, f"{name} of it")
    if short not in _COUNTERPARTS.carrying:
        sizes.refuse(read, short)
    return None


# ---- numbers computed from data that are sizes ----------------------------------------------------------------------


def _computed_dims(importer: Any) -> dict[relax.Expr, fx.Node]:
    """The arguments of the current node that are integers which the model computes from data."""
    found = {}
    for arg in _leaves(importer.node.args):
        value = importer.resolve(arg) if isinstance(arg, fx.Node) else None
        if isinstance(value, relax.Expr) and isinstance(arg.meta.get("val"), torch.SymInt):
            found[value] = arg
    return found


def _declared(importer: Any, sizes: Sizes, node: fx.Node) -> Any:
    """A number that the model computes from data as a size, within the range that the program declares; the engine
    raises InputError beyond it."""
    args: Any = node.args
    if node.target in (operator.add, operator.mul, operator.sub, operator.floordiv) and isinstance(args[1], int):
        name = _NUMBERS[getattr(node.target, "__name__", "")]
        return name(sizes, _declared(importer, sizes, args[0]), args[1])
    value = importer.resolve(node)
    if not isinstance(value, relax.Expr):
        return value
    limits = _range(importer, node)
    if limits is None:
        raise UnsupportedOperatorError(
            f"{importer.label}: a dimension is the number '{node.name}', which depends on the data and has no largest "
            "value: add torch._check(number <= …) to the model before it is exported"
        )

    def make() -> Size:
        checked = importer.emit(qnn.check_bounds(cast(importer, value, "int64"), *limits, importer.label))
        return sizes.size(checked, limits[1], importer.label)

    return sizes.once(("declared", value), make)


def _range(importer: Any, node: fx.Node) -> tuple[int, int] | None:
    """The least and the largest value of an integer by the constraints of the program; None if nothing limits it."""
    found = bound_sympy(node.meta["val"].node.expr, importer.program.range_constraints)
    return (max(int(found.lower), 0), int(found.upper)) if found.upper.is_Integer else None


def _replaced(value: Any, declared: dict[relax.Expr, Any]) -> Any:
    if isinstance(value, list):
        return [_replaced(item, declared) for item in value]
    return declared.get(value, value) if isinstance(value, relax.Expr) else value


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


# ---- shapes ------------------------------------------------------------------------------------------------------


@_converter("sym_size")
def _size(importer: Any, sizes: Sizes, x: relax.Expr, dim: int) -> Any:
    return shapes.dims_of(sizes, x)[dim]


@_converter("sym_numel", "numel")
def _elements(importer: Any, sizes: Sizes, x: relax.Expr) -> Any:
    return reduce(sizes.times, shapes.dims_of(sizes, x), 1)


@_converter("view", "reshape", "_unsafe_view")
def _reshape(importer: Any, sizes: Sizes, x: relax.Expr, dims: list[Any]) -> relax.Expr:
    return shapes.reshape(sizes, x, dims, importer.label)


@_converter("flatten")
def _flatten(importer: Any, sizes: Sizes, x: relax.Expr, start: int, end: int) -> relax.Expr:
    dims = shapes.dims_of(sizes, x)
    first, last = start % len(dims), end % len(dims)
    flat = reduce(sizes.times, dims[first : last + 1], 1)
    return shapes.reshape(sizes, x, [*dims[:first], flat, *dims[last + 1 :]], importer.label)


@_converter("unflatten")
def _unflatten(importer: Any, sizes: Sizes, x: relax.Expr, dim: int, parts: list[Any]) -> relax.Expr:
    dims = shapes.dims_of(sizes, x)
    axis = dim % len(dims)
    return shapes.reshape(sizes, x, [*dims[:axis], *parts, *dims[axis + 1 :]], importer.label)


@_converter("expand", "broadcast_to")
def _expand(importer: Any, sizes: Sizes, x: relax.Expr, dims: list[Any], _implicit: bool = False) -> relax.Expr:
    return shapes.broadcast(sizes, x, [1 if dim == -1 else dim for dim in dims], importer.label)


@_converter("zeros", "ones", "full")
def _full(importer: Any, sizes: Sizes, dims: list[Any], *rest: Any) -> relax.Expr:
    return _filled(importer, sizes, dims, rest)


@_converter("new_zeros", "new_ones", "new_full")
def _new(importer: Any, sizes: Sizes, x: relax.Expr, dims: list[Any], *rest: Any) -> relax.Expr:
    return _filled(importer, sizes, dims, rest)


@_converter("zeros_like", "ones_like", "full_like")
def _like(importer: Any, sizes: Sizes, x: relax.Expr, *rest: Any) -> relax.Expr:
    return _filled(importer, sizes, shapes.dims_of(sizes, x), rest)


def _filled(importer: Any, sizes: Sizes, dims: list[Any], rest: tuple[Any, ...]) -> relax.Expr:
    name = str(importer.node.target).split(".")[1].removeprefix("new_").removesuffix("_like")
    value = {"zeros": 0, "ones": 1}.get(name)
    value = rest[0] if value is None else value
    if isinstance(value, Size):
        raise refusal(value, "a tensor of such values")
    return shapes.full(sizes, dims, np.asarray(value, dtype_name(importer.meta.dtype)), importer.label)


@_converter("arange")
def _arange(importer: Any, sizes: Sizes, *_arguments: Any) -> relax.Expr:
    declared = {number: _declared(importer, sizes, node) for number, node in _computed_dims(importer).items()}
    numbers = _replaced([importer.resolve(arg) for arg in importer.node.args], declared)
    start, stop, step = [0, *numbers, 1] if len(numbers) == 1 else [*numbers, 1][:3]
    if not isinstance(start, int) or start < 0 or step != 1 or not isinstance(stop, Size):
        raise UnsupportedOperatorError("a range other than from an integer up to a size in steps of 1")
    count = sizes.greatest(sizes.plus(stop, -start), 0) if start else stop
    dtype = dtype_name(importer.meta.dtype)
    return shapes.counting(sizes, start, count, 1, dtype) if isinstance(count, Size) else constant(np.zeros(0, dtype))


# ---- parts -------------------------------------------------------------------------------------------------------


@_converter("slice")
def sliced(importer: Any, sizes: Sizes, x: relax.Expr, dim: int, start: Any, end: Any, step: int) -> relax.Expr:
    """x[…, start:end:step, …], whose bounds may be sizes or scalars computed at run time."""
    axis = dim % len(shape_of(x))
    first, last = 0 if start is None else start, build.WHOLE if end is None else end
    length = importer.meta.shape[axis]
    if isinstance(first, relax.Expr) and isinstance(length, int) and not sizes.of(x):
        return window(importer, x, axis, first, length, step)
    size = shapes.dims_of(sizes, x)[axis]
    if isinstance(last, relax.Expr) and isinstance(size, int) and first == 0:
        last = _length(importer, sizes, last, size)
    first, last = (build.computed_position(sizes, bound, size, importer.label) for bound in (first, last))
    if (first, step) == (0, 1) and isinstance(last, int) and last >= build.WHOLE:
        return x
    return build.sliced(sizes, x, axis, first, last, step)


def _length(importer: Any, sizes: Sizes, last: relax.Expr, size: int) -> Any:
    """The end of a part from 0 on: the size that it is if the program declares that it is within the axis."""
    node = _computed_dims(importer).get(last)
    limits = _range(importer, node) if node is not None else None
    return last if node is None or limits is None or limits[1] > size else _declared(importer, sizes, node)


@_converter("narrow")
def _narrow(importer: Any, sizes: Sizes, x: relax.Expr, dim: int, start: Any, length: Any) -> relax.Expr:
    axis = dim % len(shape_of(x))
    if isinstance(start, relax.Expr) or isinstance(length, relax.Expr):
        return narrowed(importer, sizes, x, axis, start, length)
    return build.sliced(sizes, x, axis, start, sizes.plus(start, length))


def narrowed(importer: Any, sizes: Sizes, x: relax.Expr, axis: int, start: Any, length: Any) -> relax.Expr:
    """`length` positions from `start` on, either of which may be a scalar computed at run time."""
    if isinstance(length, int) and not sizes.of(x):
        return window(importer, x, axis, start, length)
    if isinstance(start, Size) or isinstance(length, Size):
        raise refusal(start if isinstance(start, Size) else length, "a part of such a size at a place computed here")
    end = relax.op.add(*(cast(importer, value, "int64") for value in (start, length)))
    return sliced(importer, sizes, x, axis, start, importer.emit(end), 1)


def window(importer: Any, x: relax.Expr, axis: int, start: relax.Expr, length: int, step: int = 1) -> relax.Expr:
    """As many positions as are known, from one computed at run time on; those beyond the end are the last one."""
    steps = constant(np.arange(length, dtype=np.int64) * step)
    first = importer.emit(relax.op.reshape(cast(importer, start, "int64"), (1,)))
    places = importer.emit(relax.op.add(steps, first))
    return importer.emit(relax.op.take(x, places, axis, mode="clip"))


@_converter("topk")
def _top_k(importer: Any, sizes: Sizes, x: relax.Expr, k: Any, dim: int, largest: bool, _sorted: bool) -> Any:
    return build.top_k(sizes, x, k, dim % len(shape_of(x)), bool(largest), "int64", importer.label)


@_converter("sort")
def _sort(importer: Any, sizes: Sizes, x: relax.Expr, *options: Any) -> Any:
    """(…, dim, descending), after `stable` in one overload."""
    dim, descending = options[-2:]
    axis = axes_of(dim, len(shape_of(x)))[0]
    order = importer.emit(relax.op.argsort(x, axis, descending, "int64"))
    return importer.emit(relax.op.sort(x, axis, descending)), order


@_converter("pad", "constant_pad_nd")
def _pad(importer: Any, sizes: Sizes, x: relax.Expr, pad: list[Any], *options: Any) -> relax.Expr:
    mode, value = options if len(options) == 2 else ("constant", options[0])
    if mode != "constant":
        sizes.refuse([x], f"padding in mode {mode!r}")
        raise UnsupportedOperatorError(f"padding in mode {mode!r} by a size known only at run time")
    axes = [len(shape_of(x)) - 1 - index for index in range(len(pad) // 2)]
    number = np.asarray(0 if value is None else value, str(x.ty.dtype))
    return build.padded(sizes, x, axes, [*pad[::2], *pad[1::2]], number, importer.label)
