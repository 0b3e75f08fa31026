"""Instructions that multiply matrices in registers of two dimensions, as AMX's `tdpbusd` does.

    C[m, n] += Σ_k A[m, k] · B[k, n],   m < rows, n < lanes, k < span

A register tile of pixels × blocks of output channels is several such matrices: the pixels of each are neighbours, at
equal distances in memory, and so are read where they lie. Accumulators stay in registers for the whole reduction and
are then stored to memory, where the epilogue reads them: vector instructions do not reach these registers.

Schedules leave the loops of a tile as they are and mark them (`mark_tile`); the last pass on the kernel's TIR turns
marked loops into instructions, as far as their indices are linear, see `x86.matrices`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ...numerics.annotations import MATRIX
from ..workload import AnyWorkload, Conv2dWorkload, is_float
from .dot import DotInstruction

WASTE = 1.15
"""Splitting a reduction into equal parts without a rest, so that nothing is copied, may take so many more steps."""

# Cycles, of Intel's Sapphire Rapids (Intel, Optimization Reference Manual, chapter 20).
PRODUCT = 16
"""For a product of whole registers, one of which may start in so many cycles."""
LOAD = 8
"""To load a register from L1, 64 bytes in each half cycle."""
FAR = 24
"""To load one of weights from L2: 1 KiB at about 43 bytes a cycle."""
LATENCY = 52
"""From the last product to its result."""
STORE = 1
"""To store a row of an accumulator."""
READ = 0.5
"""For the epilogue to read a row of an accumulator."""

PANEL_BYTES = 36 << 10
"""Bytes of a panel of weights that stay in L1, of 48 KiB."""

APART, CROWDED = 6, 1.1
"""Tiles with more registers than that in use must be so many times as fast. They take longest where the core runs
another program that holds such registers as well, and few are left for loads to be ahead of products: on a shared host,
tiles with eight took three times as long as else, those with five or fewer 1.6 times."""


@dataclass(frozen=True)
class Shape:
    """A register tile in matrices: `down` along the pixels, of `rows` pixels each, and `across` along the channels."""

    down: int
    across: int
    rows: int


@dataclass(frozen=True)
class MatrixDot(DotInstruction):
    """A product of matrices; `lanes`, `depth` and `chain` are those of the weights' matrix.

    rows:    the most rows of a matrix
    longest: the longest chain
    results: the most matrices of accumulators of a tile, which are on the stack for the epilogue
    """

    rows: int = 16
    longest: int = 16
    results: int = 4

    @property
    def starts(self) -> bool:
        return False

    def suited(self, workload: AnyWorkload) -> MatrixDot:
        """The instruction with the chain that suits a workload's reduction: few steps, preferably without a rest."""
        words = -(-_run(workload, self.depth) // self.depth)
        chain = self._chain(words)
        if words % chain and is_float(workload) and isinstance(workload, Conv2dWorkload):
            # The last step would reach into the next row, and no float may be multiplied by zero: pixel by pixel then.
            chain = self._chain(-(-_group_channels(workload) // self.depth))
        return replace(self, chain=chain)

    def _chain(self, words: int) -> int:
        """The words of a step, for a reduction of this many."""
        steps = -(-words // self.longest)
        whole = next(chain for chain in range(self.longest, 0, -1) if words % chain == 0)
        return max(2, whole if words // whole <= WASTE * steps else -(-words // steps))

    def pads(self, run: int) -> str | None:
        """Nothing: `suited` weighs what padding costs."""
        return None

    def sizes(self, rows: int, columns: int) -> Iterator[tuple[int, int, int]]:
        """Rows, columns and blocks of the register tiles for an image of this many pixels."""
        for across in range(1, self.results + 1):
            for down in range(1, self.results // across + 1):
                if self.holds(Shape(down, across, self.rows)):
                    for length in range(min(self.rows, columns // down), 0, -1):
                        yield 1, down * length, across
        for several in range(2, min(rows, self.results) + 1):
            parts = -(-columns // self.rows)
            for across in range(1, self.results // (several * parts) + 1):
                if columns % parts == 0 and self.holds(Shape(several * parts, across, self.rows)):
                    yield several, columns, across

    def shape(self, rows: int, columns: int, blocks: int) -> Shape:
        """The matrices of a register tile."""
        parts, length = self.parts(columns)
        return Shape(rows * parts, blocks, length)

    def parts(self, columns: int) -> tuple[int, int]:
        """Into how many equal parts so many pixels are divided, and how long each is."""
        count = next(count for count in range(-(-columns // self.rows), columns + 1) if columns % count == 0)
        return count, columns // count

    def registers_of(self, shape: Shape) -> tuple[int, int]:
        """How many registers are for matrices of activations, and how many for those of weights: no more than are
        needed at once. While a product reads one, the next load to it goes to another of the physical ones."""
        return (shape.down if shape.across > 1 else 1), 1

    def used(self, shape: Shape) -> int:
        """How many registers a tile uses, accumulators and operands."""
        return shape.down * shape.across + sum(self.registers_of(shape))

    def holds(self, shape: Shape) -> bool:
        """Whether there are enough registers for a tile."""
        return self.used(shape) <= self.registers

    def cycles(self, rows: int, columns: int, blocks: int, steps: int, panel_bytes: int) -> float:
        """Predicted cycles for the products of a register tile, from steps of `depth` values, with panels of weights of
        this size, and for the accumulators' way to the epilogue."""
        shape = self.shape(rows, columns, blocks)
        far = panel_bytes > PANEL_BYTES
        products = shape.down * shape.across * PRODUCT
        loads = shape.down * LOAD + shape.across * (FAR if far else LOAD)
        moved = shape.down * shape.across * shape.rows * (STORE + READ)
        crowded = CROWDED if self.used(shape) > APART else 1.0
        return crowded * steps / self.chain * max(products, loads) + LATENCY + moved


def _run(workload: AnyWorkload, depth: int) -> int:
    """How many neighbouring values a workload's products reduce: the channels of a pixel, or a row of the window if
    they are no whole steps."""
    if not isinstance(workload, Conv2dWorkload):
        return workload.k
    channels = _group_channels(workload)
    gapless = workload.dilation[1] == 1 or workload.kernel[1] == 1
    if channels % depth and workload.groups == 1 and gapless:
        return in_words(workload, channels, depth) * workload.kernel[1]
    return channels


def _group_channels(workload: Conv2dWorkload) -> int:
    return workload.in_channels // workload.groups


def in_words(workload: Conv2dWorkload, channels: int, depth: int) -> int:
    """How many values the channels of a pixel are in a row of the window: floats are padded to whole words of `depth`,
    since the next pixel's, times zero, could be no number."""
    return -(-channels // depth) * depth if is_float(workload) else channels


def mark_tile(sch: Schedule, accumulator: SBlockRV, pixel_axes: int, turns: int = 1) -> list[LoopRV]:
    """Order the accumulator's loops as a tile of matrices and mark them; returns the loops over k.

    turns: how many tiles in a row use the same panel of weights
    """
    kinds = [iter_var.iter_type for iter_var in sch.get(accumulator).iter_vars]
    loops = sch.get_loops(accumulator)[-len(kinds) :]
    spatial = kinds.count(tirx.IterVar.DataPar)
    tile, lane = loops[spatial - pixel_axes - 2 : spatial - 1], loops[spatial - 1]
    reduction, inner = loops[spatial:-2], loops[-2:]
    sch.reorder(*reduction, *tile, lane, *inner)
    initial = sch.decompose_reduction(accumulator, reduction[0])
    sch.annotate(lane, MATRIX, turns)
    sch.annotate(sch.get_loops(initial)[-1], MATRIX, turns)
    return reduction
