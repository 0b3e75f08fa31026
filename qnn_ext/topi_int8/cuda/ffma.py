"""conv2d, dense and batch_matmul of float32: the kernel of `dp4a` with a fused multiply-add of two floats.

Both operands go through shared memory, and a thread's tile of 4×4 to 8×8 sums stays in its registers: each float loaded
from memory is used by a whole block, each float in registers 4 or 8 times. Every sum has one accumulator, which takes
its products in order, rounding once for each, so results have the same bits as on CPUs with multiply-adds.
"""

from __future__ import annotations

from functools import lru_cache, partial

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from ..refusal import other_dtypes
from ..schedule_util import changed_block
from ..strategy import cheapest_first
from ..workload import Workload
from . import gemm
from .dp4a import TILES as OF_BYTES
from .dp4a import Instruction, Tile, schedule, tile_cost
from .registration import cheapest, register_products

FLOAT = "float32"
WASTE = 4
"""How many times as many products as it needs a tile may compute: with fewer rows, a thread for each result is better,
and has as many loads from memory."""

TILES = [tile for tile in OF_BYTES if tile.depth == 16]


def _fuse(sch: Schedule, product: SBlockRV, value: LoopRV) -> None:
    """c + a · b as __fmaf_rn(a, b, c): the compiler is not allowed to contract them, see `lowering`."""
    block = sch.get(product)
    total = block.body.value
    fused = tirx.call_pure_extern(FLOAT, "__fmaf_rn", total.b.a, total.b.b, total.a)
    body = tirx.BufferStore(block.body.buffer, fused, block.body.indices)
    new = changed_block(block, body=body)
    sch.state.replace(sch.get_sref(product), new, {block: new})


FFMA = Instruction(1, _fuse)


@lru_cache(maxsize=4096)
def tiles(workload: Workload) -> dict[Tile, float]:
    """All tiles with their predicted cost, cheapest first."""
    sizes = gemm.gemm_of(workload)
    return cheapest_first({tile: tile_cost(tile, sizes, FFMA) for tile in TILES})


def _refuses(workload: Workload, target: Target) -> str | None:
    refused = other_dtypes(workload, (FLOAT,), (FLOAT,), FLOAT)
    if refused:
        return refused
    sizes = gemm.gemm_of(workload)
    fills = cheapest(tiles, workload).block.pad(sizes).macs <= WASTE * sizes.macs
    return None if fills else "fills less than a quarter of its tiles"


register_products(
    "ffma", priority=10, refuses=_refuses, tiles=tiles, schedule=partial(schedule, instruction=FFMA), floats=True
)
