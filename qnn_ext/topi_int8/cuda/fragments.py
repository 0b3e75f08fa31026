"""Fragments of a warp become registers: buffers (…, lane, register) of scope "warp" become (…, 1, register) of "local".

By design of the layouts in `intrin.py` and the loops in `tensor_core.py`, a thread reads and writes only its own lane,
so the lane's index can be dropped. TVM's own pass (LowerWarpMemory) would have to prove that on indices that are
already flat and strength-reduced, and shuffles between lanes where it cannot.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir import Range, TensorLoad, TensorRegion
from tvm.s_tir import SBlock

SCOPE = "warp"


def in_registers(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """`function`, which is scheduled and still has blocks, with registers for fragments."""
    registers: dict[Any, Any] = {}

    def declare(block: SBlock) -> None:
        for buffer in [*block.alloc_buffers, *(match.buffer for match in block.match_buffers)]:
            if buffer.scope() == SCOPE and buffer not in registers:
                registers[buffer] = _of_one_lane(buffer)

    tvm_ffi.structural_walk(function.body, (SBlock, declare))
    if not registers:
        return function
    mine = list(registers.values())

    def is_fragment(buffer: Any) -> bool:
        return any(buffer.same_as(other) for other in mine)

    def load(node: TensorLoad) -> Any:
        return tirx.BufferLoad(node.source, _first_lane(node.indices, 0)) if is_fragment(node.source) else node

    def store(node: tirx.BufferStore) -> Any:
        if not is_fragment(node.buffer):
            return node
        return tirx.BufferStore(node.buffer, node.value, _first_lane(node.indices, 0))

    def region(node: TensorRegion) -> Any:
        if not is_fragment(node.source):
            return node
        return TensorRegion(node.source, _first_lane(node.region, Range.from_min_extent(0, 1)), node.ty)

    body = tvm_ffi.structural_map(function.body, (tirx.Var, lambda var: registers.get(var, var)))
    body = tvm_ffi.structural_map(body, [(TensorLoad, load), (tirx.BufferStore, store), (TensorRegion, region)])
    return function.with_body(body)


def _of_one_lane(buffer: Any) -> Any:
    shape = _first_lane(buffer.shape, 1)
    offset, factor = buffer.elem_offset, buffer.offset_factor
    return tirx.decl_buffer(
        shape,
        buffer.dtype,
        buffer.name,
        elem_offset=offset,
        scope="local",
        data_alignment=buffer.data_alignment,
        offset_factor=factor,
    )


def _first_lane(axes: Any, lane: Any) -> list[Any]:
    *outer, _, register = axes
    return [*outer, lane, register]
