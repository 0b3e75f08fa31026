"""What becomes of kernels in a GPU's machine code: the instruction they are for, wide loads, and no local memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import BatchMatmulWorkload, Conv2dWorkload, DenseWorkload, candidates
from qnn_ext.topi_int8.workload import Workload
from tests.cases.cuda import conv

from .instructions import count, instructions, kernel_source, ptx, spills

ARCHITECTURES = ["sm_75", "sm_80", "sm_90"]
WORKLOADS: dict[str, Workload] = {
    "conv2d_dp4a": conv(8, 56, 56, 64, 128),
    "dense_dp4a": DenseWorkload(64, 512, 1000, "int8", "int8"),
    "batch_matmul_dp4a": BatchMatmulWorkload(12, 197, 64, 197, "int8", "int8"),
    "dense_gemv": DenseWorkload(1, 1024, 1000, "int8", "int8"),
    "depthwise_conv2d_nhwc": conv(1, 112, 112, 32, 32, groups=32),
}


def source_of(name: str, architecture: str) -> str:
    workload, target = WORKLOADS[name], make_target(architecture)
    implementation = next(item for item in candidates(workload, target) if item.name == f"{name}.cuda")
    return kernel_source(workload, target, implementation)


@pytest.mark.sampled("architecture")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_machine_code(name, architecture):
    source = source_of(name, architecture)
    found = instructions(source, architecture)
    assert count(found, "IDP.4A") >= 8  # nvcc finds dot products in depthwise taps by itself
    assert spills(found) == 0
    assert count(found, "LDG") > 0
    assert count(found, "FFMA") == 0, "a requantization rounds its product"


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_depthwise_with_nine_bit_weights(architecture):
    """Four weights a load, two taps an instruction: not more machine code than with int8 weights."""
    bytes_only, target = WORKLOADS["depthwise_conv2d_nhwc"], make_target(architecture)
    assert isinstance(bytes_only, Conv2dWorkload)
    workload = replace(bytes_only, weight_dtype="int16", nine_bit_weights=True)
    implementation = candidates(workload, target)[0]
    assert implementation.name == "depthwise_conv2d_nhwc.cuda"
    found = instructions(kernel_source(workload, target, implementation), architecture)
    assert count(found, "IDP.2A") >= 8
    assert count(found, "LDG.E.64") >= 9
    assert spills(found) == 0
    assert found.total() <= instructions(source_of("depthwise_conv2d_nhwc", architecture), architecture).total()


def test_tiles_multiply_more_than_they_load():
    """Of 8×8 accumulators each step of four k takes 64 products and four loads of 16 bytes."""
    found = instructions(source_of("conv2d_dp4a", "sm_80"), "sm_80")
    assert count(found, "IDP.4A") >= 16 * count(found, "LDS.128")
    assert count(found, "LDG.E.128") > 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_architecture_has_the_instruction(name):
    """PTX for Pascal, the oldest: only NVRTC 12 and toolkits before CUDA 13 know it."""
    source = source_of(name, "sm_61")
    if "__dp4a" in source:
        assert "dp4a.s32.s32" in ptx(source, "sm_61")


@pytest.mark.parametrize(
    ("workload", "vector"),
    [
        (conv(8, 56, 56, 64, 128), "int4"),
        (conv(1, 14, 14, 256, 256), "int4"),  # rows are clamped, steps end within a column of the window
        (conv(1, 9, 9, 48, 64, dilation=2), "int4"),
        (conv(4, 28, 28, 128, 128, groups=32), "int"),
    ],
    ids=["whole", "clamped", "three runs", "groups of four"],
)
def test_gathers_are_vectors(workload, vector):
    """As many bytes at a time as lie side by side in memory, padding or not."""
    target = make_target("sm_75")
    implementation = next(item for item in candidates(workload, target) if item.name == "conv2d_dp4a.cuda")
    source = kernel_source(workload, target, implementation)
    assert f"= *({vector}*)(p0_ptr" in source
    assert "= p0_ptr[" not in source
