"""Loops over matrices as AMX's instructions.

Registers are loaded and stored row by row, at a distance in memory. How many rows and bytes each of them has is state
of a thread, the configuration: kernels set it before their loops, or in each iteration of a parallel one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir import Call, Op, TensorLoad
from tvm.sym import detect_linear_equation

from ...numerics.annotations import MATRIX, PREFETCH, SETUP, annotation_of
from ..cpu.matrix import MatrixDot, Shape
from ..cpu.prefetch import into_l2
from ..cpu.statements import on_stack, sequence_of, statements_of, with_body
from .amx import TDPBF16PS, TDPBUSD

Expr = Any

_INSTRUCTIONS = {one.sum_dtype: one for one in (TDPBUSD, TDPBF16PS)}

_INTRINSIC = Op.get("tirx.call_llvm_intrin")

ROW_BYTES, WORD_BYTES = 64, 4
_LANES = TDPBUSD.lanes
_PALETTE = 1  # the only one: eight registers of 16 rows
_CONFIGURATION_BYTES, _BYTES_AT, _ROWS_AT = 64, 16, 48


def with_matrices(body: tirx.Stmt) -> tirx.Stmt:
    """Lowered loops with marked ones as instructions; plain loops where these are not on matrices of one size."""
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(body, (tirx.For, loops.append))
    if all(annotation_of(loop, MATRIX) is None for loop in loops):
        return body
    tiles: list[_Product] = []

    def of_tiles(loop: tirx.For) -> tirx.For:
        return with_body(loop, _multiplied(statements_of(loop.body), tiles, loop))

    found = tvm_ffi.structural_map(body, (tirx.For, of_tiles))
    found = tvm_ffi.structural_map(found, (tirx.SeqStmt, lambda sequence: _multiplied(sequence.seq, tiles)))
    if len({tile.configuration for tile in tiles}) != 1:
        return body
    sums = {tile.sums.buffer for tile in tiles}
    found = tvm_ffi.structural_map(
        found, (tirx.AllocBuffer, lambda node: _aligned(node) if node.buffer in sums else node)
    )
    return _configured(found, tiles[0].configuration)


# ---- what loops multiply -------------------------------------------------------------------------------------------


@dataclass
class _Nest:
    """Nested loops with a single store inside, the values bound between them, and which loop is the marked one."""

    store: tirx.BufferStore
    loops: list[tirx.For]
    bound: list[tirx.Bind]
    marked: int


def _nest(stmt: tirx.Stmt) -> _Nest | None:
    """The loops of a statement that holds a marked one; None for others."""
    loops: list[tirx.For] = []
    bound: list[tirx.Bind] = []
    inner = [stmt]
    while len(inner) == 1 and isinstance(inner[0], tirx.For):
        loops.append(inner[0])
        body = statements_of(inner[0].body)
        bound += [item for item in body if isinstance(item, tirx.Bind)]
        inner = [item for item in body if not isinstance(item, tirx.Bind)]
    marked = [index for index, loop in enumerate(loops) if annotation_of(loop, MATRIX) is not None]
    if len(marked) != 1 or len(inner) != 1 or not isinstance(inner[0], tirx.BufferStore):
        return None
    return _Nest(inner[0], loops, bound, marked[0])


@dataclass(frozen=True)
class _Access:
    """Elements of a buffer that a tile reads or writes: the first one's index, and how far apart they are along each of
    its loops."""

    buffer: tirx.Var
    start: Expr
    steps: tuple[int, ...]

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return tvm_ffi.dtype(str(self.buffer.ty.dtype)).itemsize

    def at(self, offset: Expr) -> Expr:
        """The address of the element that is so many after the first."""
        return tirx.address_of(self.buffer[self.start + offset])


@dataclass(frozen=True)
class _Axis:
    """A loop over pixels or blocks of a tile, and how far apart what it reads and adds to is."""

    extent: int
    data: int
    weight: int
    sums: int


@dataclass(frozen=True)
class _Product:
    """The products of a register tile.

    reduction: the loops over k, outermost first
    chain:     words of k in a row of a matrix
    data, weight, sums: what it reads, and what it adds to
    pixels:    for each matrix along the pixels, how far its data and its sums are from the first's
    pixel, block: from one pixel of a matrix to the next, and from one matrix along the channels to the next
    turns:     how many tiles in a row use the same weights
    """

    instruction: MatrixDot
    reduction: list[tirx.For]
    shape: Shape
    chain: int
    data: _Access
    weight: _Access
    sums: _Access
    pixels: list[tuple[int, int]]
    pixel: _Axis
    block: _Axis
    turns: int

    @property
    def configuration(self) -> bytes:
        """Rows, and bytes of a row, of each register."""
        values = bytearray(_CONFIGURATION_BYTES)
        values[0] = _PALETTE
        data, weight = self.instruction.registers_of(self.shape)
        kinds = [(self.shape.rows, ROW_BYTES)] * len(self.results)
        kinds += [(self.shape.rows, WORD_BYTES * self.chain)] * data + [(self.chain, ROW_BYTES)] * weight
        for number, (rows, width) in enumerate(kinds):
            values[_BYTES_AT + 2 * number] = width
            values[_ROWS_AT + number] = rows
        return bytes(values)

    @property
    def results(self) -> dict[tuple[int, int], int]:
        """The registers of the accumulators, by the matrices along pixels and channels."""
        return {place: number for number, place in enumerate(product(range(self.shape.down), range(self.shape.across)))}


def _product(nest: _Nest) -> _Product | None:
    """What a nest multiplies as matrices; None if these are not at constant distances in memory."""
    inner = nest.loops[nest.marked + 1 :]
    if len(inner) != 2 or not all(isinstance(loop.extent, tirx.IntImm) for loop in nest.loops[nest.marked :]):
        return None
    values = {bind.var: bind.value for bind in nest.bound}
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(nest.store.value, (TensorLoad, loads.append))
    sums = [load for load in loads if load.source.same_as(nest.store.buffer)]
    factors = [load for load in loads if not load.source.same_as(nest.store.buffer)]
    instruction = _INSTRUCTIONS.get(str(nest.store.buffer.ty.dtype))
    if len(sums) != 1 or len(factors) != 2 or instruction is None:
        return None
    around = [loop.loop_var for loop in nest.loops[: nest.marked]]
    place = _access(sums[0], around, values)
    if place is None:
        return None
    reduction = [loop for loop, step in zip(nest.loops, place.steps, strict=False) if step == 0]
    tile = [loop for loop, step in zip(nest.loops, place.steps, strict=False) if step != 0]
    variables = [loop.loop_var for loop in (*tile, nest.loops[nest.marked], *inner)]
    found = (_access(load, variables, values) for load in (*factors, *sums))
    accesses = [access for access in found if access is not None]
    if len(accesses) < 3:
        return None
    *factors, added = accesses
    read, packed = sorted(factors, key=lambda access: access.steps[-3] != 0)  # data is the same for all lanes
    word = WORD_BYTES // packed.item  # elements of a word of weights: one whose parts the expression has, see cpu.words
    words = (word, _LANES * word, 1 if word > 1 else 0)
    if (read.steps[-3:], packed.steps[-3:], added.steps[-3:]) != ((0, instruction.depth, 1), words, (1, 0, 0)):
        return None
    distances = zip(read.steps, packed.steps, added.steps, strict=True)
    axes = [_Axis(int(loop.extent), *steps) for loop, steps in zip(tile, distances, strict=False)]
    turns = int(annotation_of(nest.loops[nest.marked], MATRIX))
    return _matrices(instruction, axes, reduction, int(inner[0].extent), (read, packed, added), turns)


def _matrices(
    instruction: MatrixDot,
    axes: Sequence[_Axis],
    reduction: list[tirx.For],
    chain: int,
    accesses: Sequence[_Access],
    turns: int,
) -> _Product | None:
    """The matrices of a tile with these axes; None if there are none, or too many."""
    pixels = [axis for axis in axes if axis.weight == 0] or [_Axis(1, 0, 0, 0)]
    blocks = [axis for axis in axes if axis.weight != 0] or [_Axis(1, 0, 0, 0)]
    if len(blocks) > 1 or blocks[0].data != 0:
        return None
    *outer, last = pixels
    parts, rows = instruction.parts(last.extent)
    outer.append(replace(last, extent=parts, data=last.data * rows, sums=last.sums * rows))
    places = [(0, 0)]
    for axis in outer:
        places = [(a + i * axis.data, b + i * axis.sums) for a, b in places for i in range(axis.extent)]
    shape = Shape(len(places), blocks[0].extent, rows)
    if not instruction.holds(shape):
        return None
    data, weight, sums = accesses
    return _Product(instruction, reduction, shape, chain, data, weight, sums, places, last, blocks[0], turns)


def _access(load: TensorLoad, variables: Sequence[tirx.Var], values: Mapping[tirx.Var, Expr]) -> _Access | None:
    """What a load reads as loops over these variables go; None unless that is at constant distances. values: of
    variables that are bound in the loops."""
    linear = detect_linear_equation(_with(load.indices[0], values), list(variables))
    if not linear or not all(isinstance(step, tirx.IntImm) for step in linear[:-1]):
        return None
    return _Access(load.source, linear[-1], tuple(map(int, linear[:-1])))


def _with(value: Expr, values: Mapping[tirx.Var, Expr]) -> Expr:
    """An expression with bound variables' values, and these with those of others."""
    found: list[tirx.Var] = []
    tvm_ffi.structural_walk(value, (tirx.Var, found.append))
    known = {var: _with(values[var], values) for var in found if var in values}
    return tvm_ffi.structural_map(value, (tirx.Var, lambda var: known.get(var, var))) if known else value


