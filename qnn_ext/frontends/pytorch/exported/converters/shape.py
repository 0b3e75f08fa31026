"""Operators that move values, cast them or look them up in a table."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from tvm import relax

from ..... import op as qnn
from .....errors import UnsupportedOperatorError
from .....limits import check_elements
from .....op.base import constant, constant_value, shape_of
from ....run_time import check_count, checked_indices
from ...bags import members, reduced, without
from ..registry import converter
from ..run_time_sizes import narrowed, sliced
from ..values import ComplexValue, axes_of, cast, dtype_name, reshape


def static(dims: Any) -> list[int]:
    """A shape argument as integers. Raises UnsupportedOperatorError when a dimension is computed from data."""
    if any(isinstance(dim, relax.Expr) for dim in dims):
        raise UnsupportedOperatorError("a dimension depends on the data, which is not supported")
    return [int(dim) for dim in dims]


@converter("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")
def _reshape(importer: Any, x: relax.Expr, shape: Any) -> relax.Expr:
    dims = static(shape)
    if -1 in dims:
        rest = math.prod(dim for dim in dims if dim != -1)
        dims[dims.index(-1)] = math.prod(shape_of(x)) // max(rest, 1)
    return reshape(importer, x, dims)


@converter("aten.flatten.using_ints")
def _flatten(importer: Any, x: relax.Expr, start: int, end: int) -> relax.Expr:
    dims = shape_of(x)
    if not dims:
        return reshape(importer, x, (1,))
    first, last = start % len(dims), end % len(dims)
    return reshape(importer, x, [*dims[:first], math.prod(dims[first : last + 1]), *dims[last + 1 :]])


@converter("aten.unflatten.int")
def _unflatten(importer: Any, x: relax.Expr, dim: int, sizes: Any) -> relax.Expr:
    dims, sizes = shape_of(x), static(sizes)
    axis = dim % len(dims)
    if -1 in sizes:
        sizes[sizes.index(-1)] = dims[axis] // math.prod(size for size in sizes if size != -1)
    return reshape(importer, x, [*dims[:axis], *sizes, *dims[axis + 1 :]])


@converter("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def _squeeze(importer: Any, x: relax.Expr, dims: Any = None) -> relax.Expr:
    shape = shape_of(x)
    axes = axes_of(dims, len(shape))
    return reshape(importer, x, [size for axis, size in enumerate(shape) if axis not in axes or size != 1])


@converter("aten.unsqueeze.default")
def _unsqueeze(importer: Any, x: relax.Expr, dim: int) -> relax.Expr:
    shape = list(shape_of(x))
    shape.insert(dim % (len(shape) + 1), 1)
    return reshape(importer, x, shape)


def _permuted(importer: Any, x: relax.Expr, axes: list[int]) -> relax.Expr:
    return x if axes == sorted(axes) else importer.emit(relax.op.permute_dims(x, axes))


@converter("aten.permute.default", "aten.permute_copy.default")
def _permute(importer: Any, x: relax.Expr, dims: Any) -> relax.Expr:
    return _permuted(importer, x, axes_of(list(dims), len(shape_of(x))))


@converter("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default")
def _transpose(importer: Any, x: relax.Expr, one: int, two: int) -> relax.Expr:
    axes = list(range(len(shape_of(x))))
    one, two = one % max(len(axes), 1), two % max(len(axes), 1)
    if axes:
        axes[one], axes[two] = two, one
    return _permuted(importer, x, axes)


@converter("aten.t.default", "aten.numpy_T.default", "aten.mT.default", "aten.mH.default", "aten.adjoint.default")
def _t(importer: Any, x: relax.Expr) -> relax.Expr:
    axes = list(range(len(shape_of(x))))
    if "numpy_T" in str(importer.node.target):
        return _permuted(importer, x, axes[::-1])
    return _permuted(importer, x, [*axes[:-2], *axes[-2:][::-1]])


@converter("aten.movedim.int", "aten.movedim.intlist", "aten.moveaxis.int", "aten.moveaxis.intlist")
def _movedim(importer: Any, x: relax.Expr, source: Any, destination: Any) -> relax.Expr:
    ndim = len(shape_of(x))
    moved = dict(zip(axes_of(destination, ndim), axes_of(source, ndim), strict=True))
    rest = iter(axis for axis in range(ndim) if axis not in moved.values())
    return _permuted(importer, x, [moved[axis] if axis in moved else next(rest) for axis in range(ndim)])


@converter("aten.expand.default", "aten.broadcast_to.default")
def _expand(importer: Any, x: relax.Expr, sizes: Any, _implicit: bool = False) -> relax.Expr:
    sizes, shape = static(sizes), shape_of(x)
    shape = (1,) * (len(sizes) - len(shape)) + shape
    target = tuple(have if want == -1 else want for want, have in zip(sizes, shape, strict=True))
    return x if target == shape_of(x) else importer.emit(relax.op.broadcast_to(x, target))


@converter("aten.repeat.default")
def _repeat(importer: Any, x: relax.Expr, repeats: Any) -> relax.Expr:
    return importer.emit(relax.op.tile(x, static(repeats)))


@converter("aten.cat.default", "aten.concat.default", "aten.concatenate.default")
def _cat(importer: Any, tensors: list[relax.Expr], dim: int) -> relax.Expr:
    """An empty one-dimensional tensor among the others is ignored."""
    tensors = [cast(importer, x, importer.dtype) for x in tensors if shape_of(x) != (0,)]
    return importer.emit(relax.op.concat(tensors, axis=dim % len(shape_of(tensors[0]))))


@converter("aten.stack.default")
def _stack(importer: Any, tensors: list[relax.Expr], dim: int) -> relax.Expr:
    axis = dim % (len(shape_of(tensors[0])) + 1)
    parts = [_unsqueeze(importer, x, axis) for x in tensors]
    return importer.emit(relax.op.concat(parts, axis=axis))


def _part(importer: Any, x: relax.Expr, axis: int, begin: int, end: int, step: int = 1) -> relax.Expr:
    """x[…, begin:end:step, …]."""
    if (begin, step) == (0, 1) and end >= shape_of(x)[axis]:
        return x
    return importer.emit(relax.op.strided_slice(x, [axis], [begin], [end], [step], assume_inbound=False))


@converter("aten.slice.Tensor")
def _slice(importer: Any, x: relax.Expr, dim: int, start: Any, end: Any, step: int) -> relax.Expr:
    axis = dim % len(shape_of(x))
    if isinstance(start, relax.Expr) or isinstance(end, relax.Expr):
        return sliced(importer, importer.assembly.builder.sizes, x, axis, start, end, int(step))
    begin, stop, _ = slice(*static([start or 0, 2**62 if end is None else end])).indices(shape_of(x)[axis])
    return _part(importer, x, axis, begin, max(begin, stop), int(step))


@converter("aten.narrow.default")
def _narrow(importer: Any, x: relax.Expr, dim: int, start: Any, length: Any) -> relax.Expr:
    axis = dim % len(shape_of(x))
    if isinstance(start, relax.Expr) or isinstance(length, relax.Expr):
        return narrowed(importer, importer.assembly.builder.sizes, x, axis, start, length)
    begin = start % max(shape_of(x)[axis], 1)
    return _part(importer, x, axis, begin, begin + length)


@converter("aten.select.int")
def _select(importer: Any, x: relax.Expr, dim: int, index: int) -> relax.Expr:
    shape = shape_of(x)
    axis = dim % len(shape)
    begin = static([index])[0] % shape[axis]
    part = _part(importer, x, axis, begin, begin + 1)
    return reshape(importer, part, [*shape[:axis], *shape[axis + 1 :]])


@converter("aten.split.Tensor", "aten.split_with_sizes.default", "aten.split.sizes")
def _split(importer: Any, x: relax.Expr, sizes: Any, dim: int) -> tuple[relax.Expr, ...]:
    axis = dim % len(shape_of(x))
    length = shape_of(x)[axis]
    if not isinstance(sizes, (list, tuple)):
        sizes = [min(int(sizes), length - begin) for begin in range(0, length, int(sizes))]
    ends = np.cumsum(static(sizes))
    return tuple(_part(importer, x, axis, int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True))


@converter("aten.chunk.default")
def _chunk(importer: Any, x: relax.Expr, chunks: int, dim: int) -> tuple[relax.Expr, ...]:
    """Pieces of ⌈length / chunks⌉; the last is shorter, and there may be fewer than requested."""
    return _split(importer, x, -(-shape_of(x)[dim % len(shape_of(x))] // chunks), dim)


@converter("aten.unbind.int")
def _unbind(importer: Any, x: relax.Expr, dim: int) -> tuple[relax.Expr, ...]:
    return tuple(_select(importer, x, dim, index) for index in range(shape_of(x)[dim % len(shape_of(x))]))


@converter("aten.pad.default", "aten.constant_pad_nd.default")
def _pad(importer: Any, x: relax.Expr, pad: Any, *options: Any) -> relax.Expr:
    """Pairs (before, after) from the last dimension backwards; a negative pad crops."""
    mode, value = options if len(options) == 2 else ("constant", options[0])
    widths, ndim = static(pad), len(shape_of(x))
    pairs = [(ndim - 1 - i, widths[2 * i], widths[2 * i + 1]) for i in range(len(widths) // 2)]
    if mode != "constant":
        return _pad_with_values(importer, x, pairs, mode)
    flat = [0] * (2 * ndim)
    for axis, before, after in pairs:
        x = _part(importer, x, axis, max(0, -before), shape_of(x)[axis] + min(0, after))
        flat[2 * axis : 2 * axis + 2] = [max(0, before), max(0, after)]
    return (
        importer.emit(relax.op.nn.pad(x, flat, "constant", 0.0 if value is None else float(value))) if any(flat) else x
    )


def _pad_with_values(importer: Any, x: relax.Expr, pairs: list[tuple[int, int, int]], mode: str) -> relax.Expr:
    """Padding with values of the tensor itself, chosen as NumPy does."""
    modes = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode not in modes or any(min(before, after) < 0 for _, before, after in pairs):
        raise UnsupportedOperatorError(f"padding in mode {mode!r} by {pairs} is not supported")
    for axis, before, after in pairs:
        if before or after:
            check_elements((shape_of(x)[axis] + before + after,), "the padded axis", "folded")
            rows = np.pad(np.arange(shape_of(x)[axis]), (before, after), modes[mode])  # type: ignore[call-overload]
            x = importer.emit(relax.op.take(x, constant(rows), axis=axis))
    return x


@converter(
    "aten.contiguous.default",
    "aten.clone.default",
    "aten.alias.default",
    "aten.detach.default",
    "aten.lift_fresh_copy.default",
    "aten.lift_fresh.default",
    "aten.view_as.default",
)
def _same(importer: Any, x: relax.Expr, *_options: Any) -> relax.Expr:
    return x


@converter(
    "aten.to.dtype",
    "aten.to.dtype_layout",
    "aten.to.device",
    "aten.to.other",
    "aten._to_copy.default",
    "aten.type_as.default",
    "aten.float.default",
    "quantized_decomposed.convert_element_type.no_fuse",
    complex_numbers=True,
)
def _to(importer: Any, x: Any, *_options: Any) -> Any:
    """A cast to the dtype that the program declares. Integer weights become float through R.qnn.dequantize with scale
    1, so they stay integers in the module."""
    if importer.meta.dtype.is_complex:
        dtype = dtype_name(importer.meta.dtype.to_real())
        parts = [x.real, x.imaginary] if isinstance(x, ComplexValue) else [x]
        return ComplexValue(*(part if part is None else cast(importer, part, dtype) for part in parts))
    if isinstance(x, ComplexValue):
        x = x.real  # as in PyTorch
    value = constant_value(x)
    if value is not None and value.dtype.itemsize == 1 and value.ndim >= 2 and importer.dtype == "float32":
        return importer.emit(qnn.dequantize(x, np.float32(1), np.int32(0)))
    real = cast(importer, x, importer.dtype)
    source = importer.node.args[0]
    narrows = importer.meta.dtype == torch.bfloat16 and _declared(source) != torch.bfloat16
    return importer.emit(qnn.bfloat16(real)) if narrows else real


def _declared(source: Any) -> torch.dtype | None:
    """The dtype that the program declares for an argument; None for a number."""
    value = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None


@converter("aten.embedding.default")
def _embedding(importer: Any, table: relax.Expr, indices: relax.Expr, *_options: Any) -> relax.Expr:
    rows = checked_indices(importer.emit, indices, shape_of(table)[0], importer.label)
    return importer.emit(relax.op.take(table, rows, axis=0, mode="clip"))


@converter("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
def _embedding_bag(
    importer: Any,
    table: relax.Expr,
    indices: relax.Expr,
    offsets: relax.Expr,
    _scale_grad: bool = False,
    mode: int = 0,
    _sparse: bool = False,
    weights: relax.Expr | None = None,
    closed: bool = False,
    padding: int | None = None,
) -> list[relax.Expr | None]:
    """Of the rows in each bag the sum, the mean or the largest values; 0 of a bag without rows. Of the operator's
    results only the first one is supported."""
    rows = _embedding(importer, table, indices)
    inside = members(importer.emit, offsets, shape_of(indices)[0], closed)
    return [reduced(importer.emit, rows, without(importer.emit, inside, indices, padding), mode, weights), *[None] * 3]


@converter("aten.index_select.default")
def _index_select(importer: Any, x: relax.Expr, dim: int, indices: relax.Expr) -> relax.Expr:
    axis = dim % len(shape_of(x))
    places = checked_indices(importer.emit, indices, shape_of(x)[axis], importer.label)
    return importer.emit(relax.op.take(x, places, axis=axis, mode="clip"))


@converter("aten.item.default", "aten._local_scalar_dense.default")
def _item(importer: Any, x: relax.Expr) -> relax.Expr:
    """A tensor of one number as a scalar."""
    return reshape(importer, x, ())


@converter("aten.sym_size.int")
def _size(importer: Any, x: relax.Expr, dim: int) -> int:
    return shape_of(x)[dim]


@converter("aten.sym_numel.default", "aten.numel.default")
def _elements(importer: Any, x: relax.Expr) -> int:
    return math.prod(shape_of(x))


@converter("aten.where.self", "aten.where.ScalarOther", "aten.where.ScalarSelf", "aten.where.Scalar")
def _where(importer: Any, condition: relax.Expr, one: Any, two: Any) -> relax.Expr:
    one, two = cast(importer, one, importer.dtype), cast(importer, two, importer.dtype)
    return importer.emit(relax.op.where(condition, one, two))


@converter("aten.masked_fill.Scalar", "aten.masked_fill.Tensor")
def _masked_fill(importer: Any, x: relax.Expr, mask: relax.Expr, value: Any) -> relax.Expr:
    return importer.emit(relax.op.where(mask, cast(importer, value, importer.dtype), x))


@converter("aten.fill.Scalar", "aten.fill.Tensor")
def _fill(importer: Any, x: relax.Expr, value: Any) -> relax.Expr:
    return _expand(importer, cast(importer, value, importer.dtype), list(shape_of(x)))


@converter("aten.copy.default")
def _copy(importer: Any, x: relax.Expr, source: relax.Expr, _non_blocking: bool) -> relax.Expr:
    return _expand(importer, cast(importer, source, importer.dtype), list(shape_of(x)))


@converter("aten.pixel_shuffle.default")
def _pixel_shuffle(importer: Any, x: relax.Expr, factor: int) -> relax.Expr:
    *batch, channels, height, width = shape_of(x)
    count, ndim = channels // factor**2, len(batch)
    blocks = reshape(importer, x, [*batch, count, factor, factor, height, width])
    order = [ndim, ndim + 3, ndim + 1, ndim + 4, ndim + 2]
    moved = _permuted(importer, blocks, [*range(ndim), *order])
    return reshape(importer, moved, [*batch, count, height * factor, width * factor])


@converter("aten.topk.default")
def _top_k(importer: Any, x: relax.Expr, k: int, dim: int, largest: bool, _sorted: bool) -> Any:
    """The k largest or smallest values along an axis, and where they were; in order also if that is not asked for."""
    shape = shape_of(x)
    if not shape:
        check_count(k, 1, importer.label)
        return x, constant(np.int64(0))
    axis = dim % len(shape)
    check_count(k, shape[axis], importer.label)
    both = importer.emit(relax.op.topk(x, k, axis, "both", bool(largest), "int64"))
    return relax.TupleGetItem(both, 0), relax.TupleGetItem(both, 1)


@converter(
    "aten.ones_like.default", "aten.zeros_like.default", "aten.full_like.default", "aten.new_zeros.default",
    "aten.new_ones.default", "aten.new_full.default", "aten.zeros.default", "aten.ones.default", "aten.full.default",
    "aten.arange.default", "aten.arange.start", "aten.arange.start_step", "aten.scalar_tensor.default",
)  # fmt: skip
def _filled(importer: Any, *_arguments: Any) -> relax.Expr:
    """Tensors whose values follow from their shape, made at import."""
    node, meta = importer.node, importer.meta
    name = str(node.target).split(".")[1]
    numbers = [importer.resolve(arg) for arg in node.args]
    dtype = dtype_name(meta.dtype)
    if name == "arange":
        check_elements((_count(*numbers),), "the range", "folded")
        return constant(np.arange(*numbers).astype(dtype))
    if name == "scalar_tensor":
        return constant(np.asarray(numbers[0], dtype))
    position = 1 if name.startswith("new_") else 0
    shape = list(shape_of(_arguments[0])) if name.endswith("_like") else static(_arguments[position])
    value = {"ones": 1, "zeros": 0}.get(name.removeprefix("new_").removesuffix("_like"))
    value = numbers[position + 1] if value is None else value
    return constant(np.full(check_elements(shape, "the tensor", "folded"), value, dtype))


def _count(first: float, stop: float | None = None, step: float = 1) -> int:
    """The number of elements in a range: (stop), (start, stop) or (start, stop, step)."""
    start, end = (0, first) if stop is None else (first, stop)
    return max(math.ceil((end - start) / step), 0)
