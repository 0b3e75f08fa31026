"""The CPU schedule of every PrimFunc without a dedicated kernel: elementwise, layout, pooling, softmax, float layers.

It inlines producers that are cheap to recompute, keeps each innermost loop long, contiguous and free of conditions, so
that LLVM vectorizes it, remainder included, keeps the accumulators of reductions in registers, and spreads large work
over threads. It never fails and never changes a result: a step that does not apply is skipped, and the terms of every
sum keep their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import gcd, prod
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import IRModule, TensorLoad
from tvm.s_tir import Schedule, ScheduleError
from tvm.s_tir.schedule import LoopRV
from tvm.target import Target

from ...numerics.annotations import KEEP, PARTITION, SCHEDULED, is_scheduled
from ...numerics.tir import fence
from ..schedule_util import Unchecked, largest_divisor
from .block import (
    Block,
    Loop,
    blocks_and_tail,
    blocks_of,
    call_name,
    distinct_loads,
    expanded_size,
    is_segments,
    is_table,
    read_block,
    stride_of,
    uses,
)
from .machine import Machine, machine_of, product_tile
from .rows import fuse_rows, shared_rows

_log = logging.getLogger(__name__)

CHEAP_BODY = 6  # simple operations that are cheaper to repeat than to store and load
MAX_BODY = 400  # expression nodes; bounds compile time when inlining makes expressions grow
MAX_EXPANDED = 1 << 22  # the same with every `let` expanded, as TVM simplifies them: exp of exp of exp; 0.1 s
LANES = (64, 32, 16, 8)  # vector lengths; those longer than a register of the target take several registers
UNROLL = 16  # longest loop to unroll
SHORT_REDUCTION = 64  # terms that LLVM unrolls; it then vectorizes the loop around them, whatever its extent
EXTREMES = 128  # independent extremes of a whole tensor, in several registers to hide latency
CHAINS = 8  # independent sums that hide the latency of a strictly sequential one
GRAINS = 64  # enough parallel iterations to balance any number of threads


def schedule_module(mod: IRModule, target: Target) -> IRModule:
    """Schedule every PrimFunc of `mod` that no strategy has scheduled (attribute `tirx.is_scheduled`)."""
    functions = {
        var: schedule_generic(func, target) if isinstance(func, tirx.PrimFunc) else func
        for var, func in mod.functions_items()
    }
    return IRModule(functions, attrs=mod.attrs, global_infos=mod.global_infos)


def schedule_generic(func: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """`func` scheduled for the CPU `target`; blocks that are not plain TE (sort, scatter, calls) stay as they are."""
    if is_scheduled(func):
        return func
    machine = machine_of(target)
    sch = attempt(Unchecked(func), inline_producers)
    sch = attempt(sch, _narrow_indices)
    sch = attempt(sch, lambda trial: _schedule_blocks(trial, machine))
    return _with_fences(sch.mod["main"]).with_attr(SCHEDULED, True)


def attempt(sch: Schedule, step: Callable[[Schedule], object]) -> Schedule:
    """A copy of `sch` after `step`, or `sch` itself if the step does not apply to this function.

    The only place where a refusal of TVM is swallowed: the result is then a slower schedule, never a failure.
    """
    trial = sch.copy()
    try:
        done = step(trial)
    except Exception as refusal:
        _log.debug("%s does not apply: %s", getattr(step, "__name__", "step"), refusal)
        return sch
    return done if isinstance(done, Schedule) else trial


def _schedule_blocks(sch: Schedule, machine: Machine) -> Schedule:
    blocks, tail = blocks_and_tail(sch)
    shared, axes = shared_rows(blocks[-tail:], GRAINS) if tail else (0, 0)
    if shared > 1 and sum(block.total_cost for block in blocks[-shared:]) >= machine.operations:
        fused = attempt(sch, lambda trial: _schedule_rows(trial, blocks[-shared:], axes, machine))
        if fused is not sch:
            sch, blocks = fused, blocks[:-shared]
    for block in blocks:
        sch = _schedule_block(sch, block, machine)
    return sch


def _schedule_rows(sch: Schedule, blocks: list[Block], axes: int, machine: Machine) -> Schedule:
    """One parallel loop over the rows that these blocks share, each block scheduled inside a row."""
    rows = fuse_rows(sch, blocks, axes)
    for block in blocks:
        inside = read_block(sch, block.rv, below=rows)
        if inside is not None:
            sch = _schedule_block(sch, inside, replace(machine, threads=False))
    return sch


def _schedule_block(sch: Schedule, block: Block, machine: Machine) -> Schedule:
    step = _schedule_reduction if block.reduce else _schedule_injective
    return attempt(sch, partial(step, block=block, machine=machine))


def _narrow_indices(sch: Schedule) -> Schedule:
    """32-bit loops where a condition depends on an innermost loop.

    Lowering narrows all loops, but then loses the hint to partition them (observed with TVM 0.27). Functions that
    compute with 64-bit values, not just indices, are refused.
    """
    blocks = blocks_of(sch)
    wide = any(block.computes_in("int64") or block.largest_buffer >= 1 << 31 for block in blocks)
    if wide or not any(block.loops and _depends_on(block.loops[-1], block.conditioned_vars()) for block in blocks):
        return sch
    return Unchecked(tirx.transform.ForceNarrowIndexToInt32()(sch.mod))


# Inlining


def inline_producers(sch: Schedule, conditions: bool = False) -> None:
    """Inline injective blocks into their readers, last producer first, so that each sees its final readers.

    conditions: whether a producer with conditions may move into a reduction
    """
    outputs = [sch.get(rv).name_hint for rv in sch.get_output_blocks(sch.get_sblock("root"))]
    for block in reversed(blocks_of(sch)):
        kept = block.node.name_hint in outputs or KEEP in block.node.annotations
        if not block.reduce and not kept and _worth_inlining(sch, block, conditions):
            _inline(sch, block)


def _inline(sch: Schedule, block: Block) -> None:
    try:
        sch.compute_inline(block.rv)
    except ScheduleError as refusal:
        _log.debug("%s stays a stage of its own: %s", block.node.name_hint, refusal)


def _worth_inlining(sch: Schedule, block: Block, conditions: bool) -> bool:
    """Whether repeating the producer at each read costs no more than storing its values and loading them."""
    readers = [read_block(sch, rv) for rv in sch.get_consumers(block.rv)]
    if not readers or block.store is None:
        return False
    evaluations = 0
    for reader in readers:
        if reader is None or (reader.reduce and block.conditional and not conditions):
            return False  # a condition inside a reduction, for example for padding, prevents vectorization
        if _would_contract(block, reader):
            return False
        loads = distinct_loads(reader, block.store.buffer)
        evaluations += loads * reader.iterations
        if len(reader.nodes) + loads * len(block.nodes) > MAX_BODY:
            return False
        if expanded_size(reader, block.store.buffer, expanded_size(block)) > MAX_EXPANDED:
            return False
    if evaluations <= block.iterations:
        return True
    return (block.cost <= CHEAP_BODY and evaluations <= 2 * block.iterations) or _moves_data_only(block)


def _with_fences(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with each product of floats that a stage stores for an addition rounded there: LLVM keeps the values of a
    short stage in registers, and would contract both again."""
    summed: set[Any] = set()

    def collect(node: tirx.Add | tirx.Sub) -> None:
        summed.update(_terms(node))

    def fenced(node: tirx.BufferStore) -> tirx.BufferStore:
        return tirx.BufferStore(node.buffer, _fenced(node.value), node.indices) if node.buffer in summed else node

    tvm_ffi.structural_walk(func.body, [(tirx.Add, collect), (tirx.Sub, collect)])
    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.BufferStore, fenced))) if summed else func


