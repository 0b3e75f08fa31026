"""batch_matmul for any integer dtypes and CPU: plain loops, both operands read along K. Priority 0."""

from __future__ import annotations

from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target

from ...targets.families import CPU_BACKENDS
from ..schedule_util import inline_epilogue, schedule_contraction, schedule_root_blocks
from ..strategy import Implementation, register
from ..workload import BatchMatmulWorkload


def compute(workload: BatchMatmulWorkload, x: te.Tensor, y: te.Tensor, pad_value: int) -> te.Tensor:
    """The accumulator, (B, M, N) in the workload's out_dtype. `pad_value` is not used."""
    k = te.reduce_axis((0, workload.k), "k")
    dtype = workload.out_dtype
    return te.compute(
        (workload.batch, workload.m, workload.n),
        lambda b, m, n: te.sum(x[b, m, k].astype(dtype) * y[b, n, k].astype(dtype), axis=k),
        name="batch_matmul",
    )


def schedule(sch: Schedule, workload: BatchMatmulWorkload, target: Target) -> None:
    """Fuse the epilogue after each strip of columns, run rows in parallel."""
    accumulator = sch.get_sblock("batch_matmul")
    output = inline_epilogue(sch, accumulator)
    schedule_root_blocks(sch, [accumulator, output], target)
    schedule_contraction(sch, accumulator, output, workload.macs, target, vectorize=False)


register(
    BatchMatmulWorkload,
    Implementation(
        name="batch_matmul.generic",
        priority=0,
        backends=CPU_BACKENDS,
        compute=compute,
        schedule=schedule,
    ),
)