# ---- instructions --------------------------------------------------------------------------------------------------


def _multiplied(sequence: Sequence[tirx.Stmt], tiles: list[_Product], around: tirx.For | None = None) -> tirx.Stmt:
    """The sequence with the loops that clear a tile's accumulators, and those that add products to them, as
    instructions. What these multiply is added to `tiles`. around: the loop over tiles, if there is one
    """
    statements = list(sequence)
    nests = {place: nest for place, stmt in enumerate(statements) if (nest := _nest(stmt)) is not None}
    clears = [place for place, nest in nests.items() if isinstance(nest.store.value, (tirx.IntImm, tirx.FloatImm))]
    products = {place: _product(nest) for place, nest in nests.items() if place not in clears}
    for place, found in products.items():
        before = [other for other in clears if nests[other].store.buffer.same_as(nests[place].store.buffer)]
        if found is not None and len(before) == 1:
            statements[before[0]] = _cleared(found)
            statements[place] = _summed(found, around)
            tiles.append(found)
    return sequence_of(statements)


def _cleared(tile: _Product) -> tirx.Stmt:
    return sequence_of([_call("tilezero", _register(register)) for register in tile.results.values()])


def _summed(tile: _Product, around: tirx.For | None) -> tirx.Stmt:
    """The loops over k, and the accumulators stored to memory."""
    body = sequence_of([*_step(tile), *_prefetches(tile, around)])
    for loop in reversed(tile.reduction):
        body = tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, body, None, {})
    width = tile.pixel.sums * tile.sums.item
    stores = [
        _call("tilestored64", _register(register), tile.sums.at(tile.pixels[m][1] + n * tile.block.sums), _int64(width))
        for (m, n), register in tile.results.items()
    ]
    return sequence_of([body, *stores])


