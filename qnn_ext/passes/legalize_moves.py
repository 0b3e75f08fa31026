"""Takes without TVM's "fast" mode; concatenations and slices annotated for `program` with what their kernels move.

A note is an attribute of the kernel's function and is lost when the kernel is fused with others: it then does more than
move.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx, topi

from ..numerics.annotations import JOIN, SLICE
from ..op.arguments import data_of
from ..op.base import shape_of
from .rewrite import op_name

_MOST_JOINED = 64  # operands of one kernel: it selects among them one by one, and TVM's passes recurse that deep
_OPAQUE = 8  # TVM's kOpaque: an operator that is not fused


def concat(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """R.concat with the note JOIN. Many operands are joined in groups, which are then joined."""
    axis = (0 if call.attrs.axis is None else int(call.attrs.axis)) % len(shape_of(call))
    parts = _parts(call)
    if len(parts) <= _MOST_JOINED:
        return _noted(builder, call, {JOIN: axis})
    while len(parts) > 1:
        groups = [parts[start : start + _MOST_JOINED] for start in range(0, len(parts), _MOST_JOINED)]
        parts = [_joined(builder, group, axis) for group in groups]
    return parts[0]


def _parts(call: relax.Call) -> list[relax.Expr]:
    """The operands of a concat or stack, none if they are the fields of a variable."""
    return list(getattr(data_of(call), "fields", ()))


def _joined(builder: relax.BlockBuilder, parts: list[relax.Expr], axis: int) -> relax.Expr:
    """A group, joined in its own kernel: fused with others, it would again be one that joins many operands."""
    if len(parts) == 1:
        return parts[0]
    call = builder.normalize(relax.op.concat(parts, axis))
    return builder.emit(_noted(builder, call, {JOIN: axis, "op_pattern": _OPAQUE}))


def stack(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """R.stack; for many operands, R.concat of each with the new axis."""
    parts = _parts(call)
    if len(parts) <= _MOST_JOINED:
        return _legalized(builder, call)
    axis = (0 if call.attrs.axis is None else int(call.attrs.axis)) % len(shape_of(call))
    shape = [*shape_of(call)[:axis], 1, *shape_of(call)[axis + 1 :]]
    expanded = [builder.emit(_legalized(builder, builder.normalize(relax.op.reshape(part, shape)))) for part in parts]
    return concat(builder, builder.normalize(relax.op.concat(expanded, axis)))


def strided_slice(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """R.strided_slice, with the note SLICE if it applies."""
    start = _run(call)
    return _legalized(builder, call) if start is None else _noted(builder, call, {SLICE: start})


def take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """R.take with clipped indices, unless they wrap: TVM's "fast" mode reads whatever lies at the address."""
    mode = "wrap" if call.attrs.mode == "wrap" else "clip"
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    return builder.call_te(topi.take, *call.args, axis, mode=mode, primfunc_name_hint="take")


def _legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(builder, call)


def _noted(builder: relax.BlockBuilder, call: relax.Call, notes: dict[str, int]) -> relax.Expr:
    result = _legalized(builder, call)
    if op_name(result) == "call_tir":
        kernel = result.args[0]
        builder.update_func(kernel, builder.get()[kernel].with_attrs(notes))
    return result


def _run(call: relax.Call) -> int | None:
    """The first element of a slice that is contiguous in memory: single indices of the leading axes, a range of the
    next axis, all of the remaining ones."""
    data, *arguments = call.args
    if not all(isinstance(item, relax.Tuple) and all(map(_is_known, item.fields)) for item in arguments):
        return None
    axes, begin, _, *strides = ([int(field.value) for field in item.fields] for item in arguments)
    before, after = shape_of(data), shape_of(call)
    cut = next((axis for axis, size in enumerate(after) if size > 1), len(after))
    if 0 in after or before[cut + 1 :] != after[cut + 1 :] or any(step != 1 for steps in strides for step in steps):
        return None
    first = [0] * len(before)
    for axis, index in zip(axes, begin, strict=True):
        size = before[axis]
        first[axis] = min(max(index + size if index < 0 else index, 0), size)
    return sum(index * math.prod(before[axis + 1 :]) for axis, index in enumerate(first))


def _is_known(value: Any) -> bool:
    return isinstance(value, tirx.IntImm)
