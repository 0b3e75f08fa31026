"""Targets by name: "native", a family of CPUs, one CPU's name, a GPU's architecture, or a dict of TVM attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm.target import Target

from . import gpu
from .errors import TargetError
from .host import INSTRUCTION_SETS, architecture_name, default_threads, host_architecture, host_features

# Families of CPUs by the instructions that matter to the kernels -> the oldest CPU of the family, in LLVM's names
CPU_FAMILIES = {
    "avx512_vnni": "cascadelake",  # vpdpbusd on zmm registers: Intel servers from 2019, AMD from Zen 4
    "avx_vnni": "alderlake",  # vpdpbusd on ymm registers: Intel's other CPUs from 2021
    "avx512": "skylake-avx512",  # vpmaddwd on zmm registers
    "avx2": "haswell",  # vpmaddwd on ymm registers: nearly every x86 from 2015
    "x86-64": "x86-64",  # SSE2: every 64-bit x86
}

_GPU_LIMITS = {
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 48 << 10,  # more needs an opt-in of each kernel
    "thread_warp_size": 32,
}


def make_target(target: str | Mapping[str, Any] | Target = "native", num_threads: int | None = None) -> Target:
    """The TVM target for `build`.

    target:      "native" (this machine's CPU), a family of CPU_FAMILIES ("avx512_vnni", "avx_vnni", "avx512", "avx2",
                 "x86-64"), an LLVM CPU name ("znver4", "icelake-server"), "cuda" (this machine's GPU), a GPU
                 architecture ("sm_80"; `qnn_ext.gpu.ARCHITECTURES`), a dict as `tvm.target.Target` takes it, or a Target
    num_threads: how many threads the kernels may use; default: all cores of this machine

    Raises TargetError for names LLVM does not know and for targets without kernels.
    """
    if isinstance(target, Target):
        return target
    if isinstance(target, str) and gpu.is_name(target):
        return _gpu_target({"kind": "cuda", "arch": gpu.architecture_of(target)})
    if isinstance(target, str):
        attributes: dict[str, Any] = _native() if target == "native" else {"kind": "llvm", "mcpu": _cpu_name(target)}
    else:
        attributes = dict(target)
        attributes.setdefault("kind", "llvm")
    if attributes["kind"] == "cuda":
        return _gpu_target(attributes)
    if attributes["kind"] != "llvm":
        raise TargetError(f"no kernels for target kind {attributes['kind']!r}; use an LLVM CPU target or 'cuda'")
    attributes.setdefault("num-cores", num_threads or default_threads())
    if "mtriple" in attributes:
        attributes["mtriple"] = full_triple(str(attributes["mtriple"]))
    return _target(attributes)


def _target(attributes: dict[str, Any]) -> Target:
    try:
        return Target(attributes)
    except Exception as error:
        raise TargetError(
            f"TVM does not accept the target {attributes}: {str(error).strip().splitlines()[-1]}"
        ) from error


def _gpu_target(attributes: dict[str, Any]) -> Target:
    """A CUDA target with the limits that schedules ask for, and a CPU of this architecture for what launches kernels."""
    attributes = {"arch": "cuda", **_GPU_LIMITS, **attributes}
    attributes["arch"] = gpu.architecture_of(str(attributes["arch"]))
    if "host" not in attributes:
        triple = str(tvm.target.codegen.llvm_get_system_triple())
        cpu = {"mcpu": "x86-64"} if host_architecture() == "x86_64" else {}
        attributes["host"] = {"kind": "llvm", "mtriple": triple, **cpu}
    return _target(attributes)


def full_triple(triple: str) -> str:
    """An LLVM triple with its vendor: "armv7l-linux-gnueabihf" becomes "armv7l-unknown-linux-gnueabihf".

    LLVM reads the parts by their places. Without a vendor it does not see the environment, and on 32-bit ARM calls its
    library's conversions between int64 and float with arguments in the wrong registers: wrong numbers, silently.
    """
    architecture, *rest = triple.split("-")
    systems = ("linux", "none", "freebsd", "android")
    return "-".join([architecture, "unknown", *rest]) if len(rest) == 2 and rest[0] in systems else triple


def _native() -> dict[str, Any]:
    """This machine: LLVM's name for its CPU, less what the CPU (or a hypervisor above it) does not report."""
    cpu = str(tvm.target.codegen.llvm_get_system_cpu())
    missing = [f"-{feature}" for feature in _features(Target({"kind": "llvm", "mcpu": cpu})) - host_features()]
    return {"kind": "llvm", "mcpu": cpu, **({"mattr": sorted(missing)} if missing else {})}


def _cpu_name(name: str) -> str:
    """LLVM's name for a CPU or a family of CPUs."""
    if name in CPU_FAMILIES:
        return CPU_FAMILIES[name]
    known = {str(cpu) for cpu in tvm.target.codegen.llvm_get_cpu_archlist(Target({"kind": "llvm"}))}
    if name not in known:
        close = ", ".join(sorted(cpu for cpu in known if name[:4].lower() in cpu.lower())[:8])
        hint = f"; similar: {close}" if close else ""
        raise TargetError(
            f"unknown CPU {name!r}: use 'native', {', '.join(map(repr, CPU_FAMILIES))}, or a name LLVM knows{hint}"
        )
    return name


def required_features(target: Target) -> list[str]:
    """The instruction sets that code for the target may contain."""
    return sorted(_features(target))


def features_of_model() -> frozenset[str]:
    """The instruction sets that LLVM knows this machine's model of CPU to have."""
    return frozenset(_features(Target({"kind": "llvm", "mcpu": str(tvm.target.codegen.llvm_get_system_cpu())})))


def _features(target: Target) -> set[str]:
    target = _cpu_of(target)
    has = tvm.target.codegen.llvm_cpu_has_features
    return (
        {name for name in INSTRUCTION_SETS if has(name, target)} if target_architecture(target) == "x86_64" else set()
    )


def _cpu_of(target: Target) -> Target:
    """The target, or the CPU beside a GPU."""
    return target if target.host is None or target.kind.name == "llvm" else target.host


def target_architecture(target: Target) -> str:
    """The architecture of the target's CPU."""
    target = _cpu_of(target)
    triple = str(target.attrs.get("mtriple", ""))
    return architecture_name(triple.split("-")[0]) if triple else host_architecture()