def _fenced(value: Any) -> Any:
    """A value with the products of floats that it may be rounded."""
    if isinstance(value, tirx.Select):
        return tirx.Select(value.condition, *map(_fenced, _branches(value)))
    if _branches(value):
        return tirx.if_then_else(value.args[0], *map(_fenced, _branches(value)))
    return fence(value) if _is_product(value) else value


def _would_contract(producer: Block, reader: Block) -> bool:
    """Whether a product of floats would feed an addition: LLVM contracts both to one operation that rounds once."""
    store = producer.stores[0]
    if not any(map(_is_product, _alternatives(store.value))):
        return False
    sums = [node for node in reader.nodes if isinstance(node, tirx.Add | tirx.Sub)]
    return any(source.same_as(store.buffer) for node in sums for source in _terms(node))


def _is_product(value: Any) -> bool:
    return isinstance(value, tirx.Mul) and str(value.ty) in ("float32", "float64")


def _terms(node: tirx.Add | tirx.Sub) -> list[Any]:
    """The buffers whose elements are operands of an addition, on a condition or not."""
    operands = [*_alternatives(node.a), *_alternatives(node.b)]
    return [operand.source for operand in operands if isinstance(operand, TensorLoad)]


def _alternatives(value: Any) -> list[Any]:
    """What a value may be, by its conditions: LLVM makes a loop for each."""
    branches = _branches(value)
    return [one for branch in branches for one in _alternatives(branch)] if branches else [value]


