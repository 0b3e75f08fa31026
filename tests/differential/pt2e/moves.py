"""Moves of values: on dequantized tensors, as PT2E writes them, and on the integers themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..builder import Value
from .builder import GENERATORS, RANKS, Pt2eBuilder
from .products import weight

generates = GENERATORS.generates


def shared(b: Pt2eBuilder, rank: int | tuple[int, ...] = RANKS, **rest: Any) -> tuple[Value, Value | None]:
    """The operand to move, and the tensor whose scale quantizes the result: None where integers are moved."""
    q = b.quantized(rank, **rest)
    if b.draw.chance(0.25) and q.dtype != "uint16":  # PyTorch has few kernels for this dtype
        return q, None
    return b.dequantize(q), q


def end(b: Pt2eBuilder, value: Value, q: Value | None) -> None:
    if q is not None:
        b.finish(value, q)


def axis_of(b: Pt2eBuilder, x: Value) -> int:
    """A dimension, counted from either end."""
    return b.draw.between(-len(x.shape), len(x.shape) - 1)


def permutation(b: Pt2eBuilder, x: Value) -> list[int]:
    return [int(axis) for axis in b.draw.rng.permutation(len(x.shape))]


def factors(b: Pt2eBuilder, extent: int) -> list[int]:
    """Two factors of the number, one of them sometimes left for PyTorch to infer."""
    first = b.draw.pick([n for n in range(1, extent + 1) if extent % n == 0])
    return b.draw.pick([[first, extent // first], [first, -1]])


def flatter(b: Pt2eBuilder, x: Value) -> list[int]:
    return b.draw.pick([[-1], [x.shape[0], -1], list(reversed(x.shape)), [1, *x.shape]])


# name -> ranks, and the arguments after the tensor
ONE: dict[str, tuple[tuple[int, ...], Callable[[Pt2eBuilder, Value], tuple[Any, ...]]]] = {
    "view.default": (RANKS, lambda b, x: (flatter(b, x),)),
    "reshape.default": (RANKS, lambda b, x: (flatter(b, x),)),
    "_unsafe_view.default": (RANKS, lambda b, x: (flatter(b, x),)),
    "flatten.using_ints": (RANKS, lambda b, x: (b.draw.between(0, len(x.shape) - 1), -1)),
    "squeeze.default": (RANKS, lambda b, x: ()),
    "squeeze.dim": (RANKS, lambda b, x: (axis_of(b, x),)),
    "squeeze.dims": ((3, 4), lambda b, x: ([0, -1],)),
    "unsqueeze.default": ((1, 2, 3), lambda b, x: (axis_of(b, x),)),
    "permute.default": (RANKS, lambda b, x: (permutation(b, x),)),
    "permute_copy.default": (RANKS, lambda b, x: (permutation(b, x),)),
    "transpose.int": (RANKS, lambda b, x: (axis_of(b, x), axis_of(b, x))),
    "swapaxes.default": (RANKS, lambda b, x: (axis_of(b, x), axis_of(b, x))),
    "swapdims.default": (RANKS, lambda b, x: (axis_of(b, x), axis_of(b, x))),
    "t.default": ((1, 2), lambda b, x: ()),
    "numpy_T.default": ((2,), lambda b, x: ()),
    "mT.default": ((2, 3, 4), lambda b, x: ()),
    "adjoint.default": ((2, 3, 4), lambda b, x: ()),
    "movedim.int": (RANKS, lambda b, x: (axis_of(b, x), axis_of(b, x))),
    "moveaxis.int": (RANKS, lambda b, x: (axis_of(b, x), axis_of(b, x))),
    "movedim.intlist": ((3, 4), lambda b, x: ([0, 1], [2, 0])),
    "moveaxis.intlist": ((3, 4), lambda b, x: ([-1, 0], [0, 1])),
    "expand.default": (RANKS, lambda b, x: ([b.draw.between(1, 3), *x.shape[:-1], -1],)),
    "broadcast_to.default": (RANKS, lambda b, x: ([b.draw.between(1, 3), *x.shape],)),
    "repeat.default": ((1, 2, 3), lambda b, x: ([b.draw.pick([1, 2]) for _ in range(len(x.shape) + 1)],)),
    "slice.Tensor": (RANKS, lambda b, x: slices(b, x)),
    "narrow.default": (RANKS, lambda b, x: narrows(b, x)),
    "select.int": ((2, 3, 4), lambda b, x: selects(b, x)),
    "contiguous.default": (RANKS, lambda b, x: ()),
    "clone.default": (RANKS, lambda b, x: ()),
    "alias.default": (RANKS, lambda b, x: ()),
    "detach.default": (RANKS, lambda b, x: ()),
    "lift_fresh.default": (RANKS, lambda b, x: ()),
    "lift_fresh_copy.default": (RANKS, lambda b, x: ()),
}


def slices(b: Pt2eBuilder, x: Value) -> tuple[Any, ...]:
    axis = axis_of(b, x)
    most = x.shape[axis]
    start = b.draw.between(0, most - 1)
    return axis, b.draw.pick([start, start - most]), b.draw.pick([2**62, start + 1, most]), b.draw.pick([1, 1, 2])


def narrows(b: Pt2eBuilder, x: Value) -> tuple[int, int, int]:
    axis = axis_of(b, x)
    start = b.draw.between(0, x.shape[axis] - 1)
    return axis, start, b.draw.between(1, x.shape[axis] - start)


def selects(b: Pt2eBuilder, x: Value) -> tuple[int, int]:
    axis = axis_of(b, x)
    return axis, b.draw.between(-x.shape[axis], x.shape[axis] - 1)


@generates(*(f"aten.{name}" for name in ONE))
def move(b: Pt2eBuilder, name: str) -> None:
    ranks, arguments = ONE[name.removeprefix("aten.")]
    x, q = shared(b, ranks)
    args = arguments(b, x)
    if "view." in name:
        x = b.moved("aten.contiguous.default", x)
    result = b.moved(name, x, *args)
    end(b, result, q)


@generates("aten.unflatten.int")
def unflatten(b: Pt2eBuilder) -> None:
    x, q = shared(b, (1, 2, 3))
    axis = axis_of(b, x)
    end(b, b.moved("aten.unflatten.int", x, axis, factors(b, x.shape[axis])), q)


@generates("aten.view_as.default")
def view_as(b: Pt2eBuilder) -> None:
    x, q = shared(b)
    end(b, b.moved("aten.view_as.default", b.moved("aten.contiguous.default", x), x), q)


@generates("aten.cat.default", "aten.concat.default", "aten.concatenate.default", "aten.stack.default")
def cat(b: Pt2eBuilder, name: str) -> None:
    """Tensors with equal scales (as from PT2E's shared specification) or different ones."""
    x, q = shared(b)
    axis = b.draw.between(0, len(x.shape) - 1)
    parts = [x]
    for _ in range(b.draw.between(1, 2)):
        extent = x.shape[axis] if "stack" in name else b.draw.between(1, 5)
        shape = tuple(extent if a == axis else n for a, n in enumerate(x.shape))
        parts.append(b.real(len(shape), shape=shape) if q is not None else b.fresh(x.dtype, shape))
    result = b.call(name, parts, axis)
    end(b, result, q)


@generates("aten.split.Tensor", "aten.split_with_sizes.default", "aten.split.sizes", "aten.chunk.default",
           "aten.unbind.int")  # fmt: skip
def split(b: Pt2eBuilder, name: str) -> None:
    """Each part is quantized separately, with the scale of the whole or another."""
    x, q = shared(b, (2, 3, 4), where=lambda v: max(v.shape) < 9)
    axis = axis_of(b, x)
    most = x.shape[axis]
    first = b.draw.between(1, most)
    sizes = [first, most - first] if most > first else [most]
    arguments: dict[str, tuple[Any, ...]] = {
        "aten.split.Tensor": (first, axis),
        "aten.chunk.default": (b.draw.between(1, 4), axis),
        "aten.unbind.int": (axis,),
    }
    args = arguments.get(name, (sizes, axis))
    for part in b.results_of(name, x, *args, scale=x.scale, zero=x.zero)[:4]:
        if x.key in b.integral:
            b.mark(part)
        end(b, part, q)


@generates("aten.pad.default", "aten.constant_pad_nd.default")
def pad(b: Pt2eBuilder, name: str) -> None:
    """With a number, or with values of the tensor; a negative pad crops."""
    x, q = shared(b, (3, 4))
    count = b.draw.between(1, 2)
    widths = [b.draw.pick([0, 1, 2]) for _ in range(2 * count)]
    if b.draw.chance(0.2) and min(x.shape[-count:]) > 2:
        widths[0] = -1
    value: Any = b.draw.pick([0.0, 0.0, 0.5, -1.0]) if q is not None else b.draw.between(0, 9)
    if name == "aten.constant_pad_nd.default":
        end(b, b.moved(name, x, widths, value), q)
        return
    mode = b.draw.pick(["constant", "reflect", "replicate", "circular"])
    if mode != "constant":
        widths = [max(0, width) for width in widths]
        widths += [0] * (2 * (len(x.shape) - 2) - len(widths))
        fits = min(x.shape[-(len(widths) // 2) :]) > max(widths)
        mode = mode if fits and q is not None else "constant"
    end(b, b.moved(name, x, widths, mode, value if mode == "constant" else None), q)


@generates("aten.pixel_shuffle.default")
def pixel_shuffle(b: Pt2eBuilder) -> None:
    shape = (b.draw.between(1, 2), 4 * b.draw.between(1, 3), b.draw.extent(5), b.draw.extent(5))
    x, q = shared(b, 4, shape=shape)
    end(b, b.moved("aten.pixel_shuffle.default", x, 2), q)


@generates("aten.upsample_nearest2d.vec", "aten.upsample_nearest2d.default")
def upsample(b: Pt2eBuilder, name: str) -> None:
    x = b.real(4)
    size = [b.draw.between(1, 12), b.draw.between(1, 12)]
    args: tuple[Any, ...] = (size, None) if name.endswith("vec") else (size,)
    if name.endswith("vec") and b.draw.chance(0.4):
        args = (None, [2.0, float(b.draw.between(1, 3))])
    b.finish(b.moved(name, x, *args))


# ---- tables ------------------------------------------------------------------------------------------------------


@generates("aten.embedding.default")
def embedding(b: Pt2eBuilder) -> None:
    """An 8-bit table, with one scale or one per row; indices within it, or anything in hostile graphs."""
    rows = b.draw.between(2, 12)
    table, _ = weight(b, (rows, b.draw.extent()), 0)
    limits = (None, None) if b.recipe.hostile and b.draw.chance(0.3) else (0, rows - 1)
    indices = rows_of(b, b.draw.shape(b.draw.between(1, 2)), *limits)
    b.finish(b.call("aten.embedding.default", table, indices))


@generates("aten.index_select.default")
def index_select(b: Pt2eBuilder) -> None:
    x, q = shared(b)
    axis = axis_of(b, x)
    indices = rows_of(b, (b.draw.between(1, 6),), 0, x.shape[axis] - 1)
    end(b, b.moved("aten.index_select.default", x, axis, indices), q)


def rows_of(b: Pt2eBuilder, shape: tuple[int, ...], low: int | None, high: int | None) -> Any:
    """Indices: a constant, or an input."""
    dtype = b.draw.pick(["int64", "int32"])
    inside = b.draw.rng.integers(low or 0, 1 if high is None else high, shape, endpoint=True).astype(dtype)
    if b.draw.chance(0.5):
        return b.const(inside)
    value = b.fresh(dtype, shape, False, low, high)
    b.samples[value.key] = torch.from_numpy(inside)
    return value


# ---- casts -------------------------------------------------------------------------------------------------------


@generates("aten.to.dtype", "aten.to.dtype_layout", "aten.to.other", "aten._to_copy.default", "aten.type_as.default",
           "aten.to.device", "quantized_decomposed.convert_element_type.no_fuse")  # fmt: skip
def cast(b: Pt2eBuilder, name: str) -> None:
    """Integers to float32 or wider integers, booleans to numbers: only what is defined in C."""
    x = b.take(("int8", "int32", "int64", "bool"))
    other = b.const(np.zeros(1), "float32")
    arguments: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "aten.to.dtype": ((b.draw.pick([torch.float32, torch.int32, torch.int64]),), {}),
        "aten.to.dtype_layout": ((), {"dtype": torch.float32}),
        "aten.to.device": ((torch.device("cpu"), torch.float32), {}),
        "aten._to_copy.default": ((), {"dtype": torch.float32}),
        "quantized_decomposed.convert_element_type.no_fuse": ((torch.float32,), {}),
    }
    args, kwargs = arguments.get(name, ((other,), {}))
    b.call(name, x, *args, **kwargs)


@generates("aten.copy.default", "aten.fill.Scalar", "aten.fill.Tensor")
def overwrite(b: Pt2eBuilder, name: str) -> None:
    """What functionalization turns writes to a tensor into."""
    x = b.real()
    sources: dict[str, Any] = {
        "aten.copy.default": lambda: b.real(len(x.shape), shape=x.shape),
        "aten.fill.Scalar": lambda: 0.5,
        "aten.fill.Tensor": lambda: b.const(-0.25, "float32"),
    }
    b.finish(b.call(name, x, sources[name]()))
