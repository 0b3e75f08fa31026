"""What this machine can run: its cores, its architecture and its instruction sets. Knows nothing of compiling."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from ..errors import TargetError

# Instruction sets that LLVM uses in ordinary code, by architecture: LLVM's name -> the flag in Linux' /proc/cpuinfo
INSTRUCTION_SETS: dict[str, dict[str, str]] = {
    "x86_64": {
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
    },
    "aarch64": {
        "neon": "asimd",
        "fullfp16": "asimdhp",
        "fp16fml": "asimdfhm",
        "bf16": "bf16",
        "dotprod": "asimddp",
        "i8mm": "i8mm",
        "rdm": "asimdrdm",
        "complxnum": "fcma",
        "jsconv": "jscvt",
        "fptoint": "frint",
        "sha3": "sha3",
        "lse": "atomics",
        "rcpc": "lrcpc",
        "rcpc-immo": "ilrcpc",
        "flagm": "flagm",
        "altnzcv": "flagm2",
        "cssc": "cssc",
        "mops": "mops",
        "sve": "sve",
        "sve2": "sve2",
        "sve2p1": "sve2p1",
    },
    "arm": {
        "vfp3": "vfpv3",
        "neon": "neon",
        "vfp4": "vfpv4",
        "hwdiv-arm": "idiva",
        "fullfp16": "asimdhp",
        "fp16fml": "asimdfhm",
        "bf16": "asimdbf16",
        "dotprod": "asimddp",
        "i8mm": "i8mm",
    },
}
# Where the kernel reports each flag to a process: bits 0 to 63 are those of AT_HWCAP, those from 64 on are AT_HWCAP2's
_AARCH64_BITS = {
    "asimd": 1,
    "atomics": 8,
    "asimdhp": 10,
    "asimdrdm": 12,
    "jscvt": 13,
    "fcma": 14,
    "lrcpc": 15,
    "sha3": 17,
    "asimddp": 20,
    "sve": 22,
    "asimdfhm": 23,
    "ilrcpc": 26,
    "flagm": 27,
    "sve2": 65,
    "flagm2": 71,
    "frint": 72,
    "i8mm": 77,
    "bf16": 78,
    "cssc": 98,
    "sve2p1": 100,
    "mops": 107,
}
_AT_HWCAP, _AT_HWCAP2 = 16, 26
# Architecture -> the target that any of its CPUs can run
BASELINES = {"x86_64": "x86-64", "aarch64": "aarch64", "arm": "armv7"}


def memory_bytes() -> int | None:
    """The memory of this machine; None if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def architecture_name(name: str) -> str:
    """The canonical name for any of an architecture's names in LLVM and on machines: x86_64, i686, aarch64, arm (32
    bits), each little endian. Any other name is returned in lower case."""
    name = name.lower()
    if name in ("x86_64", "amd64"):
        return "x86_64"
    if name in ("aarch64", "arm64", "arm64e"):
        return "aarch64"
    if re.fullmatch(r"i[3-6]86", name):
        return "i686"
    return "arm" if re.fullmatch(r"(arm|thumb)(hf|v\d\w*)?", name) and "eb" not in name else name


def host_architecture() -> str:
    """The architecture of this process, which may be 32-bit on a 64-bit kernel."""
    machine = architecture_name(platform.machine())
    return machine if struct.calcsize("P") == 8 else {"aarch64": "arm", "x86_64": "i686"}.get(machine, machine)


_ask_compiler: Callable[[], frozenset[str]] = frozenset


def ask_where_unknown(features_of_model: Callable[[], frozenset[str]]) -> None:
    """Have the compiler asked for the instruction sets of this CPU's model if the system does not report them."""
    global _ask_compiler
    _ask_compiler = features_of_model


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """The instruction sets this CPU reports; on systems other than Linux, those of its model according to LLVM."""
    architecture = host_architecture()
    flags = _hardware_flags() if architecture == "aarch64" else None
    flags = flags or _cpuinfo_flags()
    if flags is None:
        return _ask_compiler()
    return frozenset(name for name, flag in INSTRUCTION_SETS.get(architecture, {}).items() if flag in flags)


def _hardware_flags() -> set[str] | None:
    """What Linux reports to a process on ARM about its CPU. This is also right under emulation, where /proc/cpuinfo may
    be that of the emulating machine."""
    if sys.platform != "linux":
        return None
    try:
        ask = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):  # a C library without it
        return None
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    bits = ask(_AT_HWCAP) | ask(_AT_HWCAP2) << 64
    return {flag for flag, bit in _AARCH64_BITS.items() if bits >> bit & 1}


def _cpuinfo_flags() -> set[str] | None:
    """The flags that Linux lists for the CPU: "flags" on x86, "Features" on ARM."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), None)
    return None if line is None else set(line.split(":", 1)[1].split())


def missing_features(features: Iterable[str]) -> list[str]:
    """The instruction sets among these that this CPU lacks."""
    return [feature for feature in features if feature not in host_features()]


def can_run(features: Iterable[str], architecture: str) -> bool:
    """Whether this CPU can run what was compiled with these features for this architecture."""
    return architecture == host_architecture() and not missing_features(features)


def check_runnable(features: Iterable[str], architecture: str) -> None:
    """Raise TargetError if this CPU lacks one of the features or has another architecture: such code would end the
    process with an illegal instruction."""
    here = host_architecture()
    if architecture != here:
        raise TargetError(
            f"built for {architecture}, but this machine is {here}; compile the model again with a target for {here}"
        )
    missing = missing_features(features)
    if missing:
        raise TargetError(
            f"built for a CPU with {', '.join(missing)}, which this CPU lacks; compile the model again, with the "
            f"target 'native' on this machine, or with {advised_target()} for any CPU"
        )


def advised_target() -> str:
    """The name of the target that any CPU of this machine's architecture can run, quoted."""
    return repr(BASELINES.get(host_architecture(), "native"))