def _branches(value: Any) -> tuple[Any, ...]:
    """Both values of a condition; none for other expressions."""
    if isinstance(value, tirx.Select):
        return value.true_value, value.false_value
    return tuple(value.args[1:]) if call_name(value) == "prim.if_then_else" else ()


def _moves_data_only(block: Block) -> bool:
    """Whether it is a transpose, reshape, slice or broadcast: one load, without arithmetic on it."""
    return block.store is not None and isinstance(block.store.value, TensorLoad)


# Blocks without reduction


def _schedule_injective(sch: Schedule, block: Block, machine: Machine) -> None:
    """Fuse the trailing loops that together walk memory contiguously, spread the others over threads."""
    conditioned = block.conditioned_vars()
    count = _contiguous_suffix(block, conditioned)
    outer, trailing = list(block.loops[:-count]), list(block.loops[-count:])
    if not block.loops:
        return
    fused = sch.fuse(*(loop.rv for loop in trailing)) if count > 1 else trailing[0].rv
    if (
        block.narrows or (machine.lookups and block.tables) or (machine.segments and block.segments)
    ) and not conditioned:
        fused = _vectorize_bytes(sch, block, fused, [loop.extent for loop in trailing], machine)
    if machine.threads and block.total_cost >= machine.operations:
        if prod(loop.extent for loop in outer) > 1:
            outer = _parallel(sch, outer)
        elif count > 1 or not conditioned:
            sch.parallel(fused)
            return
    if count == 1 and trailing[0].extent >= LANES[-1] and _depends_on(trailing[0], conditioned):
        # Lowering makes one loop per branch of the condition, each of which vectorizes. Conditions on outer loops need
        # no such help.
        sch.annotate(fused, PARTITION, 1)


def _vectorize_bytes(sch: Schedule, block: Block, loop: LoopRV, extents: list[int], machine: Machine) -> LoopRV:
    """Explicit vectors of as many values as the machine narrows; other extents and loads are left to LLVM. Returns the
    loop outside the vector.

    `extents` are those of the loops that `loop` was fused from. A vector must lie within rows or hold whole ones, or
    TVM cannot tell that it is contiguous, and gathers.
    """
    rows = [prod(extents[index:]) for index in range(1, len(extents))]
    fitting = [lanes for lanes in machine.byte_lanes if prod(extents) % lanes == 0]
    lanes = next((n for n in fitting if all(0 in (row % n, n % row) for row in rows)), 0)
    inner = block.loops[-1].var
    scattered = [load for load in block.loads if stride_of(load.indices, inner) == "far"]
    if not lanes or not all(
        (machine.lookups and is_table(load)) or (machine.segments and is_segments(load)) for load in scattered
    ):
        return loop
    outer, vector = sch.split(loop, [None, lanes])
    sch.vectorize(vector)
    return outer


def _depends_on(loop: Loop, variables: list[tirx.Var]) -> bool:
    return any(loop.var.same_as(var) for var in variables)


def _parallel(sch: Schedule, loops: list[Loop]) -> list[Loop]:
    """Run as many leading loops as it takes to occupy the threads in parallel, fused; return the others."""
    count, extent = 0, 1
    while count < len(loops) and extent < GRAINS:
        extent *= loops[count].extent
        count += 1
    head = [loop.rv for loop in loops[:count]]
    sch.parallel(sch.fuse(*head) if len(head) > 1 else head[0])
    return loops[count:]


def _contiguous_suffix(block: Block, conditioned: list[tirx.Var]) -> int:
    """How many trailing loops can become one without any access having to divide the fused index again."""
    accesses = [(load.source, load.indices) for load in block.loads]
    accesses += [(store.buffer, store.indices) for store in block.stores]
    count = 1
    for outer, inner in zip(block.loops[-2::-1], block.loops[:0:-1], strict=True):
        if _depends_on(outer, conditioned) or _depends_on(inner, conditioned):
            break
        if not all(_adjacent(buffer, indices, outer, inner) for buffer, indices in accesses):
            break
        count += 1
    return count


def _adjacent(buffer: tirx.Buffer, indices: list, outer: Loop, inner: Loop) -> bool:
    """Whether the access ignores both loops or has them as neighbouring dimensions, the inner one complete."""
    at_outer = [axis for axis, index in enumerate(indices) if uses(index, outer.var)]
    at_inner = [axis for axis, index in enumerate(indices) if uses(index, inner.var)]
    if not at_outer and not at_inner:
        return True
    if len(at_outer) != 1 or len(at_inner) != 1 or at_inner[0] != at_outer[0] + 1:
        return False
    plain = indices[at_outer[0]].same_as(outer.var) and indices[at_inner[0]].same_as(inner.var)
    return plain and int(buffer.shape[at_inner[0]]) == inner.extent


