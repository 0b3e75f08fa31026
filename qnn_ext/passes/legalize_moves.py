"""Takes without TVM's "fast" mode; scatters as kernels of a program; concatenations and slices annotated for `program`
with what their kernels move.

A note is an attribute of the kernel's function and is lost when the kernel is fused with others: it then does more than
move.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import tvm
from tvm import IRModule, ir, relax, tirx, topi

from ..numerics.annotations import JOIN, SLICE, TAKE, WRITES
from ..op.arguments import data_of
from ..op.base import call_attributes, shape_of
from ..topi_int8.generic import row_writes, scatter
from .rewrite import bindings_of, op_name

_MOST_JOINED = 64  # operands of one kernel: it selects among them one by one, and TVM's passes recurse that deep
_INJECTIVE, OPAQUE = 2, 8  # of TVM's patterns: an operator that is fused with others like it, and one that is not


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


@tvm.transform.module_pass(opt_level=0)
def keep_joins(mod: IRModule, _context: tvm.transform.PassContext) -> IRModule:
    """Keeps concatenations of what our kernels compute from being fused: these kernels can write into the result, while
    a fused one would copy all operands to compute a single one in place."""
    opaque = {var for var, function in mod.functions_items() if _pattern(function) == OPAQUE}
    calls = [binding for binding in bindings_of(mod["main"]) if op_name(binding.value) == "call_tir"]
    computed = {binding.var for binding in calls if binding.value.args[0] in opaque}
    kept = {
        binding.value.args[0]
        for binding in calls
        if any(part in computed for part in getattr(binding.value.args[1], "fields", ()))
    }
    return _with_pattern(mod, kept & _kernels_with(mod, JOIN), OPAQUE)


@tvm.transform.module_pass(opt_level=0)
def fuse_takes(mod: IRModule, _context: tvm.transform.PassContext) -> IRModule:
    """Lets takes at constant positions, such as those of an interpolation, become part of the kernels that read them: a
    load stands there where a tensor would be written and read. Not if what they take from were fused as well, as it
    would be computed again each time that it is taken, nor if they are joined, as they are then written in place."""
    calls = {b.var: b.value for b in bindings_of(mod["main"]) if op_name(b.value) == "call_tir"}
    fused = {var for var, function in mod.functions_items() if (_pattern(function) or 0) <= _INJECTIVE}
    joins, takes = _kernels_with(mod, JOIN), _kernels_with(mod, TAKE)
    joined = {part for call in calls.values() if call.args[0] in joins for part in call.args[1].fields}
    taken: set[Any] = set()  # variables
    kept: set[Any] = set()  # kernels of takes that stay on their own, wherever they are called
    for var, call in calls.items():
        if call.args[0] not in takes:
            continue
        data, positions = call.args[1].fields
        repeats = data in calls and calls[data].args[0] in fused and data not in taken
        if repeats or var in joined or not isinstance(positions, ir.GenericConst):
            kept.add(call.args[0])
        else:
            taken.add(var)
    return _with_pattern(mod, takes - kept, _INJECTIVE)


def _kernels_with(mod: IRModule, attribute: str) -> set[ir.GlobalVar]:
    return {var for var, function in mod.functions_items() if attribute in (function.attrs or {})}


def _with_pattern(mod: IRModule, kernels: Collection[ir.GlobalVar], pattern: int) -> IRModule:
    """`mod` with one of TVM's patterns for some kernels."""
    functions = {
        var: function.with_attr("op_pattern", pattern) if var in kernels else function
        for var, function in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def _pattern(function: Any) -> int | None:
    """TVM's OpPatternKind of a kernel."""
    attributes = function.attrs or {}
    return int(attributes["op_pattern"]) if "op_pattern" in attributes else None


def _joined(builder: relax.BlockBuilder, parts: list[relax.Expr], axis: int) -> relax.Expr:
    """A group, joined in its own kernel: fused with others, it would again be one that joins many operands."""
    if len(parts) == 1:
        return parts[0]
    call = builder.normalize(relax.op.concat(parts, axis))
    return builder.emit(_noted(builder, call, {JOIN: axis, "op_pattern": OPAQUE}))


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
    rows = _rows(call)
    return _legalized(builder, call) if rows is None else _noted(builder, call, {SLICE: rows})


def take(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """R.take with clipped indices, unless they wrap: TVM's "fast" mode reads whatever lies at the address."""
    mode = "wrap" if call.attrs.mode == "wrap" else "clip"
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    result = builder.call_te(topi.take, *call.args, axis, mode=mode, primfunc_name_hint="take")
    note(builder, result, {TAKE: True})
    return result


def scatter_elements(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """R.scatter_elements as a kernel that a program takes."""
    axis, reduction = int(call.attrs.axis), str(call.attrs.reduction)
    if reduction not in scatter.REDUCTIONS:
        return _legalized(builder, call)
    return builder.call_te(scatter.scatter_elements, *call.args, axis, reduction, primfunc_name_hint="scatter_elements")


def scatter_nd(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """R.scatter_nd as a kernel that a program takes."""
    reduction = str(call.attrs.reduction)
    if reduction not in scatter.REDUCTIONS:
        return _legalized(builder, call)
    return builder.call_te(scatter.scatter_nd, *call.args, reduction, primfunc_name_hint="scatter_nd")


def write_rows(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """R.qnn.write_rows, with the note WRITES if its data may be overwritten."""
    attributes = call_attributes(call)
    axis = attributes["axis"]
    result = builder.call_te(row_writes.write_rows, *call.args, axis, primfunc_name_hint="qnn_write_rows")
    if not attributes["copies"]:
        note(builder, result, {WRITES: axis})
    return result


def _legalized(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    return call.op.get_attr("FLegalize")(builder, call)


def _noted(builder: relax.BlockBuilder, call: relax.Call, notes: dict[str, Any]) -> relax.Expr:
    result = _legalized(builder, call)
    if op_name(result) == "call_tir":
        note(builder, result, notes)
    return result


def note(builder: relax.BlockBuilder, call: relax.Call, notes: dict[str, Any]) -> None:
    """Add attributes to the function of a kernel that has just been emitted."""
    kernel = call.args[0]
    builder.update_func(kernel, builder.get()[kernel].with_attrs(notes))


def _rows(call: relax.Call) -> tuple[int, int, int] | None:
    """A slice as equally long runs of memory, one for each row: its first element, the number of rows, and the elements
    from one row to the next. One axis is cut to a range; before it are whole axes and single indices, in either order,
    after it whole axes. None for any other slice."""
    data, *arguments = call.args
    if not all(isinstance(item, relax.Tuple) and all(map(_is_known, item.fields)) for item in arguments):
        return None
    axes, begin, _, *strides = ([int(field.value) for field in item.fields] for item in arguments)
    before, after = shape_of(data), shape_of(call)
    if 0 in after or any(step != 1 for steps in strides for step in steps):
        return None
    first = [0] * len(before)
    for axis, index in zip(axes, begin, strict=True):
        size = before[axis]
        first[axis] = min(max(index + size if index < 0 else index, 0), size)
    start = sum(index * math.prod(before[axis + 1 :]) for axis, index in enumerate(first))
    cut = next((axis for axis, size in enumerate(after) if size > 1), len(after))
    if before[cut + 1 :] == after[cut + 1 :]:
        return start, 1, 0
    cut = max(axis for axis, size in enumerate(after) if size != before[axis])
    rows = after[:cut]
    whole = next((axis for axis, size in enumerate(rows) if size > 1), cut)
    if before[whole:cut] != rows[whole:]:
        return None
    return start, math.prod(rows), math.prod(before[cut:])


def _is_known(value: Any) -> bool:
    return isinstance(value, tirx.IntImm)
