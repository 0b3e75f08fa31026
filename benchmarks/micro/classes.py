"""Executed instructions by class of layer, beside what the innermost loops of a core need for a product."""

from __future__ import annotations

import re
import subprocess
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from qnn_ext.running.kernels import Kernel
from qnn_ext.topi_int8.cortex_m import mla, smlad, vmladav

CONVOLUTION, DEPTHWISE, DENSE, OTHER = "convolution", "depthwise", "dense", "other kernels"
OUTSIDE = "outside of kernels"


def _least(costs: dict[tuple[int, int], float], values: int) -> tuple[float, float]:
    """The fewest instructions for a product in tiles of several pixels, and of one. costs: as the kernels' modules have
    them, for `values` values of each pixel."""
    several, single = (
        min(cost / (values * pixels * lanes) for (pixels, lanes), cost in costs.items() if (pixels > 1) is kind)
        for kind in (True, False)
    )
    return several, single


def _limits(costs: dict[tuple[int, int], float], values: int, depthwise: float) -> dict[str, float]:
    several, single = _least(costs, values)
    return {CONVOLUTION: several, DENSE: single, DEPTHWISE: depthwise}


_MLA = _limits(mla.MLA_COSTS, 1, 75 / 45)
_MULS = _limits(mla.MULS_COSTS, 1, 187 / 45)
_SMLAD = _limits(dict(smlad.COSTS), 2, 17 / 8)
_VMLADAV = _limits(dict(vmladav.COSTS), 16, 9 / 16)
LIMITS = {"m0plus": _MULS, "m3": _MLA, "m4": _SMLAD, "m7": _SMLAD, "m33": _SMLAD, "m55": _VMLADAV}
"""Board -> class -> instructions for a product where tiles are whole: loads of both operands included, and no more."""


def class_of(kernel: Kernel) -> str:
    """The class of a kernel's layer."""
    if not kernel.macs:
        return OTHER
    if kernel.workload["type"] == "DenseWorkload":
        return DENSE
    return DEPTHWISE if 1 < kernel.workload["groups"] == kernel.workload["in_channels"] else CONVOLUTION


def by_class(kernels: Sequence[Kernel], program: Path, counts: Path) -> dict[str, int]:
    """The instructions that the program executed, by class of layer. counts: what the plugin wrote."""
    classes = {kernel.symbol: class_of(kernel) for kernel in kernels}
    listed = subprocess.run(["arm-none-eabi-nm", "-n", program], capture_output=True, text=True, check=True).stdout
    fields = [line.split() for line in listed.splitlines()]
    functions = [(int(address, 16) & ~1, name) for address, kind, name in fields if kind in "tTwW" and name[0] != "$"]
    starts = [address for address, _ in functions]
    found: Counter[str] = Counter()
    for line in counts.read_text().splitlines():
        address, runs, instructions, _ = line.split()
        name = functions[bisect_right(starts, int(address, 16)) - 1][1]
        kernel = re.sub(r"(_part\d+)?(_compute_)?(\.\d+)?$", "", name)
        found[classes.get(kernel, OUTSIDE)] += int(runs) * int(instructions)
    return dict(found)
