"""Moves around a batch_matmul that its kernel absorbs: splitting heads, transposing an operand, merging heads again.

The kernel reads its operands from where they are before the moves, and writes its result to where the moves would have
put it. This is decided by tracing every element: rows of the first operand must stay contiguous, along a single axis,
and the second must have one contiguous axis; otherwise a copy is just as good.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ..op.arguments import data_of, factors_of
from ..op.base import constant_value, shape_of
from ..op.relax_table import traits_of
from .regions import Regions
from .rewrite import op_name

NARROW = ("int8", "uint8")
# the most elements of an operand that are traced
MOST = 1 << 24


def in_front(graph: Regions, head: int, members: list[int]) -> list[int]:
    """`members` and the moves and int8/uint8 shifts that only serve operands of the batch_matmul `head`."""
    inside = set(members)
    for position, operand in enumerate(factors_of(graph.bindings[head].value)):
        inside.update(_chain(graph, head, position, operand, inside))
    return sorted(inside)


def behind(graph: Regions, members: list[int], shape: tuple[int, ...]) -> list[int]:
    """`members` and the transpose of their result of `shape` (B, M, N), which may split B first; N stays innermost."""
    found: list[int] = []
    last = members[-1]
    while (following := _only(graph.readers(last))) is not None and following < len(graph.bindings):
        value = graph.bindings[following].value
        if following in graph.taken or not traits_of(value).rearranges:
            break
        result = shape_of(graph.bindings[following].var)
        found.append(following)
        if traits_of(value).permutes:
            axes = axes_of(value)
            return [*members, *found] if axes[-1] == len(axes) - 1 else members
        if result[-2:] != shape[-2:]:
            break
        last = following
    return members


def _only(indices: set[int]) -> int | None:
    return next(iter(indices)) if len(indices) == 1 else None


def _chain(graph: Regions, head: int, position: int, operand: Any, inside: set[int]) -> list[int]:
    """The longest run of moves before an operand with which it can still be read in place."""
    chain: list[int] = []
    accepted = 0
    readers = inside
    if int(np.prod(shape_of(operand))) > MOST:
        return []
    while True:
        index = next((i for i in graph.sources(chain[-1] if chain else head) if _binds(graph, i, operand)), None)
        if index is None or index in graph.taken or not graph.readers(index) <= readers:
            break
        value = graph.bindings[index].value
        if not traits_of(value).rearranges and not _is_shift(value):
            break
        chain.append(index)
        readers = readers | {index}
        operand = data_of(value)
        if not isinstance(operand, relax.Var) or constant_value(operand) is not None:
            break
        if _in_place(graph, chain, position):
            accepted = len(chain)
    return chain[:accepted]


def _binds(graph: Regions, index: int, operand: Any) -> bool:
    return bool(graph.bindings[index].var.same_as(operand))


def _is_shift(value: Any) -> bool:
    """Whether it is a requantize from 8 to 8 bits with one scale and zero point, cheaper to repeat than to store."""
    if op_name(value) != "qnn.requantize" or str(data_of(value).ty.dtype) not in NARROW:
        return False
    _, *parameters = value.args
    input_scale, _, output_scale, _ = arrays = [constant_value(parameter) for parameter in parameters]
    scalars = all(array is not None and array.size == 1 for array in arrays)
    return scalars and bool(input_scale == output_scale) and str(value.ty.dtype) in NARROW


def _in_place(graph: Regions, chain: list[int], position: int) -> bool:
    """Whether the operand (B, rows, K) after the moves can be read from where its elements are before them.

    Rows must be equally spaced, with the same stride in every matrix, and so must neighbours in K; the first operand
    needs stride 1 along K, the second along K or along the rows.

    The first operand's rows must also lie within the last axis of what is moved: instructions read several neighbours
    in K, and `tensorize` refuses those that lie along two axes, as behind a rotary embedding that stacks pairs. Moves
    keep every element once, so contiguous rows begin at multiples of K, and none crosses that axis if K divides it.
    """
    first, length = data_of(graph.bindings[chain[-1]].value), shape_of(graph.bindings[chain[0]].var)[-1]
    if position == 0 and length > 1 and shape_of(first)[-1] % length:
        return False
    places = np.arange(int(np.prod(shape_of(first)))).reshape(shape_of(first))
    for index in reversed(chain):
        value = graph.bindings[index].value
        if traits_of(value).permutes:
            places = places.transpose(axes_of(value))
        places = places.reshape(shape_of(graph.bindings[index].var))
    strides = [_stride(places, axis) for axis in (1, 2)]
    return None not in strides and (strides[1] == 1 or (position == 1 and strides[0] == 1))


def _stride(places: np.ndarray, axis: int) -> int | None:
    """The stride along an axis, if it is the same everywhere; 1 for an axis of length 1."""
    distances = np.diff(places, axis=axis)
    if distances.size == 0:
        return 1
    distance = int(distances.flat[0])
    return distance if (distances == distance).all() else None


def axes_of(call: relax.Call) -> tuple[int, ...]:
    """The axes of a permute_dims; all in reverse order if it names none."""
    ndim = len(shape_of(data_of(call)))
    axes = call.attrs.axes
    return tuple(reversed(range(ndim))) if axes is None else tuple(int(axis) % ndim for axis in axes)
