"""Attention of language models over keys and values of earlier tokens: GroupQueryAttention and MultiHeadAttention of
com.microsoft, Attention and TensorScatter of ONNX's operator sets 23 and 24. In float, as in ONNX Runtime.

A cache of fixed length is written at positions known at run time: with past and present as a state, in its own memory.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op import compound
from ....op.base import constant, normalize_axis, shape_of
from ...run_time import checked_indices
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import cast, minus, number, plus
from .attention import padding_mask
from .attention_core import Attended, attend, join_heads, near, part, split_heads
from .rotary import looked_up, rotated

_GROUPED = {"num_heads", "kv_num_heads", "scale", "softcap", "do_rotary", "rotary_interleaved", "local_window_size"}
_GROUPED |= {"smooth_softmax"}


@converter("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(node: Node) -> list[relax.Expr]:
    """Causal attention; query, key and value may be packed into the query. past and present (B, groups, length, size)
    have one length, or past has none: sample b's new keys stand behind seqlens_k[b] + 1 − S others. float16 in float32,
    but for the cache."""
    unknown = [name for name, value in node.attributes.items() if name not in _GROUPED and value not in (0, -1, "NONE")]
    if unknown or any(node.has_input(index) for index in range(12, len(node.inputs))):
        raise node.unsupported(f"the attribute {unknown[0]}" if unknown else "inputs behind head_sink")
    heads, groups = node.attribute("num_heads"), node.attribute("kv_num_heads")
    query, key, value = _projections(node, heads, groups)
    _, _, length, size = shape_of(query)
    before = _before(node, length)
    if node.attribute("do_rotary", 0):
        query, key = (_turned(node, rows, before) for rows in (query, key))
    present = [_updated(node, index, new, before) for index, new in ((3, key), (4, value))]
    total = shape_of(present[0])[2]
    window = node.attribute("local_window_size", -1)
    masks = [near(node, before, length, total, window - 1 if window > 0 else None)]
    if node.has_input(10):
        if node.shape(10)[-1] != total:
            raise node.unsupported(f"an attention_bias for {node.shape(10)[-1]} keys, where the cache has {total}")
        masks.append(node.input(10))
    sink = _sink(node, heads)
    scale = node.attribute("scale", 0.0) or 1 / np.sqrt(np.float32(size))
    query, keys, values = (cast(node, operand, "float32") for operand in (query, *present))
    mixed = attend(node, query, keys, values, scale, masks, node.attribute("softcap", 0.0), sink).mixed
    return [cast(node, join_heads(node, mixed), node.dtype(0)), *present]


def _projections(node: Node, heads: int, groups: int) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Query, key and value as (B, heads or groups, S, size)."""
    query = node.input(0)
    if not node.has_input(1):
        width = shape_of(query)[2]
        size = width // (heads + 2 * groups)
        if size * (heads + 2 * groups) != width:
            raise node.malformed(f"{width} columns cannot be divided among {heads} + 2 · {groups} heads")
        ends = [0, heads * size, (heads + groups) * size, width]
        parts = [part(node, query, 2, begin, end) for begin, end in pairwise(ends)]
    else:
        parts = [query, node.input(1), node.input(2)]
    return tuple(  # type: ignore[return-value]
        split_heads(node, rows, count) for rows, count in zip(parts, (heads, groups, groups), strict=True)
    )


def _before(node: Node, length: int) -> relax.Expr:
    """The number of keys before the new ones, (B) int32: none where all keys there are are new."""
    lengths = compound.reshape(cast(node, node.input(5), "int32"), (node.shape(0)[0],), node.emit)
    total = compound.reshape(cast(node, node.input(6), "int32"), (), node.emit)
    before = minus(node, lengths, number(length - 1, "int32"))
    is_first = node.emit(relax.op.equal(total, number(length, "int32")))
    return node.emit(relax.op.where(is_first, number(0, "int32"), before))


def _places(node: Node, before: relax.Expr, length: int) -> relax.Expr:
    """The positions (B, S) of the new keys."""
    first = compound.reshape(before, (shape_of(before)[0], 1), node.emit)
    return plus(node, first, constant(np.arange(length, dtype=np.int32)))


def _turned(node: Node, heads: relax.Expr, before: relax.Expr) -> relax.Expr:
    positions = node.input(9) if node.has_input(9) else _places(node, before, shape_of(heads)[2])
    cos, sin = (cast(node, looked_up(node, node.input(index), positions), "float32") for index in (7, 8))
    turned = rotated(node, cast(node, heads, "float32"), cos, sin, bool(node.attribute("rotary_interleaved", 0)))
    return cast(node, turned, node.dtype(0))


