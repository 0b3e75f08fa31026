"""Depthwise conv2d on x86 where depthwise_conv2d_taps does not apply: CPUs without VNNI, wide or signed activations.

LLVM emits vpmaddwd, or vpdpwssd if the CPU has it.
"""

from __future__ import annotations

from functools import partial

from tvm.target import Target

from ...targets.families import I686, X86
from ...targets.features import has_feature
from ..cpu.depthwise_conv2d import Registers, compute, pack_weight, schedule
from ..refusal import other_dtypes
from ..strategy import Implementation, register
from ..workload import Conv2dWorkload


def _refuses(workload: Conv2dWorkload, target: Target, wide: bool) -> str | None:
    refused = other_dtypes(workload)
    if refused or has_feature(target, "avx512bw") == wide:
        return refused
    return f"is for CPUs {'with' if wide else 'without'} avx512bw"


for _wide in (False, True):
    _registers = Registers(lanes=16 if _wide else 8, columns=(4, 3, 5, 6, 7))
    register(
        Conv2dWorkload,
        Implementation(
            name="depthwise_conv2d_nhwc.x86",
            priority=10,
            backends=(X86, I686),
            depthwise=True,
            refuses=partial(_refuses, wide=_wide),
            compute=partial(compute, registers=_registers),
            schedule=partial(schedule, registers=_registers),
            pack_weight=partial(pack_weight, registers=_registers),
        ),
    )
