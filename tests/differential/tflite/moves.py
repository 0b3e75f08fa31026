"""Operators that move or create values: their result holds the operand's integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .builder import QUANTIZED, Builder, Value, generates

EVERY = (*QUANTIZED, "float32", "int32", "int64", "bool")


def moved(b: Builder, name: str, x: Value, shape: Any, *constants: Any, **options: Any) -> None:
    """An operator whose operands after the data are int32 constants."""
    b.one(name, [x, *(b.const(c, "int32") for c in constants)], shape, x.dtype, x.q, **options)


@generates("RESHAPE")
def reshape(b: Builder) -> None:
    x = b.take(EVERY)
    shape: list[int] = []
    rest = int(np.prod(x.shape))
    while rest > 1 and len(shape) < 4:
        factor = b.draw.pick([n for n in range(1, rest + 1) if rest % n == 0])
        shape.append(factor)
        rest //= factor
    shape += [rest] if rest > 1 or not shape else []
    stated = list(shape)
    if b.draw.chance(0.3):
        stated[b.draw.between(0, len(stated) - 1)] = -1
    moved(b, "RESHAPE", x, shape, stated, newShape=stated)


@generates("SQUEEZE")
def squeeze(b: Builder) -> None:
    x = b.take(EVERY, where=lambda v: 1 in v.shape)
    ones = [a for a, n in enumerate(x.shape) if n == 1 and b.draw.chance(0.6)]
    shape = [n for a, n in enumerate(x.shape) if (a not in ones if ones else n != 1)]
    moved(b, "SQUEEZE", x, shape, squeezeDims=ones)


@generates("EXPAND_DIMS")
def expand_dims(b: Builder) -> None:
    x = b.take(EVERY, rank=(1, 2, 3, 4))
    axis = b.draw.between(0, len(x.shape))
    moved(b, "EXPAND_DIMS", x, (*x.shape[:axis], 1, *x.shape[axis:]), axis)


@generates("TRANSPOSE")
def transpose(b: Builder) -> None:
    x = b.take(EVERY)
    order = [int(a) for a in b.draw.rng.permutation(len(x.shape))]
    moved(b, "TRANSPOSE", x, [x.shape[a] for a in order], order)


@generates("SLICE")
def slice_(b: Builder) -> None:
    x = b.take(EVERY)
    begin = [b.draw.between(0, n - 1) for n in x.shape]
    size = [b.draw.between(1, n - s) for n, s in zip(x.shape, begin, strict=True)]
    moved(b, "SLICE", x, size, begin, size)


@generates("STRIDED_SLICE")
def strided_slice(b: Builder) -> None:
    x = b.take(EVERY)
    parts = []
    for n in x.shape:
        stride = b.draw.pick([1, 1, 2, 3, -1, -2])
        first, last = sorted((b.draw.between(0, n - 1), b.draw.between(0, n - 1)))
        if stride < 0:
            parts.append((last - n, first - 1 - n if first else -n - 1, stride))
        else:
            parts.append((first, last + 1, stride))
    shape = [len(range(n)[slice(s, e if e >= -n else None, t)]) for n, (s, e, t) in zip(x.shape, parts, strict=True)]
    begin, end, strides = zip(*parts, strict=True)
    moved(b, "STRIDED_SLICE", x, shape, begin, end, strides)


def paddings(b: Builder, x: Value, most: list[int]) -> list[list[int]]:
    """Cells before and after each dimension."""
    return [[b.draw.between(0, m), b.draw.between(0, m)] if b.draw.chance(0.6) else [0, 0] for m in most]


@generates("PAD")
def pad(b: Builder) -> None:
    x = b.take(EVERY)
    amounts = paddings(b, x, [3] * len(x.shape))
    moved(b, "PAD", x, [n + sum(p) for n, p in zip(x.shape, amounts, strict=True)], amounts)


@generates("PADV2")
def padv2(b: Builder) -> None:
    x = b.take(EVERY)
    amounts = paddings(b, x, [3] * len(x.shape))
    shape = [n + sum(p) for n, p in zip(x.shape, amounts, strict=True)]
    value = b.operand(x.dtype, (1,), x.q, True)
    b.one("PADV2", [x, b.const(amounts, "int32"), value], shape, x.dtype, x.q)


@generates("MIRROR_PAD")
def mirror_pad(b: Builder) -> None:
    x = b.take(EVERY)
    mode = b.draw.between(0, 1)
    amounts = paddings(b, x, [min(3, n - 1 + mode) for n in x.shape])
    moved(b, "MIRROR_PAD", x, [n + sum(p) for n, p in zip(x.shape, amounts, strict=True)], amounts, mode=mode)


@generates("TILE")
def tile(b: Builder) -> None:
    x = b.take(EVERY, rank=(1, 2, 3, 4))
    times = [b.draw.pick([1, 1, 2, 3]) for _ in x.shape]
    moved(b, "TILE", x, [n * t for n, t in zip(x.shape, times, strict=True)], times)


@generates("BROADCAST_TO")
def broadcast_to(b: Builder) -> None:
    x = b.take(EVERY, rank=(1, 2, 3))
    shape = [b.draw.between(1, 3), *(b.draw.between(1, 5) if n == 1 else n for n in x.shape)]
    moved(b, "BROADCAST_TO", x, shape, shape)


@generates("REVERSE_V2")
def reverse(b: Builder) -> None:
    x = b.take(EVERY)
    moved(b, "REVERSE_V2", x, x.shape, [b.draw.between(0, len(x.shape) - 1)])


@generates("CONCATENATION")
def concatenation(b: Builder) -> None:
    """uint8 allows scales that differ from the output's."""
    x = b.take(EVERY, rank=(1, 2, 3, 4))
    axis = b.draw.between(0, len(x.shape) - 1)
    parts = [x]
    for _ in range(b.draw.between(0, 3)):
        shape = [b.draw.between(1, 5) if a == axis else n for a, n in enumerate(x.shape)]
        q = b.q("uint8") if x.dtype == "uint8" and b.draw.chance(0.5) else x.q
        parts.append(b.operand(x.dtype, shape, q, b.draw.chance(0.4)))
    shape = [sum(p.shape[a] for p in parts) if a == axis else n for a, n in enumerate(x.shape)]
    b.one("CONCATENATION", parts, shape, x.dtype, x.q, axis=axis)