def _step(tile: _Product) -> list[tirx.Stmt]:
    """The instructions for one step along k: the matrices of weights one by one, each with all those of pixels."""
    data, weight = tile.instruction.registers_of(tile.shape)
    first_data, first_weight = len(tile.results), len(tile.results) + data
    row = _int64(tile.pixel.data * tile.data.item)
    packed = _int64(ROW_BYTES)
    found = []
    for n in range(tile.shape.across):
        right = _register(first_weight + n % weight)
        found.append(_call("tileloadd64", right, tile.weight.at(n * tile.block.weight), packed))
        for m in range(tile.shape.down):
            left = _register(first_data + m % data)
            if n == 0 or data < tile.shape.down:
                found.append(_call("tileloadd64", left, tile.data.at(tile.pixels[m][0]), row))
            found.append(_call(tile.instruction.name, _register(tile.results[m, n]), left, right))
    return found


def _prefetches(tile: _Product, around: tirx.For | None) -> list[tirx.Stmt]:
    """Where the schedule marks it, prefetches of later weights into L2: each tile along the loop `around`, all of which
    use the same weights, fetches its share of the lines that are so many bytes ahead of those in use.

    To hardware prefetchers, each panel's first pass is several new streams, and they are late for all of them.
    """
    ahead = [int(given) for loop in tile.reduction if (given := annotation_of(loop, PREFETCH)) is not None]
    if not ahead:
        return []
    lines = tile.shape.across * tile.chain
    count = math.gcd(tile.turns, int(around.extent)) if around is not None else 1
    index = tirx.floormod(around.loop_var, count) if around is not None else tirx.const(0, "int32")
    share = -(-lines // count)
    found = []
    for number in range(share):
        line = tirx.floormod(index * share + number, lines)
        step = tirx.floordiv(line, tile.chain) * tile.block.weight * tile.weight.item
        offset = step + tirx.floormod(line, tile.chain) * ROW_BYTES + ahead[0]
        address = tile.weight.at(tirx.floordiv(offset, tile.weight.item))
        found.append(tirx.Evaluate(into_l2(address)))
    return found


def _call(name: str, *arguments: Expr) -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))


