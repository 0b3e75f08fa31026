"""The shuffle behind a convolution as part of its kernel, which stores its result where the transpose would put it.

`order_channels` comes before: it makes channels neighbours that are stored side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..op.arguments import data_of
from ..op.base import call_attributes, shape_of
from ..op.relax_table import traits_of
from ..topi_int8.schedule_util import CHANNELS, LEAST_VECTOR, run_of
from .matrix_moves import axes_of
from .regions import Regions
from .rewrite import op_name

# On a CPU, a register tile holds so many channels, or a multiple of so many: its channels are whole parts of the split.
# Otherwise the place of every single element is computed, for which a transpose afterwards is faster.
IN_A_TILE, TILES_DIVIDE = 32, 8


def is_convolution(value: Any) -> bool:
    """Whether it is an accumulator whose channels may be in any order."""
    return op_name(value) == "qnn.conv2d_accumulate" and call_attributes(value)["groups"] == 1


def behind(graph: Regions, head: int, members: list[int], anywhere: bool) -> list[int]:
    """`members` and the shuffle of their result, if `head` is a convolution that can store it so.

    anywhere: whether each element is stored by itself, as on GPUs
    """
    bindings, last = graph.bindings, members[-1]
    if not is_convolution(bindings[head].value) or shape_of(bindings[last].var) != shape_of(bindings[head].var):
        return members
    apart = _only_reader(graph, last)
    transpose = None if apart is None else _only_reader(graph, apart)
    if apart is None or transpose is None or not is_split(bindings[apart].value):
        return members
    if not traits_of(bindings[transpose].value).permutes or _is_cropped(graph, transpose):
        return members
    shape, axes = shape_of(bindings[apart].var), axes_of(bindings[transpose].value)
    return [*members, apart, transpose] if anywhere or _is_tiled(shape, axes) else members


def _is_tiled(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether a CPU's kernel stores the result with whole vectors, or moves whole parts of a tile."""
    parts = shape[CHANNELS:]
    whole = math.prod(parts) <= IN_A_TILE or TILES_DIVIDE % math.prod(parts[1:]) == 0
    return whole or run_of(shape, axes) % LEAST_VECTOR == 0


def _only_reader(graph: Regions, index: int) -> int | None:
    """The only binding that reads a value, unless that belongs to a kernel already."""
    readers = graph.readers(index)
    reader = next(iter(readers)) if len(readers) == 1 else len(graph.bindings)
    return None if reader >= len(graph.bindings) or reader in graph.taken else reader


def is_split(value: Any) -> bool:
    """Whether it is a reshape that only splits the channels."""
    if not traits_of(value).reshapes:
        return False
    before, after = shape_of(data_of(value)), shape_of(value)
    return len(after) > len(before) and after[:CHANNELS] == before[:CHANNELS]


def _is_cropped(graph: Regions, index: int) -> bool:
    """Whether only a part of the result is used, which is then copied anyway."""
    reader = _only_reader(graph, index)
    if reader is not None and traits_of(graph.bindings[reader].value).reshapes:
        reader = _only_reader(graph, reader)
    return reader is not None and graph.names[reader] == "strided_slice"


def shuffle_of(values: Sequence[Any]) -> tuple[Sequence[int], Sequence[int]] | None:
    """(shape with the channels split, axes of the transpose) of a kernel's operators that end with a shuffle."""
    ends = len(values) > 2 and traits_of(values[-1]).permutes and is_split(values[-2])
    if not ends or not any(map(is_convolution, values)):
        return None
    return shape_of(values[-2]), axes_of(values[-1])
