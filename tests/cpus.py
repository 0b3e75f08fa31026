"""The families of CPUs that a kernel or a model must be equal on: those whose code this machine can run, and ARM CPUs,
whose code runs under emulation."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.target import Target

from qnn_ext import TargetError
from qnn_ext.host import check_runnable
from qnn_ext.target import make_target, required_features, target_architecture
from tests.arm import emulator

# avx_vnni is represented by what AVX512-VNNI offers on ymm registers: the same instruction in another encoding, and the
# same kernels, for a CPU has either or both
CPUS: dict[str, str | dict[str, Any]] = {
    "native": "native",
    "vnni_256": {"mcpu": "haswell", "mattr": ["+avx512f", "+avx512vl", "+avx512vnni"]},
    "avx512": "avx512",
    "avx2": "avx2",
    "x86-64": "x86-64",
}

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
    """The target for one of CPUS, of ARM_CPUS or a name `make_target` knows; skips the test if this machine cannot run
    its code, nor emulate it."""
    target = make_target({**CPUS, **ARM_CPUS}.get(cpu, cpu), num_threads)
    if emulator.emulates(target):
        emulator.require(target)
        return target
    try:
        check_runnable(required_features(target), target_architecture(target))
    except TargetError as error:
        pytest.skip(str(error))
    return target