# Reductions


def _schedule_reduction(sch: Schedule, block: Block, machine: Machine) -> None:
    """[rows..., reduction..., tile]: a tile of accumulators stays in registers during the reduction."""
    if _is_lone_extreme(block):
        _schedule_lone_extreme(sch, block)
        return
    vector = _vector_loop(block)
    tile: list[Loop]
    if vector is not None and _lanes(block, vector.extent) not in LANES and _reduction_size(block) <= SHORT_REDUCTION:
        vector, outer, tile = None, block.spatial, []
    elif vector is not None:
        outer, tile = _register_tile(sch, block, vector, machine)
    elif _reduces_contiguous_integers(block):
        outer, tile = block.spatial, []
    else:
        outer, tile = _chains(sch, block)
    sch.reorder(*(loop.rv for loop in outer), *(loop.rv for loop in block.reduce), *(loop.rv for loop in tile))
    if machine.threads and outer and block.total_cost >= machine.operations:
        _parallel(sch, outer)
    for loop in tile:
        if loop.extent <= UNROLL:
            sch.unroll(loop.rv)
    if vector is not None and tile[-1].extent in LANES:
        sch.vectorize(tile[-1].rv)
    # Last, because the updating block it leaves is no longer a reduction that could be vectorized. The loops of the
    # initializing block inherit the annotations.
    sch.decompose_reduction(block.rv, block.reduce[0].rv)


def _is_lone_extreme(block: Block) -> bool:
    """The maximum or minimum of a whole tensor, whose terms may be taken in any order, unlike those of a float sum."""
    if block.store is None or not isinstance(block.store.value, tirx.Max | tirx.Min) or block.conditional:
        return False
    loads = [load for load in block.loads if not load.source.same_as(block.store.buffer)]
    if len(loads) != 1 or gcd(block.iterations, EXTREMES) < LANES[-1]:
        return False
    sizes = [int(size) for size in loads[0].source.shape]
    walked = [loop.var for loop in block.reduce if loop.extent > 1]
    read = [index for index, size in zip(loads[0].indices, sizes, strict=True) if size > 1]
    in_order = len(walked) == len(read) and all(var.same_as(index) for var, index in zip(walked, read, strict=True))
    return in_order and prod(sizes) == block.iterations and all(loop.extent == 1 for loop in block.spatial)


def _schedule_lone_extreme(sch: Schedule, block: Block) -> None:
    """First independent extremes in several registers, then their extremes in one register, then the extreme of
    those."""
    reduction = sch.fuse(*(loop.rv for loop in block.reduce)) if len(block.reduce) > 1 else block.reduce[0].rv
    extremes = gcd(block.iterations, EXTREMES)
    for lanes in (extremes, LANES[-1]) if extremes > LANES[-1] else (extremes,):
        _, vector = sch.split(reduction, [None, lanes])
        partial_extremes = sch.rfactor(vector, 0)
        *_, outer, vector = sch.get_loops(partial_extremes)
        sch.vectorize(vector)
        sch.decompose_reduction(partial_extremes, outer)
        reduction = sch.get_loops(block.rv)[-1]


def _vector_loop(block: Block) -> Loop | None:
    """The spatial loop along which neighbouring results come from neighbouring or the same inputs, if there is one."""
    wide = [loop for loop in block.spatial if loop.extent > 1]
    if not wide or block.store is None or _depends_on(wide[-1], block.conditioned_vars()):
        return None
    var = wide[-1].var
    vectorizes = stride_of(block.store.indices, var) == "unit" and all(
        stride_of(load.indices, var) != "far" for load in block.loads
    )
    return wide[-1] if vectorizes else None


