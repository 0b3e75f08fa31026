"""The register tile behind all CPU kernels: some pixels × some blocks of output channels, tensorized.

    for tile: for k: for pixel in tile: for block in tile: C[pixel, block, :] += A[pixel, k] · B[block, k, :]

The tile's accumulators stay in vector registers for the whole reduction, and the epilogue runs on them before anything
is written to memory. Convolution, dense and batch_matmul differ only in how A is addressed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Expr, PrimType, TensorLoad
from tvm.s_tir import SBlock, Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from ...numerics.annotations import PARTITION, PREFETCH, WEAVE
from ...targets.backend import Caches
from ..schedule_util import TASKS, extent, move_apart, parallel_rows, run_of_channels, saturates
from .dot import DotInstruction
from .matrix import MatrixDot, mark_tile

# The cycle model, for x86. Unless stated otherwise, all values are cycles, fitted by benchmarks/tiles.py to every legal
# tile of the products of seven networks.
DOT_LATENCY = 4
"""Until another dot product may add to the same accumulator."""
EPILOGUE_CYCLES = 1.5
"""For an accumulator's epilogue, partly hidden by the next tile's dot products."""
BEHIND_DOT = 0.02
"""For each accumulator of the tile: less of a large tile's epilogue overlaps."""
ENTRY = 8.0
"""To enter and leave the loop over k, once a tile: half of a branch's misprediction, the rest of which is hidden."""
PART_NARROWED, STORE = 0.3, 0.1
"""If narrowing to 8 bits does not fill a register; for each store."""
LOOP_OVERHEAD = 0.5
"""Per iteration of the loop over k, on a core with two ports for dot products."""
FAR_LOAD = 2.0
"""To load a register of weights from L2 on a core with two ports for dot products, which take them faster than they
come."""
FAR_FLOATS = 0.1
"""The same for floats, of which a register takes part in one multiply-add for each pixel: of two tiles of equal size,
the one with fewer weights is 1.03 times as fast, and 1.2 times if the panel is larger than L2."""
ISSUED = 0.188
"""For an instruction of a loop over k whose products a second instruction adds (vpmaddwd, vpaddd): twice as many
instructions for a tile are limited by how many a core issues, not by a port. Measured on Zen 3."""
AROUND_PRODUCTS = 4
"""Instructions of that loop besides products and loads: count, branch, addresses."""
COPIED_STEP = 0.1
"""To copy the activations that a dot product reads."""
RAGGED_EPILOGUE = 40
"""For a vector whose lanes are stored one by one; in the other model, instructions."""

ONE_PORT, TWO_PORTS = 0.75, 0.25
"""Shares of the cores with one and with two ports for full dot products in the prediction; no unit."""

PANEL_BYTES = 16 << 10
"""Bytes of a panel of weights that stay in L1: half of it on the cores to which the model is fitted."""

UNROLLED = 128
"""The most dot products and loads of activations in a loop over k that LLVM fully unrolls."""

AHEAD = 64
"""Dot products that the CPU can look ahead."""

# The instruction-count model, for ARM. All values are instructions, counted in LLVM's code for Cortex-A76.
LOOP_STEP = 3.0
"""Per iteration of the loop over k: count, branch, and the address of the weights."""
AROUND_TILE, PER_PIXEL = 15.0, 2.0
"""For the loops over tiles, and for each pixel's addresses: a tile of 7 pixels has 26 around its loop and epilogue."""
EPILOGUE = 10.0
"""For an accumulator: cleared, scaled, rounded, clipped at both ends and converted, by the float32 requantization."""
NARROWED_APART = 1.0
"""More for an accumulator where narrowing to 8 bits does not fill a register."""

# The share of a cache that one operand may take
STRIP_SHARE = 2
"""A strip takes half of the cache that it stays in, as weights do of the one that they come from."""
NEAR_SHARE = 16
"""Weights of at most a sixteenth of the L2 cache are there when needed."""
AHEAD_SHARE = 4
"""Prefetches are a quarter of the L2 cache ahead, because of memory latency."""

