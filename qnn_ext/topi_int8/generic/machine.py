"""What the generic schedule knows of a CPU, and the tile of accumulators that suits its registers."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.target import Target

from ..features import has_feature, is_aarch64, is_arm

MOST_ROWS, MOST_VECTORS = 8, 4
FEWEST_SUMS = 8  # independent sums that hide the latency of a multiply-add


@dataclass(frozen=True)
class Machine:
    """What of a CPU the schedule depends on.

    threads:        whether kernels may run in parallel
    register_bytes: the size of the vector register file
    vectors:        accumulators side by side during a reduction that shares no loads between rows
    byte_lanes:     lengths of explicit vectors where 32-bit values become bytes, the best first
    lookups:        whether tables of bytes are read by whole registers
    """

    threads: bool
    register_bytes: int
    vectors: int = 4
    byte_lanes: tuple[int, ...] = (64, 32)
    lookups: bool = False


def machine_of(target: Target) -> Machine:
    """The CPU of an LLVM target."""
    threads = int(target.attrs.get("num-cores", 0)) != 1
    if is_arm(target):
        # A vector of the longest kind is four registers already. Four or two registers of 32-bit values become one of
        # bytes, in instructions that LLVM does not find in loops.
        wide = is_aarch64(target)
        return Machine(threads, (32 if wide else 16) * 16, 1, byte_lanes=(16, 8), lookups=wide)
    size = next((size for name, size in (("avx512f", 32 * 64), ("avx", 16 * 32)) if has_feature(target, name)), 16 * 16)
    return Machine(threads, size, lookups=has_feature(target, "avx512vbmi"))


def product_tile(rows: int, vectors: int, registers: int) -> tuple[int, int]:
    """(rows, vectors) of the accumulators of a matrix product with so many rows and vectors of columns.

    Both divide what there is. Each step of the sum loads one value a row and one vector a column and multiplies all
    pairs: the tile with the most products per load wins, among those that fit into the registers, as soon as it has
    sums enough to hide their latency.
    """

    def merit(tile: tuple[int, int]) -> tuple[int, float, int]:
        r, v = tile
        return min(r * v, FEWEST_SUMS), r * v / (r + v), v

    divisors = [
        [n for n in range(1, most + 1) if size % n == 0] for size, most in ((rows, MOST_ROWS), (vectors, MOST_VECTORS))
    ]
    tiles = [(r, v) for r in divisors[0] for v in divisors[1] if r * v + min(r, v) + 1 <= registers]
    return max(tiles, key=merit, default=(1, 1))
