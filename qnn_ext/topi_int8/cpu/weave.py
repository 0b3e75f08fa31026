"""Software pipelining of register tiles: a tile's epilogue runs between the dot products of the next one.

Dot products use half of a core's vector units, and most of an epilogue the other half; but a CPU looks ahead only some
dozens of vector instructions, fewer than either has. So where a schedule marks it,

    for tile: {for k: dots(tile, k)}; for part: epilogue(tile, part)

becomes

    for k: dots(first tile, k); held = accumulators
    for other tile: {for part: {some k: dots(tile, k); epilogue(tile − 1, part)}; for other k: dots(tile, k); held = …}
    for part: epilogue(last tile, part)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import tvm_ffi
from tvm import ir, tirx

from ...numerics.annotations import WEAVE, annotation_of
from .statements import sequence_of, statements_of, with_body

FEWEST_TILES = 4
"""With fewer, most are the first and the last, which are not pipelined."""

CACHE_LINE = 64
"""Bytes."""

Expr = Any


def weave(body: tirx.Stmt, serial: bool) -> tirx.Stmt:
    """Lowered loops with every marked epilogue woven into its tile loop. `serial`: parallel loops run on one thread."""
    if _is_marked(body):
        return _unrolled(body)
    if isinstance(body, tirx.For):
        tile = _tile(body, serial)
        return _pipelined(tile) if tile else with_body(body, weave(body.body, serial))
    if isinstance(body, tirx.SeqStmt):
        return sequence_of([weave(stmt, serial) for stmt in body.seq])
    if isinstance(body, tirx.AttrStmt):
        return tirx.AttrStmt(body.node, body.attr_key, body.value, weave(body.body, serial))
    return body


@dataclass(frozen=True)
class _Tile:
    """The loops over all register tiles, outermost first, and what they compute.

    allocated: buffers in the loops; bound: values bound in the loops; initial: statements that initialize the
    accumulators; reduction: the loop over k; epilogue: the loop over the epilogue's parts
    """

    loops: list[tirx.For]
    allocated: list[tirx.Stmt]
    bound: list[tirx.Bind]
    initial: list[tirx.BufferStore]
    reduction: tirx.For
    epilogue: tirx.For


def _tile(loop: tirx.For, serial: bool) -> _Tile | None:
    """The tile loops from `loop` inwards; None if it is not one, or contains more than one tile's computation."""
    loops: list[tirx.For] = []
    allocated: list[tirx.Stmt] = []
    bound: list[tirx.Bind] = []
    inner: list[tirx.Stmt] = [loop]
    while len(inner) == 1 and isinstance(inner[0], tirx.For):
        if not serial and inner[0].kind == tirx.ForKind.PARALLEL:
            return None
        loops.append(inner[0])
        body = statements_of(inner[0].body)
        allocated += [stmt for stmt in body if isinstance(stmt, (tirx.AllocBuffer, tirx.DeclBuffer))]
        bound += [stmt for stmt in body if isinstance(stmt, tirx.Bind)]
        inner = [stmt for stmt in body if not isinstance(stmt, (tirx.AllocBuffer, tirx.DeclBuffer, tirx.Bind))]
    if len(inner) < 3:
        return None
    *initial, reduction, epilogue = inner
    stores = all(isinstance(stmt, tirx.BufferStore) for stmt in initial)
    if not (stores and isinstance(reduction, tirx.For) and isinstance(epilogue, tirx.For) and _is_marked(epilogue)):
        return None
    if not _is_constant(reduction) or int(reduction.extent) < int(epilogue.extent) or _holds(reduction.body, tirx.For):
        return None
    if _holds(epilogue.body, tirx.IfThenElse):  # a branch among dot products keeps LLVM from ordering them
        return None
    if not all(map(_is_constant, loops)) or math.prod(int(loop.extent) for loop in loops) < FEWEST_TILES:
        return None
    return _Tile(loops, allocated, bound, initial, reduction, epilogue)


def _pipelined(tile: _Tile) -> tirx.Stmt:
    accumulators = tile.initial[0].buffer
    held, memory = _aligned(accumulators)
    places = [store.indices for store in tile.initial]
    copies = [tirx.BufferStore(held, accumulators[tuple(place)], place) for place in places]
    count = math.prod(int(loop.extent) for loop in tile.loops)
    parts, steps = int(tile.epilogue.extent), int(tile.reduction.extent)

    first, bound = _at(tile, _int32(0))
    start = [*bound, *_initial(tile, first), _dots(tile, first, _int32(0), steps), *copies]

    index, part = tirx.Var("tile", "int32"), tirx.Var("part", "int32")
    this, bound = _at(tile, index + 1)
    previous, bound_before = _at(tile, index, {accumulators: held})
    between = steps // parts
    woven = _for(part, parts, [_dots(tile, this, part * between, between), _part(tile, previous, part)])
    rest = _dots(tile, this, _int32(parts * between), steps - parts * between)
    body = [*bound, *bound_before, *_initial(tile, this), woven, rest, *copies]

    last, bound_last = _at(tile, _int32(count - 1), {accumulators: held})
    final = tirx.Var("part", "int32")
    end = [*bound_last, _for(final, parts, [_part(tile, last, final)])]
    return sequence_of([*tile.allocated, *memory, *start, _for(index, count - 1, body), *end])