def _register(number: int) -> Expr:
    return tirx.const(number, "uint8")


def _int64(value: int) -> Expr:
    return tirx.const(value, "int64")


# ---- configuration and memory --------------------------------------------------------------------------------------


def _configured(stmt: tirx.Stmt, configuration: bytes) -> tirx.Stmt:
    """The statement with the registers configured before its outermost loops that use them, or in each iteration of
    those that are parallel, and released behind."""
    if isinstance(stmt, tirx.SeqStmt):
        items = list(stmt.seq)
        users = [place for place, item in enumerate(items) if _uses_registers(item)]
        if any(isinstance(items[place], tirx.Evaluate) for place in users):  # a single tile, without a loop
            first, end = users[0], users[-1] + 1
            return sequence_of([*items[:first], _between(sequence_of(items[first:end]), configuration), *items[end:]])
        return tirx.SeqStmt([_configured(item, configuration) for item in items])
    if isinstance(stmt, tirx.AttrStmt):
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, _configured(stmt.body, configuration))
    if not isinstance(stmt, tirx.For) or not _uses_registers(stmt):
        return stmt
    if stmt.kind == tirx.ForKind.PARALLEL:
        body = _between(stmt.body, configuration)
        setup = len(statements_of(body)) - len(statements_of(stmt.body)) - 1
        return with_body(stmt, body, {**stmt.annotations, SETUP: setup})
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(stmt.body, (tirx.For, loops.append))
    if any(loop.kind == tirx.ForKind.PARALLEL for loop in loops):
        return with_body(stmt, _configured(stmt.body, configuration))
    return _between(stmt, configuration)


def _between(stmt: tirx.Stmt, configuration: bytes) -> tirx.Stmt:
    """The statement between the instructions that configure and release the registers."""
    starts = range(0, len(configuration), 8)
    words = [int.from_bytes(configuration[start : start + 8], "little", signed=True) for start in starts]
    buffer = tirx.decl_buffer((len(words),), "int64", "configuration", layout=None)
    stores = [tirx.BufferStore(buffer, _int64(word), [tirx.const(at, "int32")]) for at, word in enumerate(words)]
    load = _call("ldtilecfg", tirx.address_of(buffer[0]))
    return sequence_of([on_stack(buffer), *stores, load, *statements_of(stmt), _call("tilerelease")])


def _aligned(allocated: tirx.AllocBuffer) -> tirx.Stmt:
    """Accumulators in memory whose rows each lie within a line: code generation aligns only vectors to more than 16
    bytes."""
    sums = allocated.buffer
    lanes, dtype = _LANES, str(sums.ty.dtype)
    size = math.prod(int(extent) for extent in sums.ty.shape)
    memory = tirx.decl_buffer((-(-size // lanes),), f"{dtype}x{lanes}", "sums", layout=None)
    address = tirx.address_of(memory[0])
    pointer = ir.Call(address.op, list(address.args), ret_ty=ir.PointerType(ir.PrimType(dtype)))
    return tirx.SeqStmt([on_stack(memory), tirx.DeclBuffer(sums, data=pointer)])


def _uses_registers(stmt: tirx.Stmt) -> bool:
    calls: list[Call] = []
    tvm_ffi.structural_walk(stmt, (Call, calls.append))
    return any(call.op.same_as(_INTRINSIC) for call in calls)
