"""Operators that only move values: floats, or the integers of quantized tensors. The shape comes from the example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from .....op.base import constant, shape_of
from ....building import to_bfloat16
from ....run_time import checked_indices
from ...indexing import elements_at
from ...training import check_training
from ..node import Node
from ..registry import converter
from ..values import plain, traced_in


def _axis(node: Node, name: str = "dim", argument: str = "self") -> int:
    rank = len(node.shape_of(argument))
    return int(node[name]) % max(rank, 1)


@converter(
    "aten::reshape", "aten::view", "aten::flatten", "aten::squeeze", "aten::unsqueeze", "aten::unflatten",
    "aten::_reshape_alias", "aten::squeeze_", "aten::unsqueeze_", "aten::reshape_as", "aten::view_as", "aten::ravel",
    "aten::expand_dims",
)  # fmt: skip
def _reshape(node: Node) -> relax.Expr:
    return node.move(node.expr("self"))


@converter(
    "aten::contiguous", "aten::dropout", "aten::dropout_", "aten::feature_dropout", "aten::feature_dropout_",
    "aten::alpha_dropout", "aten::alpha_dropout_", "aten::detach", "aten::clone", "aten::alias", "aten::lift_fresh",
    "quantized::dropout", "aten::cpu", "aten::identity", "aten::feature_alpha_dropout", "aten::detach_",
    "aten::requires_grad_", "aten::positive",
)  # fmt: skip
def _identity(node: Node) -> relax.Expr:
    if "dropout" in node.kind:
        check_training(any(node.get(name, False) for name in ("train", "training")), float(node["p"]))
    return node.expr("self" if "self" in node.arguments else "input" if "input" in node.arguments else "qx")


@converter("aten::resolve_conj", "aten::resolve_neg")
def _itself(node: Node) -> Any:
    """PyTorch returns the operand itself, so what else is known of it stays known, such as that it is batch sizes."""
    return node.raw("self")


@converter("aten::permute")
def _permute(node: Node) -> relax.Expr:
    rank = len(node.shape)
    return relax.op.permute_dims(node.expr("self"), [int(axis) % rank for axis in node["dims"]])


@converter("aten::transpose", "aten::transpose_", "aten::swapaxes", "aten::swapdims")
def _transpose(node: Node) -> relax.Expr:
    rank = len(node.shape)
    names = [name for name in node.arguments if name not in ("self",)]
    one, two = (int(node[name]) % max(rank, 1) for name in names[:2])
    axes = list(range(rank))
    if rank:
        axes[one], axes[two] = axes[two], axes[one]
    return relax.op.permute_dims(node.expr("self"), axes)


@converter("aten::t", "aten::numpy_T")
def _reversed_axes(node: Node) -> relax.Expr:
    return relax.op.permute_dims(node.expr("self"), list(reversed(range(len(node.shape)))))


@converter("aten::mT", "aten::mH", "aten::adjoint", takes=lambda arguments: not arguments["self"].is_complex())
def _matrix_transpose(node: Node) -> relax.Expr:
    """Of the last two axes; of a real matrix the adjoint is the transpose."""
    rank = len(node.shape)
    return relax.op.permute_dims(node.expr("self"), [*range(rank - 2), rank - 1, rank - 2])


@converter("aten::movedim", "aten::moveaxis")
def _movedim(node: Node) -> relax.Expr:
    rank = len(node.shape)
    source, target = (
        [int(a) % rank for a in (node[name] if isinstance(node[name], (list, tuple)) else [node[name]])]
        for name in ("source", "destination")
    )
    axes = [axis for axis in range(rank) if axis not in source]
    for where, axis in sorted(zip(target, source, strict=True)):
        axes.insert(where, axis)
    return relax.op.permute_dims(node.expr("self"), axes)


# ---- parts -------------------------------------------------------------------------------------------------------


def part(node: Node, axis: int, begin: int, end: int, step: int = 1) -> relax.Expr:
    """`self` from begin to end along an axis, with bounds as in Python's slices."""
    low, high, _ = slice(begin, end, step).indices(node.shape_of("self")[axis])
    value = node.expr("self")
    if (low, high, step) == (0, node.shape_of("self")[axis], 1):
        return value
    return node.emit(relax.op.strided_slice(value, axes=[axis], begin=[low], end=[max(high, low)], strides=[step]))


@converter("aten::slice")
def _slice(node: Node) -> relax.Expr:
    return part(node, _axis(node), node.get("start"), node.get("end"), int(node.get("step", 1)))


@converter("aten::narrow")
def _narrow(node: Node) -> relax.Expr:
    axis = _axis(node)
    start = int(node["start"]) % node.shape_of("self")[axis]
    return part(node, axis, start, start + int(node["length"]))


