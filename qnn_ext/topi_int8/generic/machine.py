"""What the generic schedule knows about a CPU, and the tile of accumulators that suits its registers."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.target import Target

from ...targets.backend import threads_of
from ...targets.features import backend_of, has_any, registers_of
from ..blocking import blocked_caches

MOST_ROWS, MOST_VECTORS = 8, 4
FEWEST_SUMS = 8  # independent sums that hide the latency of a multiply-add


@dataclass(frozen=True)
class Machine:
    """The properties of a CPU that the schedule depends on.

    threads:        whether kernels may run in parallel
    operations:     the least number of simple operations for which they do
    register_bytes: the size of the vector register file
    cache_bytes:    bytes that stay in the L2 cache beside everything else
    vectors:        parallel accumulators during a reduction that shares no loads between rows
    byte_lanes:     lengths of explicit vectors for narrowing 32-bit values to bytes, best first
    lookups:        whether byte tables are read a whole register at a time
    segments:       whether tables of 16 float32 are
    """

    threads: bool
    operations: float
    register_bytes: int
    cache_bytes: int
    vectors: int
    byte_lanes: tuple[int, ...]
    lookups: bool
    segments: bool


def machine_of(target: Target) -> Machine:
    """The CPU of an LLVM target."""
    backend, registers = backend_of(target), registers_of(target)
    return Machine(
        threads=threads_of(target.attrs) > 1,
        operations=backend.sharing.operations,
        register_bytes=registers.count * registers.bytes,
        cache_bytes=blocked_caches(target).l2_bytes // 2,
        vectors=backend.chains,
        byte_lanes=backend.byte_lanes,
        lookups=has_any(target, backend.lookups),
        segments=has_any(target, backend.segments),
    )


def product_tile(rows: int, vectors: int, registers: int) -> tuple[int, int]:
    """(rows, vectors) of the accumulators of a matrix product with `rows` rows and `vectors` vectors of columns.

    The tile divides both. Each step of the sum loads one value per row and one vector per column and multiplies all
    pairs: among the tiles that fit the registers and have enough sums to hide their latency, the one with the most
    products per load wins.
    """

    def merit(tile: tuple[int, int]) -> tuple[int, float, int]:
        r, v = tile
        return min(r * v, FEWEST_SUMS), r * v / (r + v), v

    divisors = [
        [n for n in range(1, most + 1) if size % n == 0] for size, most in ((rows, MOST_ROWS), (vectors, MOST_VECTORS))
    ]
    tiles = [(r, v) for r in divisors[0] for v in divisors[1] if r * v + min(r, v) + 1 <= registers]
    return max(tiles, key=merit, default=(1, 1))
