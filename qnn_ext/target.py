"""Targets by name: "native", a CPU name, or a dict of TVM target attributes; and what this machine can run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
from tvm.target import Target

from .errors import TargetError

# Instruction sets that LLVM puts into ordinary code: its name -> the flag in Linux' /proc/cpuinfo
_INSTRUCTION_SETS = {
    "sse3": "pni",
    "ssse3": "ssse3",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "popcnt": "popcnt",
    "lzcnt": "abm",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "movbe": "movbe",
    "adx": "adx",
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "gfni": "gfni",
    "vaes": "vaes",
    "vpclmulqdq": "vpclmulqdq",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512vnni": "avx512_vnni",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avxvnni": "avx_vnni",
    "avxvnniint8": "avx_vnni_int8",
    "avxifma": "avx_ifma",
}


def make_target(target: str | Mapping[str, Any] | Target = "native", num_threads: int | None = None) -> Target:
    """The TVM target for `build`.

    target:      "native" (this machine's CPU), an LLVM CPU name ("skylake-avx512", "haswell", "x86-64", "znver4"), a
                 dict as `tvm.target.Target` takes it, or a Target
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
    known = {str(cpu) for cpu in tvm.target.codegen.llvm_get_cpu_archlist(Target({"kind": "llvm"}))}
    if name not in known:
        close = ", ".join(sorted(cpu for cpu in known if name[:4].lower() in cpu.lower())[:8])
        hint = f"; similar: {close}" if close else ""
        raise TargetError(f"unknown CPU {name!r}: use 'native' or a name LLVM knows{hint}")
    return name


def default_threads() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def required_features(target: Target) -> list[str]:
    """The instruction sets that code for the target may contain."""
    return sorted(_features(target))


def _features(target: Target) -> set[str]:
    has = tvm.target.codegen.llvm_cpu_has_features
    return (
        {name for name in _INSTRUCTION_SETS if has(name, target)} if target_architecture(target) == "x86_64" else set()
    )


def check_runnable(features: list[str], architecture: str) -> None:
    """Raise TargetError when this CPU lacks one of the features, or is of another architecture: running such code would
    end the process with an illegal instruction."""
    here = host_architecture()
    if architecture != here:
        raise TargetError(f"built for {architecture}, but this machine is {here}; compile with a target for {here}")
    missing = [feature for feature in features if feature not in host_features()]
    if missing:
        raise TargetError(
            f"built for a CPU with {', '.join(missing)}, which this CPU lacks; compile again with the target 'native' "
            "here, or with 'x86-64' for any CPU"
        )


def host_architecture() -> str:
    """This machine's architecture, as in LLVM triples: x86_64, aarch64."""
    return str(tvm.target.codegen.llvm_get_system_triple()).split("-")[0]


def target_architecture(target: Target) -> str:
    """The target's architecture."""
    triple = str(target.attrs.get("mtriple", ""))
    return triple.split("-")[0] if triple else host_architecture()


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """The instruction sets this CPU reports; off Linux, those LLVM knows its CPU model to have."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    lines = [line for line in text.splitlines() if line.startswith("flags")]
    if not lines:
        cpu = str(tvm.target.codegen.llvm_get_system_cpu())
        return frozenset(_features(Target({"kind": "llvm", "mcpu": cpu})))
    flags = set(lines[0].split(":", 1)[1].split())
    return frozenset(name for name, flag in _INSTRUCTION_SETS.items() if flag in flags)