@converter("aten::select")
def _select(node: Node) -> relax.Expr:
    axis = _axis(node)
    index = int(node["index"]) % node.shape_of("self")[axis]
    return node.move(part(node, axis, index, index + 1))


@converter("aten::chunk", "aten::split", "aten::split_with_sizes", "aten::tensor_split", "aten::unsafe_chunk",
           "aten::unsafe_split")  # fmt: skip
def _split(node: Node) -> list[relax.Expr]:
    axis, begin, parts = _axis(node), 0, []
    for example in node.examples[0]:
        parts.append(part(node, axis, begin, begin + example.shape[axis]))
        begin += example.shape[axis]
    return parts


@converter("aten::unbind")
def _unbind(node: Node) -> list[relax.Expr]:
    axis = _axis(node)
    shape = [size for index, size in enumerate(node.shape_of("self")) if index != axis]
    return [
        node.emit(relax.op.reshape(part(node, axis, index, index + 1), shape)) for index in range(len(node.examples[0]))
    ]


@converter("aten::index_select")
def _index_select(node: Node) -> relax.Expr:
    axis = _axis(node)
    indices = checked_indices(node.emit, node.expr("index"), node.shape_of("self")[axis], node.label)
    return relax.op.take(node.expr("self"), indices, axis=axis, mode="clip")


@converter("aten::index")
def _index(node: Node) -> relax.Expr:
    """x[:, i], x[i, j], … by tensors of integers."""
    indices = [None if value is None else node.to_expr(value) for value in node.raw("indices")]
    return elements_at(node.emit, node.expr("self"), indices, node.label)


@converter("aten::gather")
def _gather(node: Node) -> relax.Expr:
    """The element of each row along an axis that an index of the result's shape names."""
    axis = _axis(node)
    indices = checked_indices(node.emit, node.expr("index"), node.shape_of("self")[axis], node.label)
    return relax.op.gather_elements(node.expr("self"), indices, axis)


@converter("aten::flip")
def _flip(node: Node) -> relax.Expr:
    value = node.expr("self")
    for axis in node["dims"]:
        value = node.emit(relax.op.flip(value, int(axis) % len(node.shape)))
    return value


@converter("aten::roll")
def _roll(node: Node) -> relax.Expr:
    """x[i − shift], around the end; without `dims`, of the flattened tensor."""
    value, shifts, axes = node.expr("self"), node["shifts"], node["dims"]
    if not axes:
        value, axes = node.emit(relax.op.reshape(value, [-1])), [0]
    for shift, axis in zip(shifts, axes, strict=True):
        axis, size = int(axis) % len(shape_of(value)), shape_of(value)[int(axis)]
        cut = -int(shift) % size if size else 0
        if cut:
            parts = [
                node.emit(relax.op.strided_slice(value, axes=[axis], begin=[begin], end=[end]))
                for begin, end in ((cut, size), (0, cut))
            ]
            value = node.emit(relax.op.concat(parts, axis))
    return node.move(value)


