"""Depthwise conv2d on ARM without dot products: int16 weights, smlal and smlal2 (vmlal) into int32.

If no weight is -128, smull and smlal add the products of two taps in 16 bits, and saddw widens their sum (vmull, vmlal,
vaddw): 19 instructions for the nine taps of eight channels instead of 18 plus the widening of activations.
"""

from __future__ import annotations

from functools import partial

from tvm.target import Target

from ...targets.families import AARCH64, ARM32
from ..cpu.depthwise_conv2d import Registers, compute, initial, pack_weight, schedule
from ..refusal import other_dtypes
from ..strategy import Implementation, register
from ..workload import Conv2dWorkload

REGISTERS = {
    AARCH64: Registers(lanes=8, columns=(4, 3, 5, 6, 7), pairs="llvm.aarch64.neon.smull", weight_dtype="int16"),
    ARM32: Registers(lanes=8, columns=(2, 3), pairs="llvm.arm.neon.vmulls", weight_dtype="int16"),
}


def _refuses(workload: Conv2dWorkload, target: Target) -> str | None:
    return other_dtypes(workload)


for _backend, _registers in REGISTERS.items():
    register(
        Conv2dWorkload,
        Implementation(
            name="depthwise_conv2d_nhwc.arm_cpu",
            priority=10,
            backends=(_backend,),
            depthwise=True,
            refuses=_refuses,
            compute=partial(compute, registers=_registers),
            schedule=partial(schedule, registers=_registers),
            pack_weight=partial(pack_weight, registers=_registers),
            initial=partial(initial, registers=_registers),
            accumulator="depthwise",
        ),
    )
