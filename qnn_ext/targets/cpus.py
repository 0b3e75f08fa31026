"""CPUs by name: which options LLVM needs to build for them, and which it must not get.

LLVM treats an unknown CPU as a generic one and ignores unknown features, with only a line on stderr; an unknown triple,
or code that needs more features than the CPU has, ends the process. So everything is checked before LLVM sees it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm
from tvm.target import Target

from ..errors import TargetError
from ..tvm_runtime import quiet
from .architectures import architecture_name, host_architecture
from .backend import THREADS, Backend, threads_of
from .families import AARCH64, ARM32, CORTEX_M, CPUS, RISCV64, X86, backend_of_architecture
from .microcontrollers import CORES, attributes_of_core, is_core

# Families of x86 CPUs by the instructions that matter to the kernels -> LLVM's name of the family's oldest CPU
CPU_FAMILIES = {
    "amx_int8": "sapphirerapids",  # tdpbusd on tiles: Intel servers from 2023
    "avx512_vnni": "cascadelake",  # vpdpbusd on zmm registers: Intel servers from 2019, AMD from Zen 4
    "avx_vnni": "alderlake",  # vpdpbusd on ymm registers: Intel's other CPUs from 2021
    "avx512": "skylake-avx512",  # vpmaddwd on zmm registers
    "avx2": "haswell",  # vpmaddwd on ymm registers: nearly every x86 from 2015
    "x86-64": "x86-64",  # SSE2: every 64-bit x86
}


@dataclass(frozen=True)
class NamedCpu:
    """mcpu: LLVM's name; cores: of the board or chip, None if the name covers several; backend: its family; features:
    LLVM's names of those that are added to the CPU's."""

    mcpu: str
    cores: int | None = None
    backend: Backend = AARCH64
    features: tuple[str, ...] = ()


ARM_CPUS = {
    "rpi3": NamedCpu("cortex-a53", 4),  # smlal; also the Zero 2 W
    "rpi4": NamedCpu("cortex-a72", 4),  # smlal
    "rpi5": NamedCpu("cortex-a76", 4),  # sdot
    "graviton2": NamedCpu("neoverse-n1", 64),  # sdot
    "graviton3": NamedCpu("neoverse-v1", 64),  # smmla
    "graviton4": NamedCpu("neoverse-v2", 96),  # smmla
    "aarch64": NamedCpu("generic"),  # every 64-bit ARM CPU: smlal
    "armv7": NamedCpu("generic", backend=ARM32),  # 32-bit ARM with NEON and hard float: vmlal
}

RISCV_CPUS = {
    "riscv64": NamedCpu("generic-rv64", backend=RISCV64, features=("+m", "+a", "+f", "+d", "+c")),  # RV64GC
}

_NAMED = tuple(backend for backend in CPUS if backend.triple and backend is not CORTEX_M)
"""The families whose CPUs LLVM lists; it lists microcontrollers among 32-bit ARM's."""


def attributes_of(name: str) -> dict[str, Any]:
    """The TVM target attributes for a name of CPU_FAMILIES, ARM_CPUS, RISCV_CPUS or LLVM. Raises TargetError."""
    if name in CPU_FAMILIES:
        return {"kind": "llvm", **_triple(X86), "mcpu": CPU_FAMILIES[name]}
    if cpu := {**ARM_CPUS, **RISCV_CPUS}.get(name):
        attributes: dict[str, Any] = {"kind": "llvm", "mtriple": cpu.backend.triple, "mcpu": cpu.mcpu}
        if cpu.features:
            attributes["mattr"] = list(cpu.features)
        return attributes if cpu.cores is None else {**attributes, THREADS: cpu.cores}
    if is_core(name):
        return attributes_of_core(name)
    for backend in sorted(_NAMED, key=lambda known: known.architecture != host_architecture()):
        if name and name in _llvm_cpus(backend.triple):
            return {"kind": "llvm", **_triple(backend), "mcpu": name}
    every = sorted({cpu for backend in _NAMED for cpu in _llvm_cpus(backend.triple)})
    names = ", ".join(map(repr, (*CPU_FAMILIES, *ARM_CPUS, *RISCV_CPUS, *CORES)))
    raise TargetError(
        f"unknown CPU {name!r}: use 'native', {names}, or a CPU name that LLVM knows{_similar(name, every)}"
    )


def _triple(backend: Backend) -> dict[str, str]:
    """The triple of a family other than this machine's, which is LLVM's default."""
    return {} if backend.architecture == host_architecture() else {"mtriple": backend.triple}


@lru_cache(maxsize=16)
def _llvm_cpus(triple: str) -> frozenset[str]:
    listed = tvm.target.codegen.llvm_get_cpu_archlist(Target({"kind": "llvm", "mtriple": triple}))
    return frozenset(map(str, listed)) | {name for name in _ALIASES if _knows(name, triple)}


_ALIASES = ("apple-m1", "apple-m2", "apple-m3", "apple-latest", "cyclone")  # known to LLVM, but missing from its list


@lru_cache(maxsize=256)
def _knows(cpu: str, triple: str) -> bool:
    with quiet():
        return bool(tvm.target.codegen.llvm_is_valid_cpu(cpu, triple))