@converter("aten::pixel_shuffle")
def _pixel_shuffle(node: Node) -> relax.Expr:
    *lead, c, h, w = node.shape_of("self")
    r = int(node["upscale_factor"])
    split = node.emit(relax.op.reshape(node.expr("self"), [*lead, c // (r * r), r, r, h, w]))
    n = len(lead)
    return node.move(relax.op.permute_dims(split, [*range(n), n, n + 3, n + 1, n + 4, n + 2]))


@converter("aten::pixel_unshuffle")
def _pixel_unshuffle(node: Node) -> relax.Expr:
    *lead, c, h, w = node.shape_of("self")
    r = int(node["downscale_factor"])
    split = node.emit(relax.op.reshape(node.expr("self"), [*lead, c, h // r, r, w // r, r]))
    n = len(lead)
    return node.move(relax.op.permute_dims(split, [*range(n), n, n + 2, n + 4, n + 1, n + 3]))


@converter("aten::channel_shuffle")
def _channel_shuffle(node: Node) -> relax.Expr:
    n, c, *rest = node.shape_of("self")
    groups = int(node["groups"])
    split = node.emit(relax.op.reshape(node.expr("self"), [n, groups, c // groups, *rest]))
    return node.move(relax.op.permute_dims(split, [0, 2, 1, *range(3, 3 + len(rest))]))


# ---- copies ------------------------------------------------------------------------------------------------------


@converter("aten::expand", "aten::expand_as", "aten::broadcast_to")
def _expand(node: Node) -> relax.Expr:
    value, shape = node.expr("self"), node.shape
    if len(shape_of(value)) < len(shape):
        value = node.emit(relax.op.reshape(value, [1] * (len(shape) - len(shape_of(value))) + list(shape_of(value))))
    return relax.op.broadcast_to(value, list(shape))


@converter("aten::repeat")
def _repeat(node: Node) -> relax.Expr:
    return relax.op.tile(node.expr("self"), [int(n) for n in node["repeats"]])


@converter("aten::cat", "aten::concat", "aten::concatenate")
def _cat(node: Node) -> relax.Expr:
    tensors = [value for value in node.raw("tensors") if plain(value).dim() > 1 or plain(value).numel()]
    return relax.op.concat([_as_result(node, value) for value in tensors], int(node["dim"]) % len(node.shape))


@converter("aten::stack")
def _stack(node: Node) -> relax.Expr:
    axis = int(node["dim"]) % len(node.shape)
    fields = [node.emit(relax.op.expand_dims(_as_result(node, value), axis)) for value in node.raw("tensors")]
    return relax.op.concat(fields, axis)


def _as_result(node: Node, value: Any) -> relax.Expr:
    """A float tensor in the result's dtype, a quantized one in the result's QParams, which are those of the first."""
    from ..values import dtype_name
    from .arithmetic import requantized

    if node.output is not None:
        return requantized(node, value, node.output)
    expr, dtype = node.to_expr(value), dtype_name(node.examples[0])
    return expr if str(expr.ty.dtype) == dtype else node.emit(relax.op.astype(expr, dtype))


# ---- padding -----------------------------------------------------------------------------------------------------


@converter("aten::constant_pad_nd", "aten::pad")
def _pad(node: Node) -> relax.Expr:
    """The padding's real value in the tensor's QParams, as PyTorch quantizes it."""
    mode = str(node.get("mode", "constant"))
    value = float(node.get("value", 0.0) or 0.0)
    if mode != "constant":
        return _mirrored(node, mode, node["pad"])
    rank = len(node.shape)
    widths = [0] * (2 * rank)
    for index, width in enumerate(node["pad"]):
        widths[2 * (rank - 1 - index // 2) + index % 2] = int(width)
    data, out = node.expr("self"), node.output
    if min(widths) < 0:
        begin = [max(-w, 0) for w in widths[0::2]]
        end = [size - max(-w, 0) for size, w in zip(node.shape_of("self"), widths[1::2], strict=True)]
        data = node.emit(relax.op.strided_slice(data, axes=list(range(rank)), begin=begin, end=end))
        widths = [max(w, 0) for w in widths]
    if not any(widths):
        return data
    fill = value if out is None else int(out.quantize(value))
    return relax.op.nn.pad(data, widths, pad_mode="constant", pad_value=fill)


@converter("aten::reflection_pad1d", "aten::reflection_pad2d", "aten::reflection_pad3d",
           "aten::replication_pad1d", "aten::replication_pad2d", "aten::replication_pad3d")  # fmt: skip
def _mirrored_pad(node: Node) -> relax.Expr:
    return _mirrored(node, "reflect" if "reflection" in node.kind else "replicate", node["padding"])


def _mirrored(node: Node, mode: str, widths: Sequence[int]) -> relax.Expr:
    """Padding with elements of the tensor itself, the last axis first."""
    modes = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    if mode not in modes or min(widths, default=0) < 0:
        raise node.unsupported(f"padding of mode {mode} by {list(widths)}")
    data, rank = node.expr("self"), len(node.shape)
    for index in range(0, len(widths), 2):
        axis, pair = rank - 1 - index // 2, (int(widths[index]), int(widths[index + 1]))
        if any(pair):
            places = np.pad(np.arange(shape_of(data)[axis]), pair, mode=modes[mode])  # type: ignore[call-overload]
            data = node.emit(relax.op.take(data, constant(places), axis, mode="clip"))
    return data


# ---- types -------------------------------------------------------------------------------------------------------


_COMPLEX = (8, 9, 10)  # PyTorch's numbers of the complex dtypes, in a script


@converter("aten::to", "aten::type_as", "aten::float", "aten::_to_copy", "aten::int", "aten::long", "aten::half",
           "aten::double", "aten::bool", takes=lambda arguments: arguments.get("dtype") not in _COMPLEX)  # fmt: skip
def _to(node: Node) -> relax.Expr:
    from ..values import dtype_name

    value, dtype = node.expr("self"), dtype_name(node.examples[0])
    if dtype.startswith("float8"):
        raise node.unsupported(f"rounding to {dtype}; export the model in float32")
    if dtype == "bfloat16" and str(value.ty.dtype) != dtype:
        return to_bfloat16(node.emit, value)
    return value if str(value.ty.dtype) == dtype else relax.op.astype(value, dtype)


@converter("aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::new_zeros", "aten::new_ones",
           "aten::new_full", "aten::empty_like")  # fmt: skip
def _filled(node: Node) -> relax.Expr:
    """The values do not depend on the tensor whose shape they take."""
    from ..values import array_of

    assert any(True for _ in traced_in(node.raw("self")))
    array = (
        np.zeros(node.shape, array_of(node.examples[0]).dtype) if "empty" in node.kind else array_of(node.examples[0])
    )
    return constant(array)
