"""Targets by name: "native", a family of CPUs, one CPU's name, or a dict of TVM target attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm.target import Target

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


def make_target(target: str | Mapping[str, Any] | Target = "native", num_threads: int | None = None) -> Target:
    """The TVM target for `build`.

    target:      "native" (this machine's CPU), a family of CPU_FAMILIES ("avx512_vnni", "avx_vnni", "avx512", "avx2",
                 "x86-64"), an LLVM CPU name ("znver4", "icelake-server"), a dict as `tvm.target.Target` takes it, or a
                 Target
    num_threads: how many threads the kernels may use; default: all cores of this machine

    Raises TargetError for names LLVM does not know and for targets without kernels.
    """
    if isinstance(target, Target):
        return target
    if isinstance(target, str):
        attributes: dict[str, Any] = _native() if target == "native" else {"kind": "llvm", "mcpu": _cpu_name(target)}
    else:
        attributes = dict(target)
        attributes.setdefault("kind", "llvm")
    if attributes["kind"] != "llvm":
        raise TargetError(f"no kernels for target kind {attributes['kind']!r} yet; use an LLVM CPU target")
    attributes.setdefault("num-cores", num_threads or default_threads())
    try:
        return Target(attributes)
    except Exception as error:
        raise TargetError(
            f"TVM does not accept the target {attributes}: {str(error).strip().splitlines()[-1]}"
        ) from error


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
    has = tvm.target.codegen.llvm_cpu_has_features
    return (
        {name for name in INSTRUCTION_SETS if has(name, target)} if target_architecture(target) == "x86_64" else set()
    )


def target_architecture(target: Target) -> str:
    """The target's architecture."""
    triple = str(target.attrs.get("mtriple", ""))
    return architecture_name(triple.split("-")[0]) if triple else host_architecture()