LONG_EPILOGUE, LONGEST_WOVEN = 4, 16
"""Float operations of the epilogues that are woven: a requantization has two, a sum after it four more. Functions such
as exp have more: woven, such a chain takes longer than the dot products that run beside it, and fills the CPU's
scheduler, while the chains of a whole tile side by side keep all units busy. Epilogues of float sums are not woven: on
Zen 4 those of float32 take as long either way, and products of bfloat16 up to 1.7 times as long woven, as rounding to
bfloat16 is such a chain, of integer operations."""
MOST_WOVEN_STEPS = 48
"""After more steps along k, what a tile's end costs is less than what weaving costs all of its dot products."""


@dataclass(frozen=True)
class Tile:
    """Rows × columns of output pixels × blocks of output channels held in registers.

    strip: how many tiles along the first pixel axis go through the panels of weights together, a divisor of their
           count; 0: chosen by the cache sizes
    """

    rows: int
    columns: int
    blocks: int
    strip: int = 0


def other_strips(tile: Tile, count: int) -> list[Tile]:
    """The tile with every strip that divides `count` tiles along the first pixel axis."""
    return [replace(tile, strip=size) for size in range(1, count + 1) if count % size == 0]


PACKED = 4
"""Registers of int32 that narrowing to 8 bits packs into one."""


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Domain:
    """What a register tile has to cover, as far as the tile's cost depends on it.

    rows, columns, blocks: output pixels, and channel blocks of one group
    steps:        instructions along the reduction, per accumulator
    copied:       whether the activations are staged anyway, padded to whole tiles
    ragged:       whether the channels end within a vector, so that only a tile of all blocks has a vectorized epilogue
    line:         if set, the columns are successive image lines of that many pixels
    """

    rows: int
    columns: int
    blocks: int
    steps: int
    copied: bool
    ragged: bool
    line: int = 0

    def takes(self, tile: Tile) -> bool:
        """Whether a tile can cover it.

        With lines, a tile must hold whole lines or divide one, or TVM cannot tell which part of the accumulator it
        needs; and it must divide the columns.
        """
        return not self.line or (
            self.columns % tile.columns == 0 and 0 in (self.line % tile.columns, tile.columns % self.line)
        )


def is_ragged(channels: int, instruction: DotInstruction) -> bool:
    """Whether no vector of the epilogue divides the channels, see `_vectorize_epilogue`."""
    return math.gcd(channels, instruction.lanes) < 4


