"""Products of any integer dtypes on a GPU: the plain computes of `generic`, a thread for each element of the result.

The fallback (priority 0) below the kernels with DP4A and tensor cores, mainly for int16 activations
and for block-wise quantized weights.
"""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule
from tvm.target import Target

from ...numerics.annotations import OPERAND, has
from ...targets.families import CUDA
from ..generic import batch_matmul, blockwise, conv2d, dense
from ..schedule_util import inline_epilogue
from ..strategy import Implementation, register
from ..workload import BatchMatmulWorkload, BlockwiseWorkload, Conv2dWorkload, DenseWorkload
from .generic import bind_blocks


def schedule_of(name: str) -> Any:
    """The schedule of a product whose sums are the stage `name`."""

    def schedule(sch: Schedule, workload: Any, target: Target) -> None:
        """Compute the sum of each element in one thread, with the epilogue and the padding of the data."""
        accumulator = sch.get_sblock(name)
        inline_epilogue(sch, accumulator)
        for producer in sch.get_producers(accumulator):
            if has(sch, producer, OPERAND):
                sch.compute_inline(producer)
        bind_blocks(sch)

    return schedule


for _type, _module, _name, _accumulator in (
    (Conv2dWorkload, conv2d, "conv2d_nhwc.cuda", "conv2d"),
    (DenseWorkload, dense, "dense.cuda", "dense"),
    (BatchMatmulWorkload, batch_matmul, "batch_matmul.cuda", "batch_matmul"),
    (BlockwiseWorkload, blockwise, "blockwise.cuda", "blockwise"),
):
    register(
        _type,
        Implementation(
            name=_name,
            priority=0,
            backends=(CUDA,),
            compute=_module.compute,
            schedule=schedule_of(_accumulator),
            pack_weight=getattr(_module, "pack_weight", None),
        ),
    )
