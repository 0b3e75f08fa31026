"""The bias as the initial value of a kernel's accumulators, which saves adding it afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from .schedule_util import changed_block


def in_lanes(bias: np.ndarray, blocks: int, lanes: int, groups: int = 1) -> np.ndarray:
    """A per-channel bias as the lanes of the accumulators' last two axes: (blocks, lanes), zero in padding.

    Each group of channels is padded to its share of the blocks.
    """
    padded = np.zeros((groups, blocks * lanes // groups), bias.dtype)
    padded[:, : bias.size // groups] = bias.reshape(groups, -1)
    return padded.reshape(blocks, lanes)


def with_initial(function: tirx.PrimFunc, accumulator: str, bias: Any) -> tirx.PrimFunc:
    """`function` with its reduction block `accumulator` starting at `bias`, a parameter of the shape of its last axes.

    TE has no initial values for reductions. int32 sums wrap around, so their order does not matter; of float32 ones,
    `qnn.bias_first` asks for this order.
    """

    def initialized(block: SBlock) -> SBlock:
        if block.name_hint != accumulator or block.init is None:
            return block
        store = block.init
        lanes = tuple(store.indices[-len(bias.shape) :])
        init = tirx.BufferStore(store.buffer, bias[lanes], store.indices)
        return changed_block(block, init=init)

    return function.with_body(tvm_ffi.structural_map(function.body, (SBlock, initialized)))
