"""The families of CPUs whose code this machine can run: what a kernel or a model must equal on each."""

from __future__ import annotations

from typing import Any

import pytest
from tvm.target import Target

from qnn_ext import TargetError
from qnn_ext.host import check_runnable
from qnn_ext.target import make_target, required_features, target_architecture

# avx_vnni is represented by what AVX512-VNNI offers on ymm registers: the same instruction in another encoding, and the
# same kernels, for a CPU has either or both
CPUS: dict[str, str | dict[str, Any]] = {
    "native": "native",
    "vnni_256": {"mcpu": "haswell", "mattr": ["+avx512f", "+avx512vl", "+avx512vnni"]},
    "avx512": "avx512",
    "avx2": "avx2",
    "x86-64": "x86-64",
}


def cpu_target(cpu: str, num_threads: int = 2) -> Target:
    """The target for one of CPUS or a name `make_target` knows; skips the test if this machine cannot run its code."""
    target = make_target(CPUS.get(cpu, cpu), num_threads)
    try:
        check_runnable(required_features(target), target_architecture(target))
    except TargetError as error:
        pytest.skip(str(error))
    return target
