"""Join shuffles: the moves behind a convolution that split its channels become a reshape, a transpose and a reshape.

Pixel shuffles in any order of channels, also into channels first, and the phases of a transposed convolution are such
moves. All but the last reshape, which is free, may then become part of the convolution's kernel: see `shuffles.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import IRModule, relax

from ..op.arguments import data_of
from ..op.base import shape_of
from ..op.relax_table import traits_of
from ..topi_int8.schedule_util import CHANNELS
from .fuse import is_elementwise
from .layout.forms import static_shape
from .matrix_moves import axes_of
from .rewrite import Emit, rewrite
from .shuffles import is_convolution


@dataclass(frozen=True)
class Part:
    """(index along an axis of the convolution's result) // stride % size."""

    axis: int
    stride: int
    size: int


Groups = list[list[Part]]  # for each axis of a moved result, the parts that make it up, slowest first


def join_shuffles(mod: IRModule) -> IRModule:
    """`mod` with the reshapes and transposes behind a convolution that split its channels as at most one of each."""
    results: set[Any] = set()  # of convolutions, and of elementwise operators on them
    moved: dict[Any, tuple[Any, Groups]] = {}  # variable -> what it is a move of, and how

    def rule(expr: relax.Expr, emit: Emit) -> relax.Expr | None:
        if is_convolution(expr):
            var = emit(expr)
            results.add(var)
            return var
        if is_elementwise(expr):
            var = emit(expr)
            if any(arg in results and static_shape(arg) == static_shape(var) for arg in expr.args):
                results.add(var)
            return var
        if not traits_of(expr).rearranges:
            return None
        source = data_of(expr)
        if source in results:
            moved[source] = source, _whole(source)
        if source not in moved:
            return None
        root, groups = moved[source]
        var = emit(expr)
        after = _after(var, expr, groups)
        if after is None:
            return var
        result = _joined(root, after, shape_of(var), emit)
        result = var if result is None else result
        moved[result] = root, after
        return result

    return rewrite(mod, rule)


def _whole(result: Any) -> Groups:
    return [[Part(axis, 1, size)] if size > 1 else [] for axis, size in enumerate(shape_of(result))]


def _after(moved: relax.Var, move: relax.Call, groups: Groups) -> Groups | None:
    """The parts after another move; None if it splits anything but channels."""
    if traits_of(move).permutes:
        return [groups[axis] for axis in axes_of(move)]
    pending = [part for group in groups for part in group]
    result: Groups = []
    for size in shape_of(moved):
        group: list[Part] = []
        while size > 1:
            part = pending.pop(0)
            if size < part.size:
                if part.size % size or part.axis != CHANNELS:
                    return None
                inner = part.size // size
                pending.insert(0, Part(part.axis, part.stride, inner))
                part = Part(part.axis, part.stride * inner, size)
            elif size % part.size:
                return None
            group.append(part)
            size //= part.size
        result.append(group)
    return result


def _joined(root: Any, groups: Groups, shape: Sequence[int], emit: Emit) -> Any:
    """The move of `root` that `groups` describe as reshape, transpose and reshape; None if channels stay together."""
    parts = [part for group in groups for part in group]
    channels = sorted((part for part in parts if part.axis == CHANNELS), key=lambda part: -part.stride)
    if len(channels) < 2:
        return None
    outer = shape_of(root)[:CHANNELS]
    sources = [(axis, 1) for axis in range(CHANNELS)] + [(CHANNELS, part.stride) for part in channels]
    single = [axis for axis, size in enumerate(outer) if size == 1]
    axes = [*single, *(sources.index((part.axis, part.stride)) for part in parts)]
    if axes == sorted(axes):
        return None
    apart = emit(relax.op.reshape(root, [*outer, *(part.size for part in channels)]))
    return emit(relax.op.reshape(emit(relax.op.permute_dims(apart, axes)), list(shape)))