def _similar(name: str, known: list[str]) -> str:
    close = ", ".join([cpu for cpu in known if name[:4].lower() in cpu.lower()][:8])
    return f"; similar: {close}" if close else ""


# ---- checks ------------------------------------------------------------------------------------------------------


def checked(attributes: dict[str, Any]) -> dict[str, Any]:
    """Attributes of an LLVM target, with a triple that LLVM reads as intended. Raises TargetError for a triple, a CPU
    or a feature that LLVM or the kernels do not know, and for combinations that contradict each other."""
    triple = str(attributes.get("mtriple", ""))
    if triple:
        triple = full_triple(triple)
        attributes = {**attributes, "mtriple": triple}
    else:
        triple = str(tvm.target.codegen.llvm_get_system_triple())
    backend = _backend(triple)
    architecture = backend.architecture
    attributes = {**attributes, **_float_abi(triple, architecture, str(attributes.get("mfloat-abi", "")))}
    cpu = str(attributes.get("mcpu", ""))
    if cpu and not _knows(cpu, triple):
        raise TargetError(
            f"LLVM does not know the CPU {cpu!r} for {architecture}{_similar(cpu, sorted(_llvm_cpus(triple)))}; a "
            f"name without attributes, as in target={backend.baseline or 'native'!r}, determines the architecture "
            f"itself"
        )
    features = tuple(map(str, attributes.get("mattr", ())))
    for feature in features:
        _check_feature(feature, triple, backend)
    missing = [need for need in backend.needs if not _has(need, triple, cpu, features)]
    if attributes.get("mfloat-abi") == "hard" and not _has("fpregs", triple, cpu, features):
        missing.append("vfp2")  # otherwise floats would be passed in registers that do not exist
    if not backend.concurrent and threads_of(attributes) > 1:
        raise TargetError(f"{backend.name} has no threads: leave {THREADS} out")
    if missing:
        raise TargetError(
            f"code for {triple} needs {' and '.join(missing)}, which "
            f"{', '.join([cpu or 'generic', *features])} lacks; choose another mcpu or mattr"
        )
    return attributes


def full_triple(triple: str) -> str:
    """An LLVM triple with its vendor: "armv7l-linux-gnueabihf" becomes "armv7l-unknown-linux-gnueabihf".

    LLVM identifies the parts by position. Without a vendor it does not see the environment, and on 32-bit ARM it calls
    its library's conversions between int64 and float with arguments in the wrong registers: silently wrong numbers.
    """
    architecture, *rest = triple.split("-")
    systems = ("linux", "none", "freebsd", "android")
    return "-".join([architecture, "unknown", *rest]) if len(rest) == 2 and rest[0] in systems else triple


def _backend(triple: str) -> Backend:
    """The backend of a triple, checked to have kernels and to be one that this LLVM was built for."""
    first = triple.split("-")[0]
    architecture = architecture_name(first)
    known = ", ".join(backend.architecture for backend in CPUS if backend.triple)
    backend = backend_of_architecture(architecture)
    if backend not in CPUS:
        raise TargetError(f"there are no integer kernels for {first!r} (mtriple {triple!r}), only for {known}")
    built_for = {architecture_name(str(name)) for name in tvm.target.codegen.llvm_get_targets()} | {"i686"}
    if {CORTEX_M.architecture: "arm"}.get(architecture, architecture) not in built_for:
        raise TargetError(f"this build of TVM cannot compile for {architecture}: its LLVM does not include it")
    return backend


def _float_abi(triple: str, architecture: str, given: str) -> dict[str, str]:
    """How 32-bit ARM passes floats, as the triple says. Code with another float ABI would link, and read garbage."""
    if architecture not in (ARM32.architecture, CORTEX_M.architecture):
        return {}
    stated = "hard" if re.search(r"(eabihf|musleabihf)$", triple) else "soft"
    if given not in ("", stated):
        raise TargetError(f"mfloat-abi {given!r} contradicts mtriple {triple!r}, which says {stated!r}: leave it out")
    return {"mfloat-abi": stated}


def _check_feature(feature: str, triple: str, backend: Backend) -> None:
    if feature[:1] not in ("+", "-"):
        raise TargetError(f"mattr {feature!r}: add a feature with '+{feature}' or remove it with '-{feature}'")
    if not _has(feature[1:], triple, "", ("+" + feature[1:],)):
        target = Target({"kind": "llvm", "mtriple": triple, "mcpu": backend.fullest})
        known = sorted(map(str, tvm.target.codegen.llvm_get_cpu_features(target)))
        raise TargetError(
            f"LLVM does not know the feature {feature[1:]!r} of {backend.architecture}{_similar(feature[1:], known)}"
        )


@lru_cache(maxsize=1024)
def _has(feature: str, triple: str, cpu: str, features: tuple[str, ...]) -> bool:
    attributes: dict[str, Any] = {"kind": "llvm", "mtriple": triple, **({"mcpu": cpu} if cpu else {})}
    with quiet():
        return bool(tvm.target.codegen.llvm_cpu_has_features(feature, Target({**attributes, "mattr": list(features)})))
