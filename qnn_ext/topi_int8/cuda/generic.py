"""The GPU schedule of every PrimFunc without a dedicated kernel: a thread for each element of the result, or for four.

Cheap producers are recomputed where they are read. A reduction runs inside the thread that reads its result, with the
terms of every sum in order; only if the order does not matter, as for integers and extremes, and neighbouring terms are
adjacent in memory, do the threads of a warp share one. For anything that is no TE compute, see nests.py.
"""

from __future__ import annotations

import contextlib
from math import prod

from tvm import tirx
from tvm.ir import IRModule
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ...numerics.annotations import KEEP, SCHEDULED, is_scheduled
from ..generic.block import Block, blocks_of, distinct_loads, read_block, stride_of
from ..generic.schedule import attempt, inline_producers
from ..schedule_util import Unchecked
from .nests import bind_nests

THREADS = 256
FEW_THREADS = 64  # per block if there are at most MANY elements, so that every multiprocessor gets some
MANY = 1 << 16
VECTOR = 4  # bytes that a thread stores at once
WARP = 32
LONG_REDUCTION = 64  # terms worth a warp
SHARED_ROWS = 4  # rows that the warps of one block reduce


def schedule_module(mod: IRModule) -> IRModule:
    """Schedule every PrimFunc of `mod` that no strategy has scheduled (attribute `tirx.is_scheduled`)."""
    functions = {
        var: schedule_generic(func) if isinstance(func, tirx.PrimFunc) else func for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def schedule_generic(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with all its loops bound to threads."""
    if is_scheduled(func):
        return func
    if func.body.block.name_hint == "root":  # otherwise it is a single nest
        sch = attempt(Unchecked(func), lambda trial: inline_producers(trial, conditions=True))
        bind_blocks(sch)
        func = sch.mod["main"]
    return bind_nests(func).with_attr(SCHEDULED, True)


def bind_blocks(sch: Schedule) -> None:
    """Bind every TE block under the root that has no threads yet, readers before their producers."""
    for block in reversed(blocks_of(sch)):
        current = read_block(sch, block.rv)
        if current is not None:  # otherwise it moved into its reader
            _bind(sch, current)


def _bind(sch: Schedule, block: Block) -> None:
    if _shares_warp(block):
        _bind_warps(sch, block)
        return
    if block.reduce and block.store is not None:
        output = read_block(sch, sch.cache_write(block.rv, 0, "local"))
        assert output is not None, "a copy is plain"
        block = output
    inside = [producer for producer in sch.get_producers(block.rv) if _belongs_inside(sch, producer, block)]
    vector = 1 if inside or not _is_vector(block) else VECTOR
    thread = bind_elements(sch, block, vector)
    for producer in inside:
        sch.compute_at(producer, thread, preserve_unit_loops=True)
        sch.set_scope(producer, 0, "local")
        with contextlib.suppress(ScheduleError):  # of one term: the initial value stays inside
            sch.decompose_reduction(producer, _first_reduction(sch, producer))


def bind_elements(sch: Schedule, block: Block, vector: int = 1) -> LoopRV:
    """A thread for `vector` elements, which computes the whole reduction; returns the loop over the threads of a block.

    Elements are in the order of the spatial loops, so that neighbouring threads compute neighbours.
    """
    fused = _fuse_spatial(sch, block)
    threads = THREADS if int(sch.get(fused).extent) > MANY else FEW_THREADS
    if vector > 1:
        blocks, thread, lanes = sch.split(fused, [None, threads, vector])
        sch.vectorize(lanes)
    else:
        blocks, thread = sch.split(fused, [None, threads])
    sch.bind(blocks, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def _fuse_spatial(sch: Schedule, block: Block) -> LoopRV:
    """Fuse all spatial loops into one, outside the reduction."""
    spatial, reduce = ([loop.rv for loop in loops] for loops in (block.spatial, block.reduce))
    if not spatial:
        return sch.add_unit_loop(reduce[0] if reduce else block.rv)
    if reduce:
        sch.reorder(*spatial, *reduce)
    return sch.fuse(*spatial) if len(spatial) > 1 else spatial[0]


def _first_reduction(sch: Schedule, block: SBlockRV) -> LoopRV:
    kinds = [variable.iter_type for variable in sch.get(block).iter_vars]
    return sch.get_loops(block)[-len(kinds) :][kinds.index(tirx.IterVar.CommReduce)]


def _is_vector(block: Block) -> bool:
    """Whether VECTOR neighbours of the result can be computed as one vector: bytes, in rows of whole vectors. Not for
    booleans: TVM reads four of them as CUDA's ushort4, which has eight bytes."""
    if any(str(load.ty.dtype) == "bool" for load in block.loads):
        return False
    if block.reduce or block.store is None or block.conditional or not block.loops:
        return False
    inner = block.loops[-1]
    if inner.extent % VECTOR or str(block.store.buffer.dtype) not in ("int8", "uint8"):
        return False
    accesses = [load.indices for load in block.loads] + [block.store.indices]
    return all(stride_of(indices, inner.var) in ("none", "unit") for indices in accesses)


def _belongs_inside(sch: Schedule, producer: SBlockRV, reader: Block) -> bool:
    """Whether a reduction belongs in the thread that reads its result, since each element is read once and no warp can
    share it."""
    block = read_block(sch, producer)
    if block is None or not block.reduce or block.store is None or KEEP in block.node.annotations:
        return False
    if _shares_warp(block):
        return False
    once = prod(loop.extent for loop in block.spatial) == reader.iterations
    return once and distinct_loads(reader, block.store.buffer) == 1 and len(sch.get_consumers(producer)) == 1


# Reductions by warps


def _shares_warp(block: Block) -> bool:
    """Whether the terms may be in any order, are adjacent in memory, and are enough for a warp.

    Only 32-bit values: TVM exchanges others through shared memory, without the barriers needed since Volta.
    """
    if not block.reduce or block.store is None or prod(loop.extent for loop in block.reduce) < LONG_REDUCTION:
        return False
    store, dtype = block.store, str(block.store.buffer.dtype)
    extreme, total = isinstance(store.value, tirx.Max | tirx.Min), isinstance(store.value, tirx.Add)
    exact = (dtype in ("int32", "float32") and extreme) or (dtype == "int32" and total)
    inner = block.reduce[-1].var
    loads = [load for load in block.loads if not load.source.same_as(store.buffer)]
    return exact and any(stride_of(load.indices, inner) == "unit" for load in loads)


def _bind_warps(sch: Schedule, block: Block) -> None:
    """A warp for each element of the result, whose threads take every 32nd term."""
    rows = prod(loop.extent for loop in block.spatial)
    reduce = [loop.rv for loop in block.reduce]
    row = _fuse_spatial(sch, block)
    term = sch.fuse(*reduce) if len(reduce) > 1 else reduce[0]
    if rows % SHARED_ROWS == 0:  # a predicate would separate the threads that exchange values
        row, warp = sch.split(row, [None, SHARED_ROWS])
        sch.bind(warp, "threadIdx.y")
    sch.bind(row, "blockIdx.x")
    _, lane = sch.split(term, [None, WARP])
    sch.bind(lane, "threadIdx.x")
