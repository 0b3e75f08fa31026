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
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ...numerics import tir
from ...numerics.packed import WIDTHS
from ...targets.families import CUDA, SHARED_BYTES
from ..generic.blockwise import integer_at, scaled_sum, zero_at
from ..schedule_util import extent, inline_epilogue
from ..strategy import Implementation, register
from ..workload import BlockwiseWorkload
from .fallback import schedule_of
from .gemm import WIDEST
from .generic import bind_blocks

PIECE = 32  # columns a thread multiplies at a time: 16 bytes of 4-bit weights
LEAST_PIECE = 8
SUM_BYTES = 4
X, WEIGHT = 0, 1  # the first operands of a piece
ROWS = 8  # of x, that share the weights a thread has read
OUTPUTS = 8  # columns of the result that a block computes
THREADS = 128
BANKS = 32

Expr = Any


def piece_of(workload: BlockwiseWorkload) -> int:
    """Columns of a piece: all of a group or a part of it."""
    return math.gcd(workload.group, PIECE)


def rows_of(workload: BlockwiseWorkload) -> int:
    """Rows of x that a block computes: as many as its shared memory holds sums and scales of, at most ROWS; 0: none."""
    pieces, groups = (-(-size // BANKS) * BANKS + 1 for size in (workload.k // piece_of(workload), workload.groups))
    fits = SHARED_BYTES // SUM_BYTES - OUTPUTS * groups
    return max(0, min(workload.m, ROWS, fits // (OUTPUTS * pieces + groups)))


def compute(workload: BlockwiseWorkload, x: te.Tensor, operands: Sequence[te.Tensor], pad_value: int) -> te.Tensor:
    """The product, (M, N); parameters as of `generic.blockwise.compute`."""
    *_, weight, _, zero_point = operands
    piece, dtype, sums = piece_of(workload), workload.weight_dtype, "int32" if workload.integers else "float32"
    pieces_of_group = workload.group // piece
    j = te.reduce_axis((0, piece), "j")

    def term(m: Expr, n: Expr, p: Expr) -> Expr:
        column = p * piece + j
        zero = zero_at(zero_point, n, p // pieces_of_group, dtype)
        value = integer_at(weight, n, column, dtype).astype(tir.dtype_of(zero)) - zero
        return x(m, column).astype(sums) * value.astype(sums)

    pieces = te.compute(
        (workload.m, workload.n, workload.k // piece), lambda m, n, p: te.sum(term(m, n, p), axis=j), name="pieces"
    )
    q = te.reduce_axis((0, pieces_of_group), "q")
    dots = te.compute(
        (workload.m, workload.n, workload.groups),
        lambda m, n, g: te.sum(pieces(m, n, g * pieces_of_group + q), axis=q),
        name="dots",
    )
    return scaled_sum(workload, dots, operands)


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
    rows, row = sch.split(sch.fuse(*lead) if lead else sch.add_unit_loop(n), [None, rows_of(workload)])
    columns, column = sch.split(n, [None, OUTPUTS])
    sch.reorder(rows, columns, row, column)
    sch.bind(rows, "blockIdx.y")
    sch.bind(columns, "blockIdx.x")
    for block in (accumulator, dots):
        sch.set_scope(block, 0, "local")
    sch.compute_at(accumulator, column, preserve_unit_loops=True)
    sch.compute_at(dots, sch.get_loops(accumulator)[-1], preserve_unit_loops=True)
    copy = sch.cache_write(pieces, 0, "local")
    sch.set_scope(copy, 0, "shared")
    sch.compute_at(copy, columns, preserve_unit_loops=True)
    scales = [sch.cache_read(accumulator, index, "shared") for index in range(1, len(sch.get(accumulator).reads))]
    for block in scales:  # one thread alone would wait for each
        sch.compute_at(block, columns, preserve_unit_loops=True)
        _bind(sch, block, sch.fuse(*sch.get_loops(block)[-2:]))
    _bind(sch, None, sch.fuse(row, column))  # last: TVM takes all threads for columns of the block
    _multiply(sch, workload, pieces, copy)
    bind_blocks(sch)


def _multiply(sch: Schedule, workload: BlockwiseWorkload, pieces: SBlockRV, copy: SBlockRV) -> None:
    """Pieces over threads, each for all rows, the weights of a piece and a row's activations in registers."""
    row, column, piece = sch.get_loops(copy)[-3:]
    sch.reorder(column, piece, row)
    thread = _bind(sch, copy, sch.fuse(column, piece))
    sch.compute_at(pieces, row, preserve_unit_loops=True)
    j = sch.get_loops(pieces)[-1]
    values = piece_of(workload)
    _read(sch, pieces, WEIGHT, thread, values * WIDTHS[workload.weight_dtype] // 8)
    _read(sch, pieces, X, row, values * np.dtype(workload.data_dtype).itemsize)
    sch.decompose_reduction(pieces, j)
    sch.unroll(j)


def _bind(sch: Schedule, shared: SBlockRV | None, loop: LoopRV) -> LoopRV:
    """Share a loop between the threads of a block; rows of what it leaves in shared memory begin in different banks."""
    _, thread = sch.split(loop, [None, THREADS])
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


def _refuses(workload: BlockwiseWorkload, target: Target) -> str | None:
    if workload.k % workload.group:
        return f"K is {workload.k}, no multiple of the groups' {workload.group}"
    if piece_of(workload) % LEAST_PIECE:
        return f"groups of {workload.group}, no multiple of {LEAST_PIECE}"
    if rows_of(workload) == 0:
        return f"rows of {workload.k} values, whose sums need more than {SHARED_BYTES} bytes of shared memory"
    return None


register(
    BlockwiseWorkload,
    Implementation(
        name="blockwise_pieces.cuda",
        priority=10,
        backends=(CUDA,),
        refuses=_refuses,
        compute=compute,
        schedule=schedule,
    ),
)
