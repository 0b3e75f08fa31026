"""Integer kernels: importing this package registers every implementation with the strategy registry."""

from __future__ import annotations

from importlib import import_module

from .strategy import Implementation, candidates, register, select
from .workload import BatchMatmulWorkload, BlockwiseWorkload, Conv2dWorkload, DenseWorkload, Workload

for _name in (
    "generic.arithmetic",
    "generic.check",
    "generic.qlinear",
    "generic.pool_sum",
    "generic.value_range",
    "generic.winograd",
    "generic.qlinear_pool",
    "generic.pooling",
    "generic.reduce",
    "generic.softmax",
    "generic.layer_norm",
    "generic.float_rows",
    "generic.non_max_suppression",
    "generic.normalize",
    "generic.partial_sort",
    "generic.resize",
    "generic.response_norm",
    "generic.simulated",
    "generic.true_positions",
    "generic.conv2d",
    "generic.dense",
    "generic.batch_matmul",
    "generic.blockwise",
    "generic.blockwise_lanes",
    "cuda.lowering",
    "cuda.fallback",
    "cuda.dp4a",
    "cuda.ffma",
    "cuda.gemv",
    "cuda.blockwise",
    "cuda.blockwise_mma",
    "cuda.blockwise_tiles",
    "cuda.depthwise",
    "cuda.tensor_core",
    "cpu.lowering",
    "cpu.depthwise_float",
    "x86.steps",
    "x86.registration",
    "x86.blockwise",
    "arm_cpu.blockwise",
    "x86.depthwise_conv2d",
    "x86.depthwise_conv2d_taps",
    "arm_cpu.steps",
    "arm_cpu.registration",
    "arm_cpu.depthwise_conv2d",
    "arm_cpu.depthwise_taps",
    "arm_cpu.smmla_conv2d",
    "arm_cpu.smmla_dense",
    "cortex_m.steps",
    "cortex_m.mla",
    "cortex_m.smlad",
    "cortex_m.vmladav",
    "cortex_m.depthwise",
    "cortex_m.depthwise_mla",
):
    import_module(f"{__name__}.{_name}")

__all__ = [
    "BatchMatmulWorkload",
    "BlockwiseWorkload",
    "Conv2dWorkload",
    "DenseWorkload",
    "Implementation",
    "Workload",
    "candidates",
    "register",
    "select",
]
