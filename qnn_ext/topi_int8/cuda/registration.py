"""Registers a method for convolution, dense and batch_matmul, which it treats as the same product: see `gemm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target

from ...targets.families import CUDA
from ..strategy import Implementation, register
from ..workload import AnyWorkload, BatchMatmulWorkload, Conv2dWorkload, DenseWorkload
from . import gemm

KINDS = {"conv2d": Conv2dWorkload, "dense": DenseWorkload, "batch_matmul": BatchMatmulWorkload}

Tiles = Callable[[Any], dict[Any, float]]


def cheapest(tiles: Tiles, workload: AnyWorkload) -> Any:
    """The tile of the lowest predicted cost."""
    return next(iter(tiles(workload)))


def register_products(
    method: str,
    priority: int,
    refuses: Callable[[Any, Target], str | None],
    tiles: Tiles,
    schedule: Callable[[Schedule, Any, Target, Any], None],
    columns_of: Callable[[Any, Any], gemm.Columns | None] = lambda workload, tile: None,
    floats: bool = False,
) -> dict[type, Implementation]:
    """Register a method, such as "dp4a", as "conv2d_dp4a.cuda" and so on; returns the implementation for each workload.

    refuses:    as of an `Implementation`
    tiles:      workload -> its tiles with their predicted cost, cheapest first; a tile's `block` is its `BlockSize`
    schedule:   (schedule, workload, target, tile) -> None
    columns_of: (workload, tile) -> see `gemm.Columns`
    floats:     whether it computes sums of floats, not of integers
    """

    def pack_weight(workload: Any, weight: np.ndarray, tile: Any = None) -> np.ndarray:
        tile = tile or cheapest(tiles, workload)
        return gemm.pack_weight(workload, weight, tile.block, columns_of(workload, tile))

    def compute(workload: Any, x: te.Tensor, w: te.Tensor, pad_value: int, tile: Any = None) -> te.Tensor:
        tile = tile or cheapest(tiles, workload)
        return gemm.compute(workload, x, w, pad_value, tile.block, columns_of(workload, tile))

    def schedule_tile(sch: Schedule, workload: Any, target: Target, tile: Any = None) -> None:
        schedule(sch, workload, target, tile or cheapest(tiles, workload))

    return {
        kind: register(
            kind,
            Implementation(
                name=f"{name}_{method}.cuda",
                priority=priority,
                backends=(CUDA,),
                depthwise=False,
                floats=floats,
                refuses=refuses,
                compute=compute,
                schedule=schedule_tile,
                pack_weight=None if kind is BatchMatmulWorkload else pack_weight,
                accumulator=gemm.ACCUMULATOR,
                tiles=tiles,
            ),
        )
        for name, kind in KINDS.items()
    }
