"""Products with block-wise quantized weights on a GPU, for few rows: a language model that decodes.

Reading the weights decides, so they stay packed in memory and every byte is read once for up to ROWS rows of x. Each
thread reads pieces of PIECE columns, neighbouring threads neighbouring pieces, unpacks them in registers and leaves the
sum of the piece's products in shared memory. Then one thread for each result adds a group's pieces, scales them, and
sums the groups in order, as `op.blockwise` defines it.

All dtypes of weights and activations; K must be a multiple of the groups' length, and that of 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ...numerics import tir
from ...numerics.packed import WIDTHS, packed_bytes
from ...targets.families import CUDA, SHARED_BYTES
from ..generic.blockwise import integer_at, multiplied, scaled_sum, zero_at
from ..schedule_util import extent, inline_epilogue, largest_divisor
from ..strategy import Implementation, register
from ..workload import BlockwiseWorkload
from .fallback import schedule_of
from .gemm import WIDEST
from .generic import bind_blocks

WORD = 4
PIECE = 32  # columns a thread multiplies at a time: 16 bytes of 4-bit weights
LEAST_PIECE = 8
SUM_BYTES = 4
X, WEIGHT = 0, 1  # the first operands of a piece
ROWS = 8  # of x, that share the weights a thread has read
COLUMNS = (16, 8)  # of the result that a block computes
THREADS = 128
BANKS = 32
KEPT = 256  # bytes of x that a thread keeps in registers
UNROLLED = 16  # groups that a thread adds up at a time

Expr = Any


def piece_of(workload: BlockwiseWorkload) -> int:
    """Columns of a piece: all of a group or a part of it."""
    return math.gcd(workload.group, PIECE)


def tile_of(workload: BlockwiseWorkload) -> tuple[int, int]:
    """Rows and columns of the result that a block computes: as many as its shared memory holds sums and scales of; no
    rows if it holds none."""
    pieces, groups = (-(-size // BANKS) * BANKS + 1 for size in (workload.k // piece_of(workload), workload.groups))
    most, held = min(workload.m, ROWS), SHARED_BYTES // SUM_BYTES
    fits = {columns: (held - columns * groups) // (columns * pieces + groups) for columns in COLUMNS}
    columns = next((columns for columns in COLUMNS if fits[columns] >= most), COLUMNS[-1])
    return max(0, min(most, fits[columns])), columns


def bytes_of_weights(workload: BlockwiseWorkload) -> int:
    """Bytes of the packed weights."""
    return workload.n * packed_bytes(workload.k, workload.weight_dtype)


def bytes_read(workload: BlockwiseWorkload) -> int:
    """Bytes of weights that all blocks read: once for each tile of rows."""
    return bytes_of_weights(workload) * -(-workload.m // tile_of(workload)[0])


def instructions(workload: BlockwiseWorkload) -> float:
    """Instructions of all threads, of which those that multiply decide. Four values of int8 take two dp4a, and a few
    that unpack weights and gather activations; others a product, a sum, and what makes a float of a weight.

    Fitted to the times on an H200 of 8 and of 64 rows of 4096 values, for 4096 results.
    """
    return workload.macs * (1.06 if _by_words(workload) else 6.8)


def compute(workload: BlockwiseWorkload, x: te.Tensor, operands: Sequence[te.Tensor], pad_value: int) -> te.Tensor:
    """The product, (M, N); parameters as of `generic.blockwise.compute`."""
    *_, weight, _, zero_point = operands
    piece, pieces_of_group = piece_of(workload), workload.group // piece_of(workload)
    step = values_of_word(workload) if _by_words(workload) else 1
    term = _words if _by_words(workload) else _value
    j = te.reduce_axis((0, piece // step), "j")

    def product(m: Expr, n: Expr, p: Expr) -> Expr:
        zero = zero_at(zero_point, n, p // pieces_of_group, workload.weight_dtype)
        return te.sum(term(workload, x, weight, zero, m, n, p * piece + j * step), axis=j)

    pieces = te.compute((workload.m, workload.n, workload.k // piece), product, name="pieces")
    q = te.reduce_axis((0, pieces_of_group), "q")
    dots = te.compute(
        (workload.m, workload.n, workload.groups),
        lambda m, n, g: te.sum(pieces(m, n, g * pieces_of_group + q), axis=q),
        name="dots",
    )
    return scaled_sum(workload, dots, operands)


def _value(
    workload: BlockwiseWorkload, x: te.Tensor, weight: te.Tensor, zero: Expr, m: Expr, n: Expr, column: Expr
) -> Expr:
    """The product of one column."""
    sums = "int32" if workload.integers else "float32"
    value = integer_at(weight, n, column, workload.weight_dtype).astype(tir.dtype_of(zero)) - zero
    return multiplied(workload, x(m, column)) * value.astype(sums)


def values_of_word(workload: BlockwiseWorkload) -> int:
    """Weights in 32 bits."""
    return 32 // WIDTHS[workload.weight_dtype]


def _by_words(workload: BlockwiseWorkload) -> bool:
    """Whether dp4a multiplies: int8 activations and whole words of weights."""
    return workload.integers and piece_of(workload) % values_of_word(workload) == 0


def _words(
    workload: BlockwiseWorkload, x: te.Tensor, weight: te.Tensor, zero: Expr, m: Expr, n: Expr, column: Expr
) -> Expr:
    """The products of the columns in one word of weights, by dp4a.

    Every `each` bits of the word's bytes, as the bytes of another word, are each-th neighbours: Σ_s q_s · x_s. They are
    q = part − offset in 8 signed bits; offset and zero point are multiplied by the sum of x.
    """
    bits, dtype = WIDTHS[workload.weight_dtype], workload.weight_dtype
    each, middle = 8 // bits, 1 << (bits - 1)
    flip = dtype.startswith("u") == (bits == 8)  # what makes all parts signed bytes, or none of them negative
    offset = (-middle if bits == 8 else middle) if flip else 0

    def word(four: list[Expr]) -> Expr:
        parts = [tirx.shift_left(byte.astype("uint8").astype("int32"), _int(8 * i)) for i, byte in enumerate(four)]
        return reduce(tirx.bitwise_or, parts)

    def dot(a: Expr, b: Expr, total: Expr) -> Expr:
        return tirx.call_pure_extern("int32", "__dp4a", a, b, total)

    packed = word([weight(n, column // each + i) for i in range(WORD)])
    total = ones = _int(0)
    for s in range(each):
        part = tirx.shift_right(packed, _int(s * bits)) if s else packed
        part = tirx.bitwise_and(part, _every_byte((1 << bits) - 1)) if bits < 8 else part
        part = tirx.bitwise_xor(part, _every_byte(middle)) if flip else part
        activations = word([x(m, column + i * each + s) for i in range(WORD)])
        total, ones = dot(part, activations, total), dot(_every_byte(1), activations, ones)
    return total - (zero + _int(offset)) * ones


def _int(value: int) -> Expr:
    return tirx.const(value, "int32")


def _every_byte(value: int) -> Expr:
    """A word whose bytes are all `value`."""
    return _int(int(np.array(value * 0x01010101, np.uint32).astype(np.int32)))


def schedule(sch: Schedule, workload: BlockwiseWorkload, target: Target) -> None:
    """Pieces by all threads of a block, then a thread for each result with its epilogue."""
    accumulator, dots, pieces = (sch.get_sblock(name) for name in ("blockwise", "dots", "pieces"))
    output = inline_epilogue(sch, accumulator)
    if sch.get(output).same_as(sch.get(accumulator)):
        output = sch.cache_write(accumulator, 0, "local")
    *lead, n = sch.get_loops(output)
    if extent(sch, n) != workload.n or math.prod(extent(sch, loop) for loop in lead) != workload.m:
        schedule_of("blockwise")(sch, workload, target)  # an epilogue that moves elements
        return
    of_block, threads = tile_of(workload), threads_of(workload)
    rows, row = sch.split(sch.fuse(*lead) if lead else sch.add_unit_loop(n), [None, of_block[0]])
    columns, column = sch.split(n, [None, of_block[1]])
    sch.reorder(rows, columns, row, column)
    sch.bind(rows, "blockIdx.y")
    sch.bind(columns, "blockIdx.x")
    for block in (accumulator, dots):
        sch.set_scope(block, 0, "local")
    sch.compute_at(accumulator, column, preserve_unit_loops=True)
    _, group = sch.split(sch.get_loops(accumulator)[-1], [None, math.gcd(workload.groups, UNROLLED)])
    sch.unroll(group)  # loads need not wait for sums
    sch.compute_at(dots, group, preserve_unit_loops=True)
    copy = sch.cache_write(pieces, 0, "local")
    sch.set_scope(copy, 0, "shared")
    sch.compute_at(copy, columns, preserve_unit_loops=True)
    scales = [sch.cache_read(accumulator, index, "shared") for index in range(1, len(sch.get(accumulator).reads))]
    for block in scales:  # one thread alone would wait for each
        sch.compute_at(block, columns, preserve_unit_loops=True)
        _bind(sch, block, sch.fuse(*sch.get_loops(block)[-2:]), threads)
    _bind(sch, None, sch.fuse(row, column), threads)  # last: TVM takes all threads for columns of the block
    _multiply(sch, workload, pieces, copy)
    bind_blocks(sch)


def _multiply(sch: Schedule, workload: BlockwiseWorkload, pieces: SBlockRV, copy: SBlockRV) -> None:
    """Pieces over threads, each for all rows, the weights of a piece and a row's activations in registers."""
    row, column, piece = sch.get_loops(copy)[-3:]
    values, threads = piece_of(workload), threads_of(workload)
    itemsize = np.dtype(workload.data_dtype).itemsize
    if _keeps_rows(workload):
        sch.reorder(piece, column, row)
        of_x = _bind(sch, copy, piece, threads)
        sch.unroll(column)
    else:
        sch.reorder(column, piece, row)
        column, of_x = _bind(sch, copy, sch.fuse(column, piece), threads), row
    sch.compute_at(pieces, row, preserve_unit_loops=True)
    j = sch.get_loops(pieces)[-1]
    _read(sch, pieces, WEIGHT, column, values * WIDTHS[workload.weight_dtype] // 8)
    _read(sch, pieces, X, of_x, values * itemsize)
    sch.decompose_reduction(pieces, j)
    sch.unroll(j)


def _keeps_rows(workload: BlockwiseWorkload) -> bool:
    """Whether a thread multiplies its piece of x, in registers, by all columns of a block: if all threads have one."""
    size = tile_of(workload)[0] * piece_of(workload) * np.dtype(workload.data_dtype).itemsize
    return workload.k // piece_of(workload) >= THREADS and size <= KEPT


def threads_of(workload: BlockwiseWorkload) -> int:
    """Threads of a block. Where they share columns and pieces, all have the same number of them: TVM cannot schedule
    the rest."""
    shared = tile_of(workload)[1] * (workload.k // piece_of(workload))
    return THREADS if _keeps_rows(workload) else largest_divisor(shared, THREADS)


def _bind(sch: Schedule, shared: SBlockRV | None, loop: LoopRV, threads: int) -> LoopRV:
    """Share a loop between the threads of a block; rows of what it leaves in shared memory begin in different banks."""
    _, thread = sch.split(loop, [None, threads])
    sch.bind(thread, "threadIdx.x")
    if shared is not None:
        sch.storage_align(shared, 0, len(sch.get(shared).writes[0].region) - 2, BANKS, 1)
    return thread


def _read(sch: Schedule, pieces: SBlockRV, operand: int, loop: LoopRV, size: int) -> None:
    """Read `size` neighbouring bytes of an operand into registers, in accesses as wide as they are aligned."""
    copy = sch.cache_read(pieces, operand, "local")
    sch.compute_at(copy, loop, preserve_unit_loops=True)
    source = sch.get(copy).reads[0].source
    item = tvm.DataType(str(source.dtype)).bits // 8
    width = math.gcd(size, int(source.shape[-1]) * item, WIDEST) // item
    outer, vector = sch.split(sch.get_loops(copy)[-1], [None, width])
    sch.unroll(outer)
    if width > 1:
        sch.vectorize(vector)


def refuses(workload: BlockwiseWorkload, target: Target) -> str | None:
    if workload.k % workload.group:
        return f"K is {workload.k}, no multiple of the groups' {workload.group}"
    if piece_of(workload) % LEAST_PIECE:
        return f"groups of {workload.group}, no multiple of {LEAST_PIECE}"
    if tile_of(workload)[0] == 0:
        return f"rows of {workload.k} values, whose sums need more than {SHARED_BYTES} bytes of shared memory"
    return None


register(
    BlockwiseWorkload,
    Implementation(
        name="blockwise_pieces.cuda",
        priority=10,
        backends=(CUDA,),
        refuses=refuses,
        compute=compute,
        schedule=schedule,
    ),
)
