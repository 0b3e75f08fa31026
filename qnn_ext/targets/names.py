"""Targets by name: "native", a family of CPUs, one CPU's name, a GPU's architecture, or a dict of TVM attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm.target import Target

from ..errors import TargetError
from ..processes.cores import default_threads
from . import cpus
from . import gpus as gpu
from .architectures import architecture_name, host_architecture
from .backend import THREADS
from .cpus import ARM_CPUS, CPU_FAMILIES
from .families import SHARED_BYTES, backend_for
from .features import backend_of, has_feature, host_cpu
from .host import check_runnable, host_features

__all__ = [
    "ARM_CPUS",
    "CPU_FAMILIES",
    "check_runs_here",
    "description_of",
    "features_of_model",
    "make_target",
    "required_features",
    "target_architecture",
]

_GPU_LIMITS = {
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": SHARED_BYTES,
    "thread_warp_size": 32,
}


def make_target(target: str | Mapping[str, Any] | Target = "native", num_threads: int | None = None) -> Target:
    """The TVM target for `build`.

    target:      "native" (this machine's CPU), a family of x86 CPUs ("avx512_vnni", "avx2", "x86-64": CPU_FAMILIES), an
                 ARM board or CPU ("rpi4", "rpi5", "graviton3", "aarch64", "armv7": ARM_CPUS), "riscv64", an LLVM CPU
                 name of x86, ARM or RISC-V ("znver4", "cortex-a72"), "cuda" (this machine's GPU), a GPU architecture
                 ("sm_80"; `qnn_ext.targets.gpus.ARCHITECTURES`), a dict as `tvm.target.Target` takes it, or a Target
    num_threads: how many threads the kernels may use; default: all cores of the board or chip if the name means one,
                 otherwise those of this machine

    Raises TargetError for targets that LLVM does not know or that have no kernels.
    """
    if isinstance(target, Target):
        _check_kind(target.kind.name)
        return target
    if isinstance(target, str) and gpu.is_name(target):
        return _gpu_target({"kind": "cuda", "arch": gpu.architecture_of(target)})
    if isinstance(target, str):
        attributes = _native() if target == "native" else cpus.attributes_of(target)
        if num_threads:
            attributes[THREADS] = num_threads
    elif isinstance(target, Mapping):
        attributes = dict(target)
        attributes.setdefault("kind", "llvm")
    else:
        raise TargetError(f"a target is a name, a dict or a tvm.target.Target, found {type(target).__name__}")
    _check_kind(attributes["kind"])
    if attributes["kind"] == "cuda":
        return _gpu_target(attributes)
    if num_threads:
        attributes.setdefault(THREADS, num_threads)
    attributes = cpus.checked(attributes)
    concurrent = backend_for("llvm", attributes).concurrent
    attributes.setdefault(THREADS, default_threads() if concurrent else 1)
    return _target(attributes)


def _check_kind(kind: str) -> None:
    if kind not in ("llvm", "cuda"):
        raise TargetError(f"there are no kernels for target kind {kind!r}; use an LLVM CPU target or 'cuda'")


def _target(attributes: dict[str, Any]) -> Target:
    try:
        return Target(attributes)
    except Exception as error:
        raise TargetError(
            f"TVM does not accept the target {attributes}: {str(error).strip().splitlines()[-1]}"
        ) from error


def _gpu_target(attributes: dict[str, Any]) -> Target:
    """A CUDA target with the limits that schedules query, and as host a CPU like this machine's to launch kernels."""
    attributes = {"arch": "cuda", **_GPU_LIMITS, **attributes}
    attributes["arch"] = gpu.architecture_of(str(attributes["arch"]))
    if "host" not in attributes:
        triple = str(tvm.target.codegen.llvm_get_system_triple())
        cpu = {"mcpu": "x86-64"} if host_architecture() == "x86_64" else {}
        attributes["host"] = {"kind": "llvm", "mtriple": triple, **cpu}
    return _target(attributes)


def _native() -> dict[str, Any]:
    """This machine: LLVM's name for its CPU, minus features that the CPU (or its hypervisor) does not report."""
    cpu = host_cpu()
    model, reported = _features(Target({"kind": "llvm", "mcpu": cpu})), host_features()
    changes = [f"-{feature}" for feature in model - reported]
    # LLVM does not know every model, and takes one that lacks a feature, say under a hypervisor, for an older one. The
    # kernels do not use scalable vectors.
    changes += [f"+{feature}" for feature in reported - model if not feature.startswith("sve")]
    return {"kind": "llvm", "mcpu": cpu, **({"mattr": sorted(changes)} if changes else {})}


def description_of(target: Target) -> dict[str, Any]:
    """The kind and the attributes of a target, as `Target` takes them again."""
    return {"kind": target.kind.name, **{str(key): _plain(value) for key, value in target.attrs.items()}}


def _plain(value: Any) -> Any:
    """A target's attribute as a JSON value."""
    if isinstance(value, (bool, int, float, str)):
        return value
    return [_plain(item) for item in value] if hasattr(value, "__iter__") else str(value)


def check_runs_here(target: Target) -> None:
    """Raise TargetError unless this CPU can run code for the target; ask the system for what such code needs."""
    check_runnable(required_features(target), target_architecture(target))


def required_features(target: Target) -> list[str]:
    """The instruction sets that code for the target may contain."""
    return sorted(_features(target))


def features_of_model() -> frozenset[str]:
    """The instruction sets that this machine's CPU model has according to LLVM."""
    return frozenset(_features(Target({"kind": "llvm", "mcpu": host_cpu()})))


def _features(target: Target) -> set[str]:
    cpu = _cpu_of(target)
    return {name for name in backend_of(cpu).instruction_sets if has_feature(cpu, name)}


def _cpu_of(target: Target) -> Target:
    """The target itself, or the host CPU of a GPU."""
    return target if target.host is None or target.kind.name == "llvm" else target.host


def target_architecture(target: Target) -> str:
    """The architecture of the target's CPU."""
    target = _cpu_of(target)
    triple = str(target.attrs.get("mtriple", ""))
    return architecture_name(triple.split("-")[0]) if triple else host_architecture()
