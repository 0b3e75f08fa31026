"""The CPU families on which a kernel or a model must give equal results: those whose code this machine can run, and ARM
CPUs, whose code runs under emulation."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.target import Target

from qnn_ext import TargetError
from qnn_ext.targets.architectures import host_architecture
from qnn_ext.targets.host import missing_features
from qnn_ext.targets.names import check_runs_here, make_target, required_features, target_architecture
from tests.arm import emulator
from tests.x86 import emulator as amx

AMX_BFLOAT16 = {"kind": "llvm", "mcpu": "cascadelake", "mattr": ["+amx-tile", "+amx-bf16"]}
AMX = {"kind": "llvm", "mcpu": "cascadelake", "mattr": ["+amx-tile", "+amx-int8"]}

# avx_vnni is represented by AVX512-VNNI on ymm registers: the same instruction in another encoding, and the same
# kernels, as a CPU has either or both
CPUS: dict[str, str | dict[str, Any]] = {
    "native": "native",
    "amx": AMX,
    "vnni_256": {"mcpu": "haswell", "mattr": ["+avx512f", "+avx512vl", "+avx512vnni"]},
    "avx512": "avx512",
    "avx2": "avx2",
    "x86-64": "x86-64",
}

BFLOAT16 = {"kind": "llvm", "mcpu": "cascadelake", "mattr": ["+avx512bf16", "+clzero"]}
"""A CPU with AMD's vdpbf16ps, whose code Intel's CPUs run as well."""

ARM_HALVES = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+v8.2a", "+fp16fml", "+bf16"]}
"""An ARM CPU with instructions for products of float16 and bfloat16, as Neoverse V1 and N2 have them."""

HALVES = {"bfloat16": BFLOAT16, "amx_bfloat16": AMX_BFLOAT16, "arm_halves": ARM_HALVES}

ARM_CPUS: dict[str, dict[str, Any]] = {
    "asimd": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+neon"]},
    "dotprod": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+v8.2a", "+dotprod"]},
    "i8mm": {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+v8.2a", "+dotprod", "+i8mm"]},
    "armv7": {
        "kind": "llvm",
        "mtriple": "armv7l-linux-gnueabihf",
        "mattr": ["+v7", "+vfp3", "+neon"],
        "mfloat-abi": "hard",
    },
}


def cpu_target(cpu: str, num_threads: int = 2) -> Target:
    """The target for one of CPUS, of ARM_CPUS or a name `make_target` knows; skips the test if this machine can neither
    run nor emulate its code."""
    target = make_target({**CPUS, **ARM_CPUS, **HALVES}.get(cpu, cpu), num_threads)
    if emulator.emulates(target):
        emulator.require(target)
        return target
    if amx.emulates(target):
        amx.require()
    try:
        check_runs_here(target)
    except TargetError as error:
        pytest.skip(str(error))
    return target


def runs_here(cpu: str) -> bool:
    """Whether this machine has a CPU's instructions."""
    target = make_target(cpu, 1)
    return target_architecture(target) == host_architecture() and not missing_features(required_features(target))


TARGETS = tuple(cpu for cpu in ("native", "skylake-avx512", "haswell", "x86-64") if runs_here(cpu))
"""The CPUs (LLVM's names) whose code this machine can run: AVX-512 code on a CPU without it would kill the process."""