def _updated(node: Node, index: int, new: relax.Expr, before: relax.Expr) -> relax.Expr:
    """The cache of input `index` with new rows; without one, the rows."""
    length = shape_of(new)[2]
    if not node.has_input(index) or node.shape(index)[2] == 0:
        return new
    past = node.input(index)
    room = shape_of(past)[2]
    if node.is_constant(6) and int(node.constant(6).reshape(-1)[0]) > room:
        if int(node.constant(6).reshape(-1)[0]) != room + length:
            raise node.unsupported("a present that is longer than the past by other than the new keys")
        return node.emit(relax.op.concat([past, new], axis=2))
    places = checked_indices(node.emit, _places(node, before, length), room, node.label)
    return node.emit(qnn.write_rows(past, new, places, 2))


def _sink(node: Node, heads: int) -> relax.Expr | None:
    if node.has_input(11):
        return compound.reshape(cast(node, node.input(11), "float32"), (1, heads, 1, 1), node.emit)
    return constant(np.zeros((1, heads, 1, 1), np.float32)) if node.attribute("smooth_softmax", 0) == 1 else None


# ---- MultiHeadAttention ------------------------------------------------------------------------------------------


@converter("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(node: Node) -> list[relax.Expr]:
    """Attention of separate or packed query, key and value, (B, S, heads · size), with a bias for each, a padding mask,
    a bias of the scores, and keys and values of earlier calls in front."""
    if node.has_input(8) or node.has_input(9) or node.has_output(3):
        raise node.unsupported("past_sequence_length, cache_indirection and the output qk")
    heads = node.attribute("num_heads")
    query, key, value = _separate(node, heads)
    batch, _, length, size = shape_of(query)
    before = 0
    if node.has_input(6):
        before = node.shape(6)[2]
        key, value = (
            node.emit(relax.op.concat([node.input(index), new], axis=2)) for index, new in ((6, key), (7, value))
        )
    total = shape_of(key)[2]
    masks = [node.input(5)] if node.has_input(5) else []
    if node.has_input(4):
        mask = padding_mask(node, 4, batch, length, total)
        masks += [] if mask is None else [mask]
    if node.attribute("unidirectional", 0):
        masks.append(near(node, before, length, total))
    scale = node.attribute("scale", 0.0) or 1 / np.sqrt(np.float32(size))
    return [join_heads(node, attend(node, query, key, value, scale, masks).mixed), key, value]


def _separate(node: Node, heads: int) -> list[relax.Expr]:
    """Query, key and value with their biases, as (B, heads, S, size)."""
    query = node.input(0)
    if len(shape_of(query)) == 5:  # (B, S, heads, 3, size)
        batch, length, _, _, size = shape_of(query)
        return [
            compound.permute(
                compound.reshape(part(node, query, 3, i, i + 1), (batch, length, heads, size), node.emit),
                [0, 2, 1, 3],
                node.emit,
            )
            for i in range(3)
        ]
    key = node.input(1)
    if len(shape_of(key)) == 5:  # (B, T, heads, 2, size)
        batch, length, _, _, size = shape_of(key)
        pair = [
            compound.reshape(part(node, key, 3, i, i + 1), (batch, length, heads * size), node.emit) for i in range(2)
        ]
    else:
        pair = [key, node.input(2)]
    rows, start = [query, *pair], 0
    result = []
    for item in rows:
        if len(shape_of(item)) == 4:  # (B, heads, T, size)
            result.append(item)
            continue
        width = shape_of(item)[2]
        if node.has_input(3):
            item = plus(node, item, part(node, node.input(3), 0, start, start + width))
            start += width
        result.append(split_heads(node, item, heads))
    return result


# ---- operator sets 23 and 24 -------------------------------------------------------------------------------------


@converter("Attention", since=23)
def standard_attention(node: Node) -> list[relax.Expr]:
    """Query, key and value (B, S, heads · size) or (B, heads, S, size); a mask of bools or floats; a window of keys.
    nonpad_kv_seqlen (B): how many keys of a cache count."""
    flat = len(node.shape(0)) == 3
    heads, groups = node.attribute("q_num_heads", 0), node.attribute("kv_num_heads", 0)
    query, key, value = (
        split_heads(node, node.input(i), count) if flat else node.input(i)
        for i, count in enumerate((heads, groups, groups))
    )
    before: relax.Expr | int = 0
    if node.has_input(4):
        before = node.shape(4)[2]
        key, value = (
            node.emit(relax.op.concat([node.input(index), new], axis=2)) for index, new in ((4, key), (5, value))
        )
    length, total = shape_of(query)[2], shape_of(key)[2]
    masks = []
    if node.has_input(6):
        counts = cast(node, node.input(6), "int32")
        column = compound.reshape(counts, (node.shape(6)[0], 1, 1, 1), node.emit)
        masks.append(node.emit(relax.op.less(constant(np.arange(total, dtype=np.int32)), column)))
        before = minus(node, counts, number(length, "int32"))
    left, right = (node.attribute(f"{side}_window_size", -1) for side in ("left", "right"))
    if node.attribute("is_causal", 0):
        right = 0
    if max(left, right) >= 0:
        masks.append(near(node, before, length, total, *(side if side >= 0 else None for side in (left, right))))
    if node.has_input(3):
        masks.append(_whole(node, node.input(3), total))
    scale = node.attribute("scale", 0.0) or 1 / np.sqrt(np.float32(shape_of(query)[3]))
    dtype = node.dtype(0)
    query, key32, value32 = (cast(node, operand, "float32") for operand in (query, key, value))
    steps = attend(node, query, key32, value32, scale, masks, node.attribute("softcap", 0.0))
    result = cast(node, _without_empty(node, steps.mixed, masks), dtype)
    results = [join_heads(node, result) if flat else result, key, value]
    return [*results, cast(node, _scores(node, steps, masks), dtype)] if node.has_output(3) else results


def _scores(node: Node, steps: Attended, masks: list[relax.Expr]) -> relax.Expr:
    """The result between query and value that the mode names, in ONNX Runtime's order."""
    modes = steps.products, steps.capped, steps.masked, _without_empty(node, steps.shares, masks)
    mode = node.attribute("qk_matmul_output_mode", 0)
    if not 0 <= mode < len(modes):
        raise node.malformed(f"qk_matmul_output_mode must be from 0 to {len(modes) - 1}, found {mode}")
    return modes[mode]


def _whole(node: Node, mask: relax.Expr, total: int) -> relax.Expr:
    """A mask for all keys: those behind its end do not count."""
    shape = shape_of(mask)
    if not shape or shape[-1] in (1, total):
        return mask
    widths = [0, 0] * (len(shape) - 1) + [0, total - shape[-1]]
    if str(mask.ty.dtype) == "bool":
        padded = node.emit(relax.op.nn.pad(cast(node, mask, "int8"), widths, "constant", 0.0))
        return cast(node, padded, "bool")
    return node.emit(relax.op.nn.pad(cast(node, mask, "float32"), widths, "constant", float("-inf")))


def _without_empty(node: Node, mixed: relax.Expr, masks: list[relax.Expr]) -> relax.Expr:
    """Zeros for the queries for which no key counts."""
    valid: relax.Expr | None = None
    for mask in masks:
        if str(mask.ty.dtype) == "bool":
            valid = mask if valid is None else node.emit(relax.op.logical_and(valid, mask))
    if valid is None:
        return mixed
    some = node.emit(relax.op.max(cast(node, valid, "int8"), axis=-1, keepdims=True))
    return node.emit(relax.op.where(cast(node, some, "bool"), mixed, number(0)))


@converter("TensorScatter", since=24)
def tensor_scatter(node: Node) -> relax.Expr:
    """past_cache with the rows of update from write_indices[b] on along `axis`; circular: beyond the end, from 0 on."""
    cache, update = node.input(0), node.input(1)
    axis = normalize_axis(node.attribute("axis", -2), len(shape_of(cache)))
    if axis == 0:
        raise node.malformed("the axis must not be that of the batch")
    batch, room, count = shape_of(cache)[0], shape_of(cache)[axis], shape_of(update)[axis]
    first = cast(node, node.input(2), "int64") if node.has_input(2) else constant(np.zeros(batch, np.int64))
    steps = constant(np.arange(count, dtype=np.int64))
    places = plus(node, compound.reshape(first, (batch, 1), node.emit), steps)
    if node.attribute("mode", "linear") == "circular":
        places = node.emit(relax.op.floor_mod(places, number(room, "int64")))
    else:
        places = checked_indices(node.emit, places, room, node.label)
    return qnn.write_rows(cache, update, places, axis)