def _register_tile(sch: Schedule, block: Block, vector: Loop, machine: Machine) -> tuple[list[Loop], list[Loop]]:
    """(outer loops, [rows,] [vectors,] lanes): rows are tiled if several of them share their loads.

    An extent that no vector length divides stays one inner loop, which LLVM vectorizes, remainder included.
    """
    wide = [loop for loop in block.spatial if loop.extent > 1]
    lanes = _lanes(block, vector.extent)
    if lanes not in LANES:
        return _split(sch, block.spatial, {vector.var: [1, lanes]})
    shares = len(wide) > 1 and not block.conditional and _rows_share_loads(block, wide[-2].var, vector.var)
    if not shares:
        return _split(
            sch, block.spatial, {vector.var: [largest_divisor(vector.extent // lanes, machine.vectors), lanes]}
        )
    registers = machine.register_bytes * 8 // (lanes * _widest(block))
    rows, vectors = product_tile(wide[-2].extent, vector.extent // lanes, registers)
    outer, tile = _split(sch, block.spatial, {vector.var: [vectors, lanes], wide[-2].var: [rows]})
    return _cheapest_order(block, outer, wide[-2].var, vector.var, machine.cache_bytes), tile


def _cheapest_order(block: Block, outer: list[Loop], row: tirx.Var, vector: tirx.Var, cache: int) -> list[Loop]:
    """The loops outside a tile of a product: operands that do not stay in cache should be read as rarely as possible.

    With rows outermost, the vectors' operand is read once for each tile of rows; with vectors outermost, the rows'
    operand is read once for each strip of vectors.
    """
    strips = [loop for loop in outer if loop.var.same_as(vector)]
    others = [loop for loop in outer if not loop.var.same_as(vector)]
    shared = [loop for loop in others if not _moves(block, loop.var, vector)]
    if not strips or len(shared) < len(others):  # a batch of products: each has its own operands
        return outer
    rows_bytes = sum(_bytes(load) for load in block.loads if _uses(load, row))
    vectors_bytes = sum(_bytes(load) for load in block.loads if _uses(load, vector))
    again = (prod(loop.extent for loop in others) - 1) * (vectors_bytes if vectors_bytes > cache else 0)
    instead = (strips[0].extent - 1) * (rows_bytes if rows_bytes > cache else 0)
    return strips + others if instead < again else outer


def _moves(block: Block, var: tirx.Var, vector: tirx.Var) -> bool:
    """Whether the operand that moves with `vector` moves with `var` too."""
    return any(_uses(load, var) and _uses(load, vector) for load in block.loads)


def _uses(load: TensorLoad, var: tirx.Var) -> bool:
    return any(uses(index, var) for index in load.indices)


def _bytes(load: TensorLoad) -> int:
    return prod(int(size) for size in load.source.shape) * int(load.ty.dtype.bits) // 8


def _reduction_size(block: Block) -> int:
    return prod(loop.extent for loop in block.reduce)


def _lanes(block: Block, extent: int) -> int:
    bits = _widest(block)
    return next((lanes for lanes in LANES if lanes * bits <= 512 and extent % lanes == 0), extent)


def _widest(block: Block) -> int:
    """Bits of the widest value that a reduction loads or stores."""
    return max(int(node.ty.dtype.bits) for node in (block.stores[0].value, *block.loads))


def _rows_share_loads(block: Block, row: tirx.Var, vector: tirx.Var) -> bool:
    """Whether it is a matrix product: one operand moves only along the rows, the other only along the vector."""
    moves = [
        (stride_of(load.indices, row) != "none", stride_of(load.indices, vector) != "none") for load in block.loads
    ]
    return (True, False) in moves and (False, True) in moves


def _reduces_contiguous_integers(block: Block) -> bool:
    """Whether it sums integers along memory: these may be reordered, so LLVM vectorizes the reduction by itself."""
    if block.store is None or "float" in str(block.store.value.ty):
        return False
    strides = [stride_of(load.indices, block.reduce[-1].var) for load in block.loads]
    return "unit" in strides and "far" not in strides


def _chains(sch: Schedule, block: Block) -> tuple[list[Loop], list[Loop]]:
    """(outer loops, [chains]): several sequential sums in parallel, each in its own order."""
    wide = [loop for loop in block.spatial if loop.extent > 1]
    factor = largest_divisor(wide[-1].extent, CHAINS) if wide else 1
    if factor == 1 or block.conditional or block.store is None:
        return block.spatial, []
    return _split(sch, block.spatial, {wide[-1].var: [factor]})


def _split(sch: Schedule, loops: list[Loop], factors: dict[tirx.Var, list[int]]) -> tuple[list[Loop], list[Loop]]:
    """Split each loop whose iterator is in `factors` into these inner parts; returns (outer loops, inner parts)."""
    outer, inner = [], []
    for loop in loops:
        parts = [factor for factor in factors.get(loop.var, []) if factor > 1]
        if not parts:
            outer.append(loop)
            continue
        extents = [loop.extent // prod(parts), *parts]
        handles = sch.split(loop.rv, extents) if extents != [1, loop.extent] else [None, loop.rv]
        pieces = [Loop(rv, loop.var, loop.kind, extent) for rv, extent in zip(handles, extents, strict=True)]
        outer += [piece for piece in pieces[:1] if piece.rv is not None]
        inner += pieces[1:]
    return outer, inner
