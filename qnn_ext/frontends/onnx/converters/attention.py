"""Attention and QAttention of com.microsoft: the projection to Q, K and V, in integers if quantized, then attention in
float, as in ONNX Runtime."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from ....limits import check_elements
from ....op import compound
from ....op.base import constant, shape_of
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import cast, matmul, number, plus, times
from .microsoft_matmul import to_float


@converter("QAttention", domain=MICROSOFT)
def qattention(node: Node) -> list[relax.Expr]:
    """Q, K, V = f32(Σ (x − z_x)(w − z_w)) · (s_x·s_w) + bias, then attention in float."""
    _refuse(node, "do_rotary", "past_present_share_buffer")
    scale = times(node, node.scale(3), node.scale(4))
    acc = matmul(node, node.input(0), node.input(1), node.zero_point(6), node.zero_point(7))
    projected = to_float(node, acc, scale, node.input(2))
    optional = Optionals(mask_index=5, past=8, bias=None)
    return _attention(node, projected, [node.shape(1)[1] // 3] * 3, optional)


@converter("Attention", domain=MICROSOFT)
def attention(node: Node) -> list[relax.Expr]:
    """Q, K, V = x·W + bias, then softmax(scale·Q·Kᵀ + mask)·V per head; float16 in float32, as in ONNX Runtime."""
    _refuse(node, "do_rotary", "past_present_share_buffer")
    if node.has_input(6):
        raise node.unsupported("the input past_sequence_length")
    sizes = node.attribute("qkv_hidden_sizes") or [node.shape(1)[1] // 3] * 3
    projected = node.emit(relax.op.matmul(_wide(node, 0), _wide(node, 1)))
    if node.has_input(2):
        projected = plus(node, projected, _wide(node, 2))
    results = _attention(node, projected, sizes, Optionals(mask_index=3, past=4, bias=5))
    return [cast(node, result, node.dtype(0)) for result in results]


def _wide(node: Node, index: int) -> relax.Expr:
    """A float input in float32."""
    return cast(node, node.input(index), "float32")


def _refuse(node: Node, *attributes: str) -> None:
    for name in attributes:
        if node.attribute(name, 0):
            raise node.unsupported(f"the attribute {name}")


@dataclass(frozen=True)
class Optionals:
    """Where the optional inputs of the two operators are."""

    mask_index: int
    past: int
    bias: int | None


def _attention(node: Node, projected: relax.Expr, sizes: list[int], optional: Optionals) -> list[relax.Expr]:
    """Outputs of either operator from (B, S, Dq + Dk + Dv)."""
    heads = node.attribute("num_heads")
    batch, length, width = shape_of(projected)
    if sum(sizes) != width or any(size % heads for size in sizes) or sizes[0] != sizes[1]:
        raise node.malformed(
            f"{width} columns of weights cannot be divided into Q, K and V of {sizes} columns and {heads} heads"
        )
    parts = node.emit(relax.op.split(projected, [sizes[0], sizes[0] + sizes[1]], axis=-1))
    query, key, value = (
        compound.permute(
            compound.reshape(node.emit(relax.TupleGetItem(parts, i)), (batch, length, heads, size // heads), node.emit),
            [0, 2, 1, 3],
            node.emit,
        )
        for i, size in enumerate(sizes)
    )
    before = 0
    if node.has_input(optional.past):
        key, value, before = _with_past(node, _wide(node, optional.past), key, value)
    scale = node.attribute("scale", 0.0) or 1 / np.sqrt(np.float32(sizes[0] // heads))
    turned = node.emit(relax.op.permute_dims(key, [0, 1, 3, 2]))
    scores = times(node, node.emit(relax.op.matmul(query, turned)), number(scale))
    if optional.bias is not None and node.has_input(optional.bias):
        scores = plus(node, scores, _wide(node, optional.bias))
    mask = _mask(node, optional.mask_index, batch, length, before)
    if mask is not None:
        scores = plus(node, scores, mask)
    mixed = node.emit(relax.op.matmul(node.emit(relax.op.nn.softmax(scores, axis=-1)), value))
    moved = node.emit(relax.op.permute_dims(mixed, [0, 2, 1, 3]))
    output = node.emit(relax.op.reshape(moved, (batch, length, sizes[2])))
    if not node.has_output(1):
        return [output]
    return [output, node.emit(relax.op.stack([key, value], axis=0))]


def _with_past(node: Node, past: relax.Expr, key: relax.Expr, value: relax.Expr) -> tuple[relax.Expr, relax.Expr, int]:
    """Keys and values appended to those of earlier calls, past (2, B, heads, P, size); also P."""
    _, batch, heads, before, size = shape_of(past)
    joined = []
    for index, new in enumerate((key, value)):
        old = node.emit(relax.op.strided_slice(past, [0], [index], [index + 1]))
        old = node.emit(relax.op.reshape(old, (batch, heads, before, size)))
        joined.append(node.emit(relax.op.concat([old, new], axis=2)))
    return joined[0], joined[1], before


# ---- masks -------------------------------------------------------------------------------------------------------


def _mask(node: Node, index: int, batch: int, length: int, before: int) -> relax.Expr | None:
    """What is added to the scores (B, heads, S, T): mask_filter_value where the mask is 0, and the lowest float above
    the diagonal of a unidirectional attention. None when nothing is masked."""
    total = before + length
    mask = padding_mask(node, index, batch, length, total) if node.has_input(index) else None
    if not node.attribute("unidirectional", 0) or length == 1:
        return mask
    check_elements((length, total), "the mask", "folded")
    future = np.triu(np.ones((length, total), bool), before + 1)
    lowest = float(np.finfo(np.float32).min)
    if mask is None:
        return constant(np.where(future, lowest, 0).astype(np.float32))
    return node.emit(relax.op.where(constant(future), number(lowest), mask))


def padding_mask(node: Node, index: int, batch: int, length: int, total: int) -> relax.Expr | None:
    """mask_index in any of its forms, as floats that broadcast against (B, 1, S, T).

    (B): valid lengths; (2B): ends, then starts; (B, T) or (B, S, T): 1 for valid; (B, 1), (1, 1): no mask
    """
    given, shape = cast(node, node.input(index), "int32"), node.shape(index)
    if shape == (batch, total):
        valid = _positive(node, given, (batch, 1, 1, total))
    elif shape == (batch, length, total):
        valid = _positive(node, given, (batch, 1, length, total))
    elif shape in ((batch, 1), (1, 1)):
        return None
    elif shape in ((batch,), (2 * batch,)):
        positions = constant(np.arange(total, dtype=np.int32))
        end = node.emit(relax.op.strided_slice(given, [0], [0], [batch])) if len(shape) and shape[0] > batch else given
        valid = node.emit(relax.op.less(positions, compound.reshape(end, (batch, 1, 1, 1), node.emit)))
        if shape[0] == 2 * batch:
            start = node.emit(relax.op.strided_slice(given, [0], [batch], [2 * batch]))
            behind = relax.op.greater_equal(positions, compound.reshape(start, (batch, 1, 1, 1), node.emit))
            valid = node.emit(relax.op.logical_and(valid, node.emit(behind)))
    else:
        raise node.unsupported(
            f"mask_index of shape {shape}; supported: ({batch},), ({2 * batch},), {(batch, total)} and "
            f"{(batch, length, total)}"
        )
    hidden = number(node.attribute("mask_filter_value", -10000.0))
    return node.emit(relax.op.where(valid, number(0), hidden))


def _positive(node: Node, mask: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    return node.emit(relax.op.greater(compound.reshape(mask, shape, node.emit), number(0, "int32")))
