"""dense for any integer dtypes and CPU: plain loops over weights transposed to (K, N). Priority 0."""

from __future__ import annotations

import numpy as np
from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target

from ...targets.families import CPU_BACKENDS
from ..schedule_util import inline_epilogue, schedule_contraction, schedule_root_blocks
from ..strategy import Implementation, register
from ..workload import DenseWorkload


def pack_weight(workload: DenseWorkload, weight: np.ndarray) -> np.ndarray:
    """(N, K) weights to (K, N)."""
    return np.ascontiguousarray(weight.T)


def compute(workload: DenseWorkload, x: te.Tensor, w: te.Tensor, pad_value: int) -> te.Tensor:
    """The accumulator, (M, N) in the workload's out_dtype. `pad_value` is not used."""
    k = te.reduce_axis((0, workload.k), "k")
    dtype = workload.out_dtype
    return te.compute(
        (workload.m, workload.n),
        lambda m, n: te.sum(x[m, k].astype(dtype) * w[k, n].astype(dtype), axis=k),
        name="dense",
    )


def schedule(sch: Schedule, workload: DenseWorkload, target: Target) -> None:
    """Fuse the epilogue after each strip of columns, run rows in parallel."""
    accumulator = sch.get_sblock("dense")
    output = inline_epilogue(sch, accumulator)
    schedule_root_blocks(sch, [accumulator, output], target)
    schedule_contraction(sch, accumulator, output, workload.macs, target, vectorize=True)


register(
    DenseWorkload,
    Implementation(
        name="dense.generic",
        priority=0,
        backends=CPU_BACKENDS,
        compute=compute,
        schedule=schedule,
        pack_weight=pack_weight,
    ),
)
