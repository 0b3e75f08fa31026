"""What this machine can run: its cores, its architecture and its instruction sets. Knows nothing of compiling."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from .errors import TargetError

# Instruction sets that LLVM puts into ordinary code: its name -> the flag in Linux' /proc/cpuinfo
INSTRUCTION_SETS = {
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
_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}  # other names of the same


def default_threads() -> int:
    """The cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def architecture_name(name: str) -> str:
    """One name for each architecture, as in LLVM triples: x86_64, aarch64."""
    return _ARCHITECTURES.get(name.lower(), name.lower())


def host_architecture() -> str:
    """This machine's architecture."""
    return architecture_name(platform.machine())


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """The instruction sets this CPU reports; off Linux, those LLVM knows its CPU model to have."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    flags = next((line.split(":", 1)[1].split() for line in text.splitlines() if line.startswith("flags")), None)
    if flags is None:
        from .target import features_of_model  # the compiler, only where nothing else tells

        return features_of_model()
    return frozenset(name for name, flag in INSTRUCTION_SETS.items() if flag in set(flags))


def missing_features(features: Iterable[str]) -> list[str]:
    """Those of the instruction sets that this CPU lacks."""
    return [feature for feature in features if feature not in host_features()]


def can_run(variant: Mapping[str, Any]) -> bool:
    """Whether this CPU can run what was compiled with these "features" for this "architecture"."""
    return variant["architecture"] == host_architecture() and not missing_features(variant["features"])


def check_runnable(features: Iterable[str], architecture: str) -> None:
    """Raise TargetError when this CPU lacks one of the features, or is of another architecture: running such code would
    end the process with an illegal instruction."""
    here = host_architecture()
    if architecture != here:
        raise TargetError(f"built for {architecture}, but this machine is {here}; compile with a target for {here}")
    missing = missing_features(features)
    if missing:
        raise TargetError(
            f"built for a CPU with {', '.join(missing)}, which this CPU lacks; compile again with the target 'native' "
            "here, or with 'x86-64' for any CPU"
        )
