"""Dot products of groups of few channels: each lane of a register is an output channel, and reads its own group.

    C[lane] += Σ_s Σ_k A[lane // outputs · span + s · depth + k] · B[s, lane, k],   s < chain, k < depth

A is the neighbouring activations of all groups in a register, `span` of each group. One load and, for each step of the
chain, one shuffle of words bring them to the lanes, so that no weight is a zero between groups.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from tvm.script import tirx as T

from ..workload import Conv2dWorkload
from .dot import DotInstruction


@dataclass(frozen=True)
class GatheredDot(DotInstruction):
    """An instruction whose lanes read the activations of several groups.

    outputs: output channels of a group, which divide the lanes; `span` is its input channels
    window:  columns of the window if neighbouring pixels read neighbouring columns, else 0
    """

    outputs: int = 1
    window: int = 0

    @property
    def activations(self) -> int:
        return self.lanes // self.outputs * self.span

    def source(self, lane: Any, k: Any) -> Any:
        return lane // self.outputs * self.span + k

    def operands(self, pixels: int, blocks: int) -> int:
        """Registers besides accumulators: weights, the shuffles' orders, products, and activations until the last tap
        has read them."""
        kept = min(pixels, self.window or pixels)
        return 1 + self.chain * (1 + blocks * kept) + (0 if self.accumulates else 1)

    def updates(self, A: Any, B: Any, C: Any) -> list[Any]:
        size = self.activations * np.dtype(self.data_dtype).itemsize // 4
        operand, accumulator = f"{self.weight_dtype}x{self.lanes * self.depth}", f"int32x{self.lanes}"

        def update(step: int) -> Any:
            words = T.reinterpret(A.vload([0], f"{self.data_dtype}x{self.activations}"), dtype=f"int32x{size}")
            order = [lane // self.outputs * self.chain + step for lane in range(self.lanes)]
            copies = [words] * -(-self.lanes // size)  # TVM's result of a shuffle is no longer than its operands
            operands = [T.reinterpret(T.Shuffle(copies, order), dtype=operand), self.weights(B, step)]
            before = C.vload([0], dtype=accumulator)
            if self.accumulates:
                operands.insert(0, before)
            dot = T.call_llvm_pure_intrin(T.llvm_lookup_intrinsic_id(self.llvm), *operands, dtype=accumulator)
            return dot if self.accumulates else before + dot

        return [update(step) for step in range(self.chain)]


@lru_cache(maxsize=4096)
def suited(workload: Conv2dWorkload, instruction: DotInstruction) -> DotInstruction:
    """The instruction as it computes a workload's groups: unchanged where there is one group, where groups are no whole
    words or no part of a register, and where the window has one pixel, so that nothing is read twice."""
    if type(instruction) is not DotInstruction or workload.groups == 1 or workload.kernel == (1, 1):
        return instruction
    inputs, outputs = workload.in_channels // workload.groups, workload.out_channels // workload.groups
    if inputs % instruction.depth or instruction.lanes % outputs or outputs == instruction.lanes:
        return instruction
    values = {field.name: getattr(instruction, field.name) for field in fields(DotInstruction)}
    values |= {"name": f"{instruction.name}_{inputs}_{outputs}", "chain": inputs // instruction.depth}
    window = workload.kernel[1] if workload.strides[1] == 1 else 0
    found = GatheredDot(**values, outputs=outputs, window=window)
    return found if found.activations <= instruction.lanes * instruction.depth else instruction