def legal_tiles(domain: Domain, instruction: DotInstruction) -> list[Tile]:
    """Every tile that fits the domain and whose accumulators and operands fit the registers."""
    if isinstance(instruction, MatrixDot):
        sizes = [Tile(*size) for size in instruction.sizes(domain.rows, domain.columns)]
        return [tile for tile in sizes if tile.blocks <= domain.blocks and domain.takes(tile)]
    tiles = []
    for block in range(1, min(domain.blocks, 8) + 1):
        most = _most_pixels(block, instruction)
        tiles += [Tile(1, column, block) for column in range(min(domain.columns, most), 0, -1)]
        tiles += [Tile(row, domain.columns, block) for row in range(2, min(domain.rows, most // domain.columns) + 1)]
    return [tile for tile in tiles if domain.takes(tile) and _fits(tile.rows * tile.columns, tile.blocks, instruction)]


def _most_pixels(blocks: int, instruction: DotInstruction) -> int:
    """The most pixels that a tile of `blocks` blocks may have."""
    return max((n for n in range(1, instruction.registers) if _fits(n, blocks, instruction)), default=0)


def _fits(pixels: int, blocks: int, instruction: DotInstruction) -> bool:
    """Whether the registers hold a tile."""
    return pixels * blocks + instruction.operands(pixels, blocks) <= instruction.registers


def tile_cost(tile: Tile, domain: Domain, instruction: DotInstruction) -> float:
    """Predicted cycles, or instructions, per vector of accumulators: its dot products, its epilogue and its share of
    wasted work."""
    vector = _predictor(instruction)(tile, domain, instruction)
    divides = domain.rows % tile.rows == 0 and domain.columns % tile.columns == 0
    # A copy of the activations, padded to whole tiles, unless they are copied anyway.
    copy = 0.0 if domain.copied or divides else COPIED_STEP * domain.steps / domain.blocks
    return vector * padding(tile, domain) + copy


def _predictor(instruction: DotInstruction) -> Callable[[Tile, Domain, Any], float]:
    if isinstance(instruction, MatrixDot):
        return _cycles_by_matrix
    return _instructions if instruction.backend.counts else _cycles


def padding(tile: Tile, domain: Domain) -> float:
    """What whole tiles cover, as a multiple of what has to be computed."""
    padded = round_up(domain.rows, tile.rows) * round_up(domain.columns, tile.columns)
    return padded * round_up(domain.blocks, tile.blocks) / (domain.rows * domain.columns * domain.blocks)


def _cycles(tile: Tile, domain: Domain, instruction: DotInstruction) -> float:
    """Predicted cycles per vector of accumulators of a tile on an x86 core.

    Constants are fitted to all tiles of the products of seven networks, see benchmarks/tiles.py.
    """
    return domain.steps * _step_cost(tile, domain, instruction) + epilogue_cycles(tile, domain)


def epilogue_cycles(tile: Tile, domain: Domain) -> float:
    """Predicted cycles per vector of accumulators for all but the reduction.

    Instructions after the last dot product wait for it; the next tile's overlap them as far as the CPU looks ahead,
    which is not far in a large tile. Entering the loop over k costs small tiles more, and so does narrowing to 8 bits
    that fills no register; registers are stored by four or two together, then the rest.
    """
    dots = tile.rows * tile.columns * tile.blocks
    return EPILOGUE_CYCLES + BEHIND_DOT * dots + ENTRY / dots + _narrowing(tile, domain)


def _narrowing(tile: Tile, domain: Domain) -> float:
    """Predicted cycles to narrow a vector of accumulators to 8 bits and to store it."""
    stores = tile.blocks // PACKED + (tile.blocks % PACKED + 1) // 2
    narrowing = (PART_NARROWED if tile.blocks % PACKED else 0.0) + STORE * stores / tile.blocks
    return narrowing + (RAGGED_EPILOGUE if domain.ragged and tile.blocks < domain.blocks else 0.0)


def _step_cost(tile: Tile, domain: Domain, instruction: DotInstruction) -> float:
    """Cycles per dot product in the loop over k, by what limits it: dot products, loads, or the chain of additions.

    For a core with one full dot product and one full load per cycle, and for one with two of each, as all have for
    floats, and half a cycle of overhead that it cannot hide; in units of the dot products alone. Weights that do not
    stay in L1 load at half speed, or slower where two dot products per cycle read them.
    A loop that LLVM fully unrolls, with weights staying in registers from tile to tile, has no overhead, and the CPU
    sees the next tiles' chains.
    """
    pixels = tile.rows * tile.columns
    dots = pixels * tile.blocks
    panel = domain.steps * tile.blocks * instruction.vector_bytes
    weights, far = (tile.blocks, 0.0) if panel <= PANEL_BYTES else (2 * tile.blocks, FAR_LOAD * tile.blocks)
    if not instruction.accumulates:
        return max(ISSUED * (instruction.instructions(pixels, tile.blocks) + AROUND_PRODUCTS), far) / dots
    latency, overhead, is_float = float(DOT_LATENCY), LOOP_OVERHEAD, instruction.sum_dtype == "float32"
    stay = domain.rows * domain.columns > pixels and domain.steps * tile.blocks + dots < instruction.registers
    if stay and domain.steps * (dots + pixels) <= UNROLLED:
        weights, far, overhead = 0, 0.0, 0.0
        latency /= max(1.0, AHEAD / (dots * domain.steps))
    single = max(dots, pixels / 2 + weights, latency) / dots
    if is_float and far:
        far, overhead = 0.0, overhead + FAR_FLOATS * tile.blocks
    loads = pixels / 2 + far if far else (pixels + weights) / 2
    double = (max(dots / 2, loads, latency) + overhead) / (dots / 2)
    return double if is_float else ONE_PORT * single + TWO_PORTS * double


def _instructions(tile: Tile, domain: Domain, instruction: DotInstruction) -> float:
    """Predicted instructions per vector of a tile's accumulators."""
    pixels = tile.rows * tile.columns
    dots = pixels * tile.blocks
    step = instruction.instructions(pixels, tile.blocks) + LOOP_STEP / instruction.chain
    around = AROUND_TILE + pixels * PER_PIXEL
    # Four registers narrow to 8 bits in four instructions and a store, fewer registers in just as many.
    epilogue = EPILOGUE + (NARROWED_APART if tile.blocks % PACKED else 0.0)
    if domain.ragged and tile.blocks < domain.blocks:
        epilogue += RAGGED_EPILOGUE
    return (domain.steps * step + around) / dots + epilogue


def _cycles_by_matrix(tile: Tile, domain: Domain, instruction: MatrixDot) -> float:
    """Predicted cycles per vector of accumulators of a tile of matrices."""
    panel = domain.steps * tile.blocks * instruction.vector_bytes
    products = instruction.cycles(tile.rows, tile.columns, tile.blocks, domain.steps, panel)
    return products / (tile.rows * tile.columns * tile.blocks) + EPILOGUE_CYCLES + _narrowing(tile, domain)


def lane_of(channel: Any, channels: int, lanes: int) -> Any:
    """channel % lanes: the lane of a block that the epilogue reads.

    A single channel would always read lane 0; then compute_at drops the other lanes and tensorize refuses the rest.
    So its index is a zero that TVM does not simplify (LLVM does): the number of bits set in an index, over 2¹⁶.
    """
    return channel % lanes if channels > 1 else tirx.popcount(channel) >> tirx.const(16, "int32")


def strip_size(count: int, tile_bytes: int, weight_bytes: int, caches: Caches, least: int = 1) -> int:
    """How many of `count` neighbouring pixel tiles, each reading `tile_bytes`, form one strip.

    Each strip goes through all weights, so it should stay in L1 while they come from L2, or in L2 while they come from
    L3. Weights larger than all activations are read only once: one strip for all. `least` is the smallest strip that is
    worth its overlap with the next.
    """
    if weight_bytes > count * tile_bytes:
        return count
    cache = caches.l1_bytes if weight_bytes <= caches.l2_bytes // STRIP_SHARE else caches.l2_bytes
    wanted = min(count, max(1, least, cache // STRIP_SHARE // tile_bytes))
    return next(size for size in range(wanted, count + 1) if count % size == 0)


def panel_ahead(tile: Tile, tiles: int, weight_bytes: int, blocks: int, caches: Caches) -> int:
    """Bytes from the weights in use to those prefetched meanwhile: the next panel, or further ahead if panels are
    small, because of memory latency. After the last weights come the next kernel's. 0: not worth it.

    tiles: how many register tiles use each panel; weight_bytes: those of all `blocks`
    """
    if tiles == 1 or weight_bytes <= caches.l2_bytes // NEAR_SHARE:
        return 0
    return max(weight_bytes // blocks * tile.blocks, caches.l2_bytes // AHEAD_SHARE)


def schedule_microkernel(
    sch: Schedule,
    accumulator: SBlockRV,
    output: SBlockRV,
    instruction: DotInstruction,
    tile: Tile,
    pixel_axes: int,
    macs: int,
    strip: int,
    stages: Sequence[SBlockRV] = (),
    prefetch: int = 0,
    grouped: bool = False,
    unrolled: int = 0,
    compute_tile: Callable[[], list[LoopRV]] | None = None,
) -> None:
    """Tile `output`, the elementwise consumer of `accumulator`, and compute the accumulator tile by tile, tensorized.

        for strip of pixels: stage the activations; for panel of channels: for tile in strip: the register tile

    The output's axes are (batch..., pixels..., channel); a batch of one may be missing, and `pixel_axes` of them are
    pixels: rows and columns, or columns alone. If `grouped`, the channels are two axes, groups first. The accumulator's
    axes are (batch..., pixels..., block, lane, reduction..., depth), padded to multiples of the tile, so it needs no
    predicates, which tensorize would refuse; the output has them where the tile does not divide it. `strip` divides the
    number of tiles along the first pixel axis; `stages` are the blocks that copy the activations strip by strip, last
    one first. `prefetch`: how many bytes of weights ahead, see `panel_ahead`. `unrolled`: how many of the innermost
    loops over the reduction are. `compute_tile`: schedules the accumulators inside a tile, instead of `tensorize_tile`,
    and returns the loops over the reduction.
    """
    *outer, channel = sch.get_loops(output)
    groups = [outer.pop()] if grouped else []
    batch, pixels = outer[:-pixel_axes], outer[-pixel_axes:]
    factors = (tile.rows, tile.columns)[-pixel_axes:]
    divides = extent(sch, pixels[-1]) % tile.columns == 0
    splits = [sch.split(loop, [None, factor]) for loop, factor in zip(pixels, factors, strict=True)]
    pixel_outer, pixel_inner = [list(loops) for loops in zip(*splits, strict=True)]
    panel_size = min(tile.blocks * instruction.lanes, max(extent(sch, channel), instruction.lanes))
    panel, channel = sch.split(channel, [None, panel_size])
    strips, first = sch.split(pixel_outer[0], [None, strip])
    tiles = [*batch, strips, *groups, panel, first, *pixel_outer[1:]]
    sch.reorder(*tiles, *pixel_inner, channel)

    # A serial loop inside each task matters: the tile's workspace is set up once per task.
    before = tiles.index(panel)
    turns = math.prod(extent(sch, loop) for loop in tiles[before + 1 :])
    tasks = math.prod(extent(sch, loop) for loop in tiles[:before])
    split_off = _ends_within_a_block(sch, output, panel_size, instruction) and (stages or tasks >= TASKS)
    if split_off:
        sch.annotate(panel, PARTITION, 1)
    if not stages:
        shared = tiles[:before] if split_off else tiles
        innermost = [*parallel_rows(sch, shared, macs, instruction.backend.sharing.dot_macs), *tiles[len(shared) :]][-1]
    else:
        task = parallel_rows(sch, [sch.fuse(*batch, strips)], macs, instruction.backend.sharing.dot_macs)[0]
        innermost = tiles[-1]
    sch.compute_at(accumulator, innermost, preserve_unit_loops=True)
    if not divides and pixel_axes == 2 and sch.get(innermost).kind == tirx.ForKind.SERIAL:
        sch.annotate(innermost, PARTITION, 1)
    for stage in stages:
        sch.compute_at(stage, task, preserve_unit_loops=True)
    matrices = isinstance(instruction, MatrixDot)
    if compute_tile:
        reduction = compute_tile()
    elif matrices:
        reduction = mark_tile(sch, accumulator, pixel_axes, turns)
    else:
        reduction = tensorize_tile(sch, accumulator, instruction, pixel_axes)
    _unroll(sch, reduction[len(reduction) - unrolled :])
    if prefetch and instruction.prefetches:
        sch.annotate(reduction[-1], PREFETCH, prefetch)
    woven = instruction.backend.weaves and not (compute_tile or matrices) and instruction.sum_dtype != "float32"
    steps = _single(sch, reduction) if woven else 0
    move_apart(sch, output, innermost)
    _vectorize_epilogue(sch, output, pixel_inner, channel, instruction, steps, bool(split_off))


def _ends_within_a_block(sch: Schedule, output: SBlockRV, panel: int, instruction: DotInstruction) -> bool:
    """Whether the channels end within a block of the last of several panels: with separate code for that panel, the
    others keep whole vectors. Only if blocks are several registers; otherwise vectors of part of a block suffice."""
    channels = int(sch.get(output).iter_vars[-1].dom.extent)
    return instruction.accumulator_axes > 1 and channels > panel and channels % instruction.lanes != 0


def tensorize_tile(sch: Schedule, accumulator: SBlockRV, instruction: DotInstruction, pixel_axes: int) -> list[LoopRV]:
    """Tensorize the accumulator; returns the loops over k."""
    kinds = [iter_var.iter_type for iter_var in sch.get(accumulator).iter_vars]
    loops = sch.get_loops(accumulator)[-len(kinds) :]
    spatial = kinds.count(tirx.IterVar.DataPar)
    first = spatial - instruction.accumulator_axes
    tile, lanes = loops[first - pixel_axes - 1 : first], loops[first:spatial]
    inner = len(loops) - instruction.reduction_axes
    reduction, depths = loops[spatial:inner], loops[inner:]
    if len(lanes) > 1:  # a tile has more weights than pixel pairs, so the pairs stay in registers from block to block
        tile = [tile[-1], *tile[:-1]]
    sch.reorder(*reduction, *tile, *lanes, *depths)
    initial = sch.decompose_reduction(accumulator, reduction[0])
    sch.tensorize(lanes[0], instruction.tensor_intrin)
    initial_loops = sch.get_loops(initial)[-len(tile) - len(lanes) :]
    initial_tile, vector = initial_loops[: len(tile)], initial_loops[len(tile) :]
    sch.vectorize(sch.fuse(*vector) if len(vector) > 1 else vector[0])
    for loop in (*tile, *initial_tile):
        sch.unroll(loop)
    return reduction


def _vectorize_epilogue(
    sch: Schedule,
    output: SBlockRV,
    pixels: list[LoopRV],
    channel: LoopRV,
    instruction: DotInstruction,
    steps: int,
    split_off: bool = False,
) -> None:
    """Vectorize over channels, several registers at a time where they narrow to 8 bits together, and unroll the pixels:
    at constant offsets, LLVM keeps the accumulators in registers, unless these are matrices. Long epilogues are woven
    into the loop over k if it has enough `steps`, see `weave`. `split_off`: whether a partial last panel gets separate
    code.

    No vector crosses the last channel, or the end of a run of channels that are stored side by side. The remainder is
    unrolled: LLVM would make it a masked loop, and LLVM 22 writes eight bytes instead of one when such a loop narrows
    int64 to int8 and one lane remains.
    """
    lanes = instruction.lanes
    in_registers = not isinstance(instruction, MatrixDot)
    channels, panel = run_of_channels(sch, output), extent(sch, channel)
    together = PACKED * lanes if saturates(sch.get(output)) else lanes
    whole = channels == int(sch.get(output).iter_vars[-1].dom.extent)
    width = math.gcd(panel, together) if split_off and whole else math.gcd(channels, panel, together)
    if width == lanes and lanes < panel < together and channels % panel == 0:
        pairs, last = sch.loop_partition(channel, [panel // (2 * lanes) * 2 * lanes, None])
        sch.vectorize(pairs)
        sch.vectorize(last)
        _unroll(sch, pixels if in_registers else [])
    elif width < lanes < panel and channels % panel == 0:
        *full, rest = _loops_of(sch, channel, lanes, together)
        for loop in full:
            sch.vectorize(loop)
        (sch.vectorize if width >= 4 else sch.unroll)(rest)
        _unroll(sch, pixels if in_registers else [])
    elif width >= 4:
        outer, vector = sch.split(channel, [None, width])
        sch.reorder(outer, *pixels, vector)
        sch.vectorize(vector)
        parts = math.prod(extent(sch, loop) for loop in (outer, *pixels))
        long = LONG_EPILOGUE <= _float_operations(sch.get(output)) <= LONGEST_WOVEN
        if width >= lanes and parts <= steps <= MOST_WOVEN_STEPS and long:
            sch.annotate(sch.fuse(outer, *pixels), WEAVE, 1)
        else:
            _unroll(sch, [outer, *pixels] if in_registers else [])
    elif panel > lanes:
        sch.unroll(sch.split(channel, [None, lanes])[1])
    else:
        sch.unroll(channel)


def _loops_of(sch: Schedule, channel: LoopRV, lanes: int, together: int) -> list[LoopRV]:
    """Split a loop over channels into loops of 4, 2 and 1 registers, up to `together`, and the rest."""
    sizes, left = [], extent(sch, channel)
    while left >= lanes:
        sizes.append(next(size for size in (together, 2 * lanes, lanes) if size <= min(left, together)))
        left -= sizes[-1]
    return sch.loop_partition(channel, [*sizes, None])


def _single(sch: Schedule, loops: list[LoopRV]) -> int:
    """The extent of the innermost loop if no other has more than one iteration, else 0."""
    *outer, last = (extent(sch, loop) for loop in loops)
    return last if all(size == 1 for size in outer) else 0


def _float_operations(block: SBlock) -> int:
    """The number of float operations in a block's expression."""
    found: list[Any] = []
    tvm_ffi.structural_walk(block.body, (Expr, found.append))
    operations = [node for node in found if not isinstance(node, (tirx.Var, tirx.FloatImm, TensorLoad))]
    return sum(str(node.ty.dtype).startswith("float") for node in operations if isinstance(node.ty, PrimType))


def _unroll(sch: Schedule, loops: list[LoopRV]) -> None:
    for loop in loops:
        sch.unroll(loop)
