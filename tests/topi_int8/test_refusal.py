"""Every implementation says why it refuses a workload, and the generic ones are chosen with a reason."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from qnn_ext.numerics.packed import WIDTHS
from qnn_ext.targets.features import backend_of
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BatchMatmulWorkload, BlockwiseWorkload, Conv2dWorkload, DenseWorkload, select, strategy
from qnn_ext.topi_int8.strategy import why_generic
from tests.cases.workloads import WORKLOADS

WITHOUT_SSE2 = "i586"
TARGETS = (
    "avx512_vnni",
    "avx_vnni",
    "x86-64",
    WITHOUT_SSE2,
    "graviton3",
    "rpi4",
    "armv7",
    "cortex-m3",
    "cortex-m4",
    "sm_61",
    "sm_80",
)


@cache
def target_of(name):
    if name == WITHOUT_SSE2:
        return make_target({"kind": "llvm", "mtriple": "i686-unknown-linux-gnu", "mcpu": name}, 1)
    return make_target(name, 1)


def awkward(workload):
    """The workload with dtypes that no kernel multiplies, and those that some do."""
    yield workload
    yield replace(workload, data_dtype="uint8")
    yield replace(workload, data_dtype="int16")
    yield replace(workload, weight_dtype="int16")
    yield replace(workload, out_dtype="int64")


BLOCKWISE = [
    BlockwiseWorkload(1, 72, 40, group, data, weight)
    for group in (24, 18)
    for data in ("int8", "float32")
    for weight in WIDTHS
]
EVERY = [*(item for workload in WORKLOADS.values() for item in awkward(workload)), *BLOCKWISE]
IMPLEMENTATIONS = [(kind, item) for kind, items in strategy._registry.items() for item in items]
NAMES = [f"{item.name}-{index}" for index, (_, item) in enumerate(IMPLEMENTATIONS)]


@pytest.mark.parametrize(("kind", "item"), IMPLEMENTATIONS, ids=NAMES)
def test_every_refusal_has_a_reason(kind, item):
    targets = [target for target in map(target_of, TARGETS) if backend_of(target) in item.backends]
    asked = [workload for workload in EVERY if type(workload) is kind]
    reasons = {item.refuses(workload, target) for workload in asked for target in targets} - {None}
    assert bool(reasons) is not item.is_generic
    for reason in reasons:
        assert isinstance(reason, str) and 0 < len(reason) < 60 and reason[-1] not in ".;:"


DENSE, CONVOLUTION, DEPTHWISE = (WORKLOADS[name] for name in ("dense", "conv2d", "depthwise"))


@pytest.mark.parametrize(
    ("workload", "name", "reason"),
    [
        (
            replace(DENSE, weight_dtype="int32"),
            "avx512_vnni",
            "no faster kernel takes a dense layer of int8 × int32 → int32, 5 rows of 19 → 27: int32 weights",
        ),
        (
            replace(DEPTHWISE, out_dtype="int64"),
            "graviton3",
            "no faster kernel takes a 3×3 convolution of int8 × int8 → int64, 16 → 16 channels in 16 groups: "
            "int64 sums",
        ),
        (
            replace(DEPTHWISE, data_dtype="int16"),
            "sm_80",
            "no faster kernel takes a 3×3 convolution of int16 × int8 → int32, 16 → 16 channels in 16 groups: int16 "
            "activations",
        ),
        (
            replace(CONVOLUTION, data_dtype="uint8"),
            WITHOUT_SSE2,
            "no faster kernel takes a 3×3 convolution of uint8 × int8 → int32, 8 → 12 channels in 2 groups: needs "
            "avx512vnni with avx512bw (conv2d_nhwc_vpdpbusd_512.x86); needs avxvnni or avx512vnni with avx512vl "
            "(conv2d_nhwc_vpdpbusd_256.x86); needs avx512bw (conv2d_nhwc_vpmaddwd_512.x86)",
        ),
    ],
)
def test_a_generic_kernel_has_a_reason(workload, name, reason):
    target = target_of(name)
    assert select(workload, target).is_generic
    assert why_generic(workload, target) == reason


@pytest.mark.parametrize(
    ("workload", "name", "implementation", "reason"),
    [
        (DenseWorkload(1, 64, 16, "int8", "int8"), "graviton3", "dense_smmla.arm_cpu", "a single row"),
        (DenseWorkload(9, 64, 4, "int8", "int8"), "graviton3", "dense_smmla.arm_cpu", "4 columns in a block of 8"),
        (DenseWorkload(9, 64, 16, "int8", "int8"), "rpi4", "dense_smmla.arm_cpu", "needs i8mm"),
        (
            DenseWorkload(9, 64, 16, "int8", "int8"),
            "rpi4",
            "dense_pairs_8.aarch64.arm_cpu",
            "sums of two products may exceed 16 bits",
        ),
        (
            DenseWorkload(9, 5, 16, "int8", "int8"),
            "rpi5",
            "dense_sdot_16.aarch64.arm_cpu",
            "sums of 5 products would be padded to 16",
        ),
        (BatchMatmulWorkload(2, 5, 64, 16, "int8", "int8"), "sm_80", "batch_matmul_gemv.cuda", "5 rows, more than 4"),
        (DenseWorkload(64, 64, 64, "int8", "int8"), "sm_61", "dense_mma.cuda", "needs sm_75"),
        (
            replace(DEPTHWISE, data_dtype="uint8", strides=(2, 2), dilation=(2, 2)),
            "avx512_vnni",
            "depthwise_conv2d_nhwc_vpdpbusd_512.x86",
            "rows 2 apart at a stride of 2",
        ),
    ],
)
def test_reasons(workload, name, implementation, reason):
    (item,) = (item for item in strategy._registry[type(workload)] if item.name == implementation)
    assert item.refuses(workload, target_of(name)) == reason


def test_a_kernel_for_other_convolutions_gives_no_reason():
    """Kernels for depthwise convolutions give no reasons about others, nor do kernels for other processors."""
    workload = Conv2dWorkload(1, 8, 8, 8, 8, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, "int16", "int32")
    reason = why_generic(workload, target_of("x86-64"))
    assert reason.endswith(": int32 weights")
