"""Depthwise conv2d on x86 where depthwise_conv2d_taps does not apply: CPUs without VNNI, wide or signed activations.

LLVM emits vpmaddwd, or vpdpwssd if the CPU has it.
"""

from __future__ import annotations

from functools import partial

from tvm.target import Target

from ...targets.families import I686, X86
from ...targets.features import backend_of, has_feature
from ..cpu.depthwise_conv2d import Registers, compute, pack_weight, schedule
from ..strategy import Implementation, register
from ..workload import Conv2dWorkload


def _accepts(workload: Conv2dWorkload, target: Target, wide: bool) -> bool:
    fits = has_feature(target, "avx512bw") == wide
    return workload.depthwise and workload.out_dtype == "int32" and backend_of(target) in (X86, I686) and fits


for _wide in (False, True):
    _registers = Registers(lanes=16 if _wide else 8, columns=(4, 3, 5, 6, 7))
    register(
        Conv2dWorkload,
        Implementation(
            name="depthwise_conv2d_nhwc.x86",
            priority=10,
            accepts=partial(_accepts, wide=_wide),
            compute=partial(compute, registers=_registers),
            schedule=partial(schedule, registers=_registers),
            pack_weight=partial(pack_weight, registers=_registers),
        ),
    )
