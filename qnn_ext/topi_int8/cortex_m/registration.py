"""Registers an instruction's tiles as implementations of convolutions and dense layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target

from ...targets.families import CORTEX_M
from ..refusal import lacking, other_dtypes
from ..strategy import Implementation, register
from ..workload import Conv2dWorkload, DenseWorkload
from .tiles import Code, Tiles, Workload, compute_tiles, schedule_tiles


def cheapest(costs: Mapping[tuple[int, int], float], pixels: int, channels: int) -> tuple[int, int]:
    """The tile of (pixels, channels) that takes the fewest instructions for all; costs: those of one tile."""

    def cost(tile: tuple[int, int]) -> float:
        return -(-pixels // tile[0]) * -(-channels // tile[1]) * costs[tile]

    return min((tile for tile in costs if tile[0] <= pixels), key=cost)


def register_tiles(
    instruction: str,
    priority: int,
    plan: Callable[[Workload], Tiles],
    pack_weight: Callable[[Workload, np.ndarray], np.ndarray],
    code: Code,
    wide: bool = False,
) -> None:
    """Make an instruction's code an implementation of convolutions without groups and of dense layers, of int8.

    plan:        the tiles of a workload
    pack_weight: the weights in the order in which the code reads them
    wide:        whether it takes activations of int16 with weights of int8, too, with sums of int64
    """
    product = CORTEX_M.product(instruction)

    def initial(workload: Workload, bias: np.ndarray) -> np.ndarray:
        """The bias as the sums' initial values."""
        return bias.reshape(-1).astype(np.int32)

    def compute(workload: Workload, x: te.Tensor, w: te.Tensor, pad_value: int) -> te.Tensor:
        """The accumulator in the workload's shape."""
        return compute_tiles(plan(workload), workload, x, w, pad_value)

    def schedule(sch: Schedule, workload: Workload, target: Target) -> None:
        """The nest of tiles with the code of this instruction."""
        schedule_tiles(sch, plan(workload), target, code)

    def refuses(workload: Workload, target: Target) -> str | None:
        """Why it does not take a workload."""
        if isinstance(workload, Conv2dWorkload) and workload.groups > 1:
            return f"{workload.groups} groups"
        sums = "int64" if wide and workload.data_dtype == "int16" else "int32"
        data = ("int8", "int16") if wide else ("int8",)
        return other_dtypes(workload, data, ("int8",), sums) or lacking(target, product)

    for kind, name in ((Conv2dWorkload, "conv2d_nhwc"), (DenseWorkload, "dense")):
        register(
            kind,
            Implementation(
                name=f"{name}_{instruction}.cortex_m",
                priority=priority,
                backends=(CORTEX_M,),
                compute=compute,
                schedule=schedule,
                depthwise=False,
                floats=False,
                refuses=refuses,
                pack_weight=pack_weight,
                initial=initial,
                accumulator="sums",
            ),
        )
