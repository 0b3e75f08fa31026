"""conv2d with smmla: pairs of pixels × quads of channels, the epilogue fused into the register tile.

Weights are packed to (panels of a tile's blocks, kh, kw, I/8, block, quad, lane, 8), zero where dimensions were padded.
The addressing mode decides how the activations are staged.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target

from ...targets.families import backends_with
from ..cpu.conv2d import Plan, fused_output, merged_groups, packed, resolve_pixels, staged_by_strip, strip_of
from ..cpu.microkernel import Tile, other_strips, round_up
from ..initial import in_lanes
from ..schedule_util import schedule_root_blocks
from ..strategy import Implementation, register
from ..workload import Conv2dWorkload
from .smmla import CHANNELS, DEPTH, PIXELS, SMMLA, wasted
from .smmla_addressing import Staged, mode_of
from .smmla_tile import Steps, accumulators, in_panels, initial_of, place_of, schedule_tile, strip_for, tiles_of


@lru_cache(maxsize=4096)
def plan(workload: Conv2dWorkload, tile: Tile | None = None) -> Plan[Staged]:
    """Mode and padded sizes for a register tile, by default the cheapest."""
    tile = tile or next(iter(tiles(workload)))
    mode = mode_of(workload, _groups(workload))
    domain = mode.domain
    rows, columns = round_up(domain.rows, tile.rows), round_up(domain.columns, tile.columns)
    return Plan(mode, tile, rows, columns, mode.groups * round_up(domain.blocks, tile.blocks), staged=True)


@lru_cache(maxsize=4096)
def tiles(workload: Conv2dWorkload) -> dict[Tile, float]:
    """The legal register tiles with their predicted cost, cheapest first."""
    return _tiles(workload, _groups(workload))


@lru_cache(maxsize=4096)
def _tiles(workload: Conv2dWorkload, groups: int) -> dict[Tile, float]:
    """The same for a given number of merged groups."""
    return tiles_of(mode_of(workload, groups).domain)


@lru_cache(maxsize=4096)
def _groups(workload: Conv2dWorkload) -> int:
    """The number of groups after merging neighbours as suits the instruction."""

    def cost(groups: int) -> float:
        return next(iter(_tiles(workload, groups).values())) * groups * mode_of(workload, groups).domain.blocks

    return merged_groups(workload, cost)


def pack_weight(workload: Conv2dWorkload, weight: np.ndarray, tile: Tile | None = None) -> np.ndarray:
    """OHWI weights to (panels, kh, kw, I/8, block, quad, lane, 8); zero in padding and between merged groups."""
    layout = plan(workload, tile)
    return in_panels(packed(layout, weight), layout.tile.blocks)


def initial(workload: Conv2dWorkload, bias: np.ndarray, tile: Tile | None = None) -> np.ndarray:
    """The bias as the accumulators' initial values."""
    layout = plan(workload, tile)
    return initial_of(in_lanes(bias, layout.blocks, CHANNELS, layout.mode.groups))


def compute(
    workload: Conv2dWorkload, x: te.Tensor, w: te.Tensor, pad_value: int, tile: Tile | None = None
) -> te.Tensor:
    """The convolution's accumulator, (N, OH, OW, OC) int32."""
    layout = plan(workload, tile)
    mode, groups, tile_blocks = layout.mode, layout.mode.groups, layout.tile.blocks
    steps = Steps(mode.taps[2])
    loops = [te.reduce_axis((0, mode.taps[axis]), ("kh", "kw")[axis]) for axis in range(mode.tap_axes)]
    kh, kw = (*loops, 0, 0)[:2]
    data = mode.stage(x, layout.rows, layout.columns, pad_value)

    def products(*index):
        *pixel, block, quad, lane = index
        step = (block // layout.group_blocks * (mode.taps[2] // DEPTH) if groups > 1 else 0) + steps.step
        value = data[mode.tap(tuple(pixel), kh, kw, step, steps.k)].astype("int32")
        weight = w[block // tile_blocks, kh, kw, steps.step, block % tile_blocks, quad, lane, steps.k]
        return te.sum(value * weight.astype("int32"), axis=[*loops, *steps.axes])

    outer = (workload.batch, layout.rows)[: mode.pixel_axes]
    acc = accumulators(outer, layout.columns, layout.blocks, products, "conv2d")

    def logical(n, y, x, c):
        *outer, pixel = mode.pixel(n, y, x)
        first = c // mode.out_group * layout.group_blocks if groups > 1 else 0
        c = c % mode.out_group if groups > 1 else c
        return acc[(*outer, *place_of(pixel, mode.domain.columns, first + c // CHANNELS, c, mode.out_group))]

    shape = (workload.batch, workload.out_height, workload.out_width, workload.out_channels)
    return te.compute(shape, logical, name="logical")


def schedule(sch: Schedule, workload: Conv2dWorkload, target: Target, tile: Tile | None = None) -> None:
    """Fuse the epilogue, stage the activations, tile pixels × channel blocks into registers, tensorize."""
    layout = plan(workload, tile)
    mode = layout.mode
    accumulator = sch.get_sblock("conv2d")
    copies = {sch.get_sblock(name): copy for name, copy in mode.copies(layout.columns).items()}
    stages = list(copies)
    output = fused_output(sch, mode)
    if mode.pixel_axes == 1:
        resolve_pixels(sch, accumulator, output, _in_pairs)
    schedule_root_blocks(sch, [accumulator, output, *stages], target, vector=64)
    strip = layout.tile.strip or _strip(layout, target)
    by_strip = staged_by_strip(layout, strip, target)
    schedule_tile(
        sch,
        accumulator,
        output,
        layout.tile,
        pixel_axes=mode.pixel_axes,
        grouped=mode.groups > 1,
        macs=workload.macs,
        strip=strip,
        stages=stages if by_strip else [],
    )
    for stage, copy in copies.items():
        copy(sch, stage, not by_strip)


def _in_pairs(pixel: Any, image: Any, _pair: Any, first: Any, quad: Any, _pixel: Any, lane: Any) -> tuple[Any, ...]:
    """Where the accumulators of a pixel are."""
    return image, pixel // PIXELS, first, quad, pixel % PIXELS, lane


def _strip(layout: Plan, target: Target) -> int:
    """Number of tiles along the first pixel axis that go through the weights together."""
    strip = strip_of(layout, target)
    return strip_for(layout.mode.out_group, layout.tile_rows, strip, layout.mode.images)


def _refuses(workload: Conv2dWorkload, target: Target) -> str | None:
    refused = SMMLA.refuses(workload, target)
    if refused:
        return refused
    pixels, channels = workload.out_height * workload.out_width, workload.out_channels // _groups(workload)
    return wasted(pixels, channels, "pixel", "channel")


IMPLEMENTATION = Implementation(
    name="conv2d_nhwc_smmla.arm_cpu",
    priority=30,
    backends=backends_with(SMMLA.product),
    depthwise=False,
    refuses=_refuses,
    compute=compute,
    schedule=schedule,
    pack_weight=pack_weight,
    initial=initial,
    accumulator="conv2d",
    tiles=tiles,
    variants=lambda workload, tile: other_strips(tile, plan(workload, tile).tile_rows),
)

register(Conv2dWorkload, IMPLEMENTATION)