@generates("PACK")
def pack(b: Builder) -> None:
    x = b.take(EVERY, rank=(1, 2, 3, 4))
    parts = [x, *(b.operand(x.dtype, x.shape, x.q, b.draw.chance(0.3)) for _ in range(b.draw.between(1, 3)))]
    axis = b.draw.between(0, len(x.shape))
    shape = (*x.shape[:axis], len(parts), *x.shape[axis:])
    b.one("PACK", parts, shape, x.dtype, x.q, valuesCount=len(parts), axis=axis)


@generates("UNPACK")
def unpack(b: Builder) -> None:
    x = b.take(EVERY, rank=(2, 3, 4), where=lambda v: v.dtype != "int64" and min(v.shape) < 5)
    axis = int(np.argmin(x.shape))
    count = x.shape[axis]
    shape = tuple(n for a, n in enumerate(x.shape) if a != axis)
    b.emit("UNPACK", [x], [shape] * count, [x.dtype] * count, [x.q] * count, num=count, axis=axis)


@generates("SPLIT")
def split(b: Builder) -> None:
    x = b.take(EVERY, rank=(1, 2, 3, 4))
    axis = b.draw.between(0, len(x.shape) - 1)
    count = b.draw.pick([n for n in (1, 2, 3, 4) if x.shape[axis] % n == 0])
    shape = [n // count if a == axis else n for a, n in enumerate(x.shape)]
    inputs = [b.const(axis, "int32"), x]
    b.emit("SPLIT", inputs, [shape] * count, [x.dtype] * count, [x.q] * count, numSplits=count)


@generates("SPLIT_V")
def split_v(b: Builder) -> None:
    x = b.take(EVERY, rank=(1, 2, 3, 4))
    axis = b.draw.between(0, len(x.shape) - 1)
    first = b.draw.between(1, x.shape[axis])
    sizes = [first, x.shape[axis] - first] if first < x.shape[axis] else [first]
    shapes = [[s if a == axis else n for a, n in enumerate(x.shape)] for s in sizes]
    count = len(sizes)
    inputs = [x, b.const(sizes, "int32"), b.const(axis, "int32")]
    b.emit("SPLIT_V", inputs, shapes, [x.dtype] * count, [x.q] * count, numSplits=count)


@generates("GATHER")
def gather(b: Builder) -> None:
    """Indices, constant or from an input; they are out of range in hostile graphs only."""
    x = b.take(EVERY, rank=(1, 2, 3, 4))
    axis = b.draw.between(0, len(x.shape) - 1)
    count, most = b.draw.between(1, 6), x.shape[axis] - 1
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    if b.draw.chance(0.5):
        indices: Value | int = b.const(b.draw.rng.integers(0, most, count, endpoint=True), "int32")
    elif b.recipe.hostile:
        indices = b.fresh("int32", (count,))
    else:
        indices = b.fresh("int32", (count,), None, 0, most)
    b.one("GATHER", [x, indices], shape, x.dtype, x.q, axis=axis)


@generates("GATHER_ND")
def gather_nd(b: Builder) -> None:
    x = b.take(EVERY, rank=(2, 3, 4), where=lambda v: v.dtype != "bool")
    depth, count = b.draw.between(1, min(3, len(x.shape))), b.draw.between(1, 5)
    indices = np.stack([b.draw.rng.integers(0, n, count) for n in x.shape[:depth]], axis=1)
    moved(b, "GATHER_ND", x, (count, *x.shape[depth:]), indices)


@generates("SPACE_TO_DEPTH", "DEPTH_TO_SPACE")
def depth(b: Builder, name: str) -> None:
    block = b.draw.between(1, 3)
    dtypes = ("int8", "uint8", "float32", "int32", "int64")
    if name == "SPACE_TO_DEPTH":
        x = b.take(dtypes, rank=4, where=lambda v: v.shape[1] % block == 0 and v.shape[2] % block == 0)
        n, h, w, c = x.shape
        if h % block or w % block:
            block = 1
        shape = (n, h // block, w // block, c * block * block)
    else:
        x = b.take(dtypes, rank=4, where=lambda v: v.shape[3] % (block * block) == 0)
        n, h, w, c = x.shape
        if c % (block * block):
            block = 1
        shape = (n, h * block, w * block, c // (block * block))
    b.one(name, [x], shape, x.dtype, x.q, blockSize=block)


@generates("SPACE_TO_BATCH_ND")
def space_to_batch(b: Builder) -> None:
    x = b.take(EVERY, rank=4, where=lambda v: v.dtype != "bool")
    block = [b.draw.between(1, 3), b.draw.between(1, 3)]
    before = [b.draw.between(0, 2), b.draw.between(0, 2)]
    amounts = [[p, -(e + p) % s] for e, p, s in zip(x.shape[1:3], before, block, strict=True)]
    size = [(e + sum(p)) // s for e, p, s in zip(x.shape[1:3], amounts, block, strict=True)]
    moved(b, "SPACE_TO_BATCH_ND", x, (x.shape[0] * block[0] * block[1], *size, x.shape[3]), block, amounts)


@generates("BATCH_TO_SPACE_ND")
def batch_to_space(b: Builder) -> None:
    block = [b.draw.between(1, 2), b.draw.between(1, 3)]
    count = block[0] * block[1]
    dtype = b.dtype(("int8", "uint8", "int16", "float32", "int32", "int64"))
    n, h, w, c = b.draw.between(1, 3), b.draw.between(2, 5), b.draw.between(2, 5), b.draw.extent()
    x = b.take((dtype,), shape=(n * count, h, w, c))
    crops = [[b.draw.between(0, 1), b.draw.between(0, 1)] for _ in block]
    size = [e * s - sum(p) for e, p, s in zip((h, w), crops, block, strict=True)]
    if min(size) < 1:
        crops, size = [[0, 0], [0, 0]], [h * block[0], w * block[1]]
    moved(b, "BATCH_TO_SPACE_ND", x, (n, *size, c), block, crops)


# ---- created values ----------------------------------------------------------------------------------------------


@generates("SHAPE")
def shape_(b: Builder) -> None:
    x = b.take(EVERY)
    index = b.draw.pick(["int32", "int64"])
    b.one("SHAPE", [x], (len(x.shape),), index, None, outType=2 if index == "int32" else 4)


@generates("BROADCAST_ARGS")
def broadcast_args(b: Builder) -> None:
    """A shape, and its last dimensions with ones in place of some."""
    shape = b.draw.shape(b.draw.between(1, 4))
    other = [b.draw.pick([1, n]) for n in shape[b.draw.between(0, len(shape) - 1) :]]
    index = str(b.draw.pick(["int32", "int64"]))
    b.one("BROADCAST_ARGS", [b.const(dims, index) for dims in (shape, other)], (len(shape),), index, None)


@generates("RANK")
def rank(b: Builder) -> None:
    b.one("RANK", [b.take(EVERY)], (), "int32", None)


@generates("ZEROS_LIKE")
def zeros_like(b: Builder) -> None:
    x = b.take(("float32", "int32", "int64"))
    b.one("ZEROS_LIKE", [x], x.shape, x.dtype, None)


@generates("FILL")
def fill(b: Builder) -> None:
    value = b.fresh(str(b.draw.pick(["float32", "int32", "int64", "int8", "bool"])), (), quantized=False)
    shape = b.draw.shape(b.draw.between(1, 3))
    b.one("FILL", [b.const(shape, "int32"), value], shape, value.dtype, value.q)


@generates("RANGE")
def range_(b: Builder) -> None:
    """Of constants, then added to a tensor of that length."""
    start, count, delta = b.draw.between(-5, 5), b.draw.between(1, 9), b.draw.pick([1, 2, -3])
    limits = [b.const(v, "int32") for v in (start, start + count * delta, delta)]
    made = b.one("RANGE", limits, (count,), "int32", None)
    b.one("ADD", [b.take(("int32",), shape=(count,)), made], (count,), "int32", None)


# ---- variables ---------------------------------------------------------------------------------------------------


@generates("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE")
def variable(b: Builder, name: str) -> None:
    """A variable holding the last call's value: each of the names generates all four operators."""
    if b.stateful:
        return
    b.stateful = True
    x = b.take(("int8", "float32", "int16"), rank=(1, 2, 3))
    init = b.graph.subgraph("init")
    handles = []
    for graph in (init, b.graph):
        handles.append(graph.tensor((), "resource", name="state_handle"))
        graph.op("VAR_HANDLE", [], [handles[-1]], container=b"", sharedName=b"state")
    first = b.draw.array(x.dtype, x.shape)
    init.op("ASSIGN_VARIABLE", [handles[0], init.const(first, q=x.q)], [])
    b.graph.op("CALL_ONCE", [], [], initSubgraphIndex=1)
    b.one("READ_VARIABLE", [handles[1]], x.shape, x.dtype, x.q, accident=x.accident, steady=x.steady)
    b.graph.op("ASSIGN_VARIABLE", [handles[1], x.index], [])
    b.operators.update(["VAR_HANDLE", "ASSIGN_VARIABLE", "CALL_ONCE"])
