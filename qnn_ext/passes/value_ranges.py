"""Value ranges: the minimum and the maximum of one tensor become one qnn.value_range, which reads it once, and so does
a stack of the two, which qnn.range_scale and qnn.range_zero_point read.

Quantization at run time asks for both. On a GPU they stay two reductions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..op.arguments import data_of
from ..op.base import constant, shape_of
from ..op.value_range import value_range
from .rewrite import Rebuild, bindings_of, op_name, operands

ENDS = ("min", "max")


def join_extremes(mod: IRModule) -> IRModule:
    """`mod` with min(x) and max(x) over all axes of a float32 tensor read from one range, where it has both."""
    found: dict[Any, set[str]] = defaultdict(set)
    extremes: dict[Any, Any] = {}  # variable -> the minimum or maximum that it is bound to
    for binding in bindings_of(mod["main"]):
        if _is_extreme(binding.value):
            found[data_of(binding.value)].add(op_name(binding.value))
            extremes[binding.var] = binding.value
    both = {data for data, names in found.items() if len(names) == len(ENDS)}
    if not both:
        return mod
    new, ranges = Rebuild(mod["main"]), dict[Any, Any]()
    with new.main():
        for binding in new.bindings:
            value = binding.value
            joined = _data_of_both(value, extremes)
            if joined is not None and shape_of(binding.var) == (2,):
                new.environment[binding.var] = ranges[joined]
                continue
            if not _is_extreme(value) or data_of(value) not in both:
                new.keep(binding)
                continue
            data = data_of(value)
            if data not in ranges:
                ranges[data] = _range(new, data, binding.var.name)
            end = relax.op.take(ranges[data], constant(np.int64(ENDS.index(op_name(value)))), axis=0)
            shape = shape_of(binding.var)
            if shape:
                end = relax.op.reshape(new.builder.emit(end), shape)
            new.bind(binding.var, end)
    return new.live_module()


def _data_of_both(value: Any, extremes: Mapping[Any, Any]) -> relax.Var | None:
    """The tensor whose minimum and maximum a stack has, in this order."""
    if op_name(value) != "stack":
        return None
    parts = [extremes.get(operand) for operand in operands(value)]
    if [op_name(part) for part in parts if part is not None] != list(ENDS) or len(parts) != len(ENDS):
        return None
    low, high = (data_of(part) for part in parts)
    return low if low.same_as(high) else None


def _range(new: Rebuild, data: relax.Var, name: str) -> relax.Var:
    """The range of a tensor, read as the vector that it is in memory."""
    flat = new.substituted(data)
    if len(shape_of(data)) != 1:
        flat = new.builder.emit(relax.op.reshape(flat, (-1,)))
    return new.builder.emit(value_range(flat), name_hint=name)


def _is_extreme(value: Any) -> bool:
    """Whether it is the minimum or maximum of all values of a float32 tensor."""
    if op_name(value) not in ENDS or not isinstance(data_of(value), relax.Var):
        return False
    data = data_of(value)
    shape = shape_of(data)
    axes = value.attrs.axis
    every = axes is None or len({int(axis) % len(shape) for axis in axes}) == len(shape)
    return every and str(data.ty.dtype) == "float32" and 0 not in shape