def _initial(tile: _Tile, known: Mapping[Any, Any]) -> list[tirx.Stmt]:
    """The statements that initialize the accumulators."""
    return [_copy(store, known) for store in tile.initial]


def _aligned(like: tirx.Var) -> tuple[tirx.Var, list[tirx.Stmt]]:
    """A buffer of the same shape aligned to a cache line, and its allocation: code generation aligns to 16 bytes
    only."""
    dtype = like.ty.dtype
    spare = CACHE_LINE // tvm_ffi.dtype(str(dtype)).itemsize - 1
    size = math.prod(int(extent) for extent in like.ty.shape)
    memory = tirx.decl_buffer((size + spare,), dtype, "memory", layout=None)
    held = tirx.decl_buffer(like.ty.shape, dtype, "held", layout=None)
    mask = tirx.const(-CACHE_LINE, "int64")
    start = tirx.call_llvm_pure_intrin("int32", "llvm.ptrmask", tirx.address_of(memory[spare]), mask)
    pointer = ir.Call(start.op, list(start.args), ret_ty=ir.PointerType(ir.PrimType(str(dtype))))
    return held, [tirx.AllocBuffer(memory), tirx.DeclBuffer(held, data=pointer)]


def _at(tile: _Tile, index: Expr, replaced: Mapping[Any, Any] | None = None) -> tuple[dict, list[tirx.Stmt]]:
    """The tile loops' variables at tile number `index`: a replacement for each, and statements that bind these."""
    known: dict[Any, Any] = dict(replaced or {})
    bound: list[tirx.Stmt] = []

    def bind(var: tirx.Var, value: Expr) -> None:
        known[var] = tirx.Var(var.name, var.ty)
        bound.append(tirx.Bind(known[var], value))

    stride = math.prod(int(loop.extent) for loop in tile.loops)
    for loop in tile.loops:
        extent, dtype = int(loop.extent), str(loop.loop_var.ty.dtype)
        stride //= extent
        bind(loop.loop_var, loop.min + tirx.Cast(dtype, tirx.floormod(tirx.floordiv(index, stride), extent)))
    for binding in tile.bound:
        bind(binding.var, _copy(binding.value, known))
    return known, bound


def _dots(tile: _Tile, known: Mapping[Any, Any], start: Expr, steps: int) -> tirx.Stmt:
    """The dot products of `steps` steps along k."""
    if steps == 0:
        return tirx.Evaluate(_int32(0))
    loop = tile.reduction
    step = tirx.Var("step", "int32")
    k = tirx.Var("k", loop.loop_var.ty)
    body = _copy(loop.body, {**known, loop.loop_var: k})
    where = tirx.Bind(k, loop.min + tirx.Cast(str(loop.loop_var.ty.dtype), start + step))
    return _for(step, steps, [where, body])


def _part(tile: _Tile, known: Mapping[Any, Any], part: Expr) -> tirx.Stmt:
    """One part of the epilogue."""
    loop = tile.epilogue
    number = tirx.Var("number", loop.loop_var.ty)
    where = tirx.Bind(number, loop.min + tirx.Cast(str(loop.loop_var.ty.dtype), part))
    return sequence_of([where, _copy(loop.body, {**known, loop.loop_var: number})])


def _copy(node: Any, replaced: Mapping[Any, Any]) -> Any:
    """A statement or expression with variables replaced, and new variables for those that it defines itself."""
    known = dict(replaced)

    def define(var: tirx.Var) -> None:
        known[var] = tirx.Var(var.name, var.ty)

    tvm_ffi.structural_walk(
        node,
        [
            (tirx.For, lambda loop: define(loop.loop_var)),
            (tirx.Bind, lambda binding: define(binding.var)),
            (tirx.Let, lambda let: define(let.var)),
        ],
    )
    return tvm_ffi.structural_map(node, (tirx.Var, lambda var: known.get(var, var)))


def _unrolled(loop: tirx.For) -> tirx.Stmt:
    """A marked loop left after its dot products, unrolled: at constant indices, accumulators stay in registers."""
    start = int(loop.min)
    numbers = range(start, start + int(loop.extent))
    dtype = loop.loop_var.ty.dtype
    return sequence_of([_copy(loop.body, {loop.loop_var: tirx.const(number, dtype)}) for number in numbers])


def _is_marked(stmt: tirx.Stmt) -> TypeGuard[tirx.For]:
    return annotation_of(stmt, WEAVE) is not None


def _is_constant(loop: tirx.For) -> bool:
    return isinstance(loop.extent, tirx.IntImm) and isinstance(loop.min, tirx.IntImm)


def _holds(stmt: tirx.Stmt, kind: type) -> bool:
    """Whether a statement of this kind is in `stmt`."""
    found: list[tirx.Stmt] = []
    tvm_ffi.structural_walk(stmt, (kind, found.append))
    return bool(found)


def _for(var: tirx.Var, extent: int, body: Sequence[tirx.Stmt]) -> tirx.For:
    return tirx.For(var, _int32(0), _int32(extent), tirx.ForKind.SERIAL, sequence_of(body), None, {})


def _int32(value: int) -> tirx.IntImm:
    return tirx.IntImm("int32", value)
