"""What this machine can run: its memory, its caches and its instruction sets. Knows nothing of compiling."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from ..errors import TargetError
from . import amx
from .architectures import host_architecture
from .backend import Caches
from .families import backend_of_architecture

_AT_HWCAP, _AT_HWCAP2 = 16, 26


_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")  # where Linux lists them, one folder each
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
_SYSCTLS = (  # macOS' names for level 1 and 2, of performance cores where there are several kinds
    ("hw.perflevel0.l1dcachesize", "hw.perflevel0.l2cachesize"),
    ("hw.l1dcachesize", "hw.l2cachesize"),
)


@lru_cache(maxsize=1)
def host_caches() -> Caches | None:
    """The caches of this machine's first core; None if the system does not report both."""
    if sys.platform == "darwin":
        found = (tuple(map(_sysctl, names)) for names in _SYSCTLS)
        return next((Caches(*sizes) for sizes in found if all(sizes)), None)
    return _listed_caches(_CACHES)


def _listed_caches(folder: Path) -> Caches | None:
    """The level-1 data cache and the level-2 cache that a folder of Linux lists."""
    sizes: dict[str, int] = {}
    try:
        for index in sorted(folder.glob("index*")):
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            number = re.fullmatch(r"(\d+)([KM]?)", size)
            if kind in ("Data", "Unified") and number:
                sizes.setdefault(level, int(number[1]) * _UNITS[number[2]])
    except OSError:
        return None
    return Caches(sizes["1"], sizes["2"]) if sizes.get("1") and sizes.get("2") else None


def _sysctl(name: str) -> int:
    """An integer that macOS reports; 0 if it has none of this name."""
    value, size = ctypes.c_int64(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int64))
    done = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return value.value if done == 0 else 0


def memory_bytes() -> int | None:
    """The memory of this machine; None if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def give_back_memory() -> None:
    """Return to the system what was freed and glibc keeps: 2 MB after a language model's description was read."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library, or Windows
        ctypes.CDLL(None).malloc_trim(0)


_ask_compiler: Callable[[], frozenset[str]] = frozenset


def ask_where_unknown(features_of_model: Callable[[], frozenset[str]]) -> None:
    """Have the compiler asked for the instruction sets of this CPU's model if the system does not report them."""
    global _ask_compiler
    _ask_compiler = features_of_model


def cpu_name() -> str:
    """What the system calls this machine's CPU; of ARM CPUs, which have no name there, implementer and part."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.findall(r"^(model name|CPU implementer|CPU part)\s*: *(.*)$", text, re.MULTILINE)
    return " ".join(dict.fromkeys(value for _, value in found)) or platform.machine()


@lru_cache(maxsize=1)
def host_features() -> frozenset[str]:
    """The instruction sets this CPU reports; on systems other than Linux, those of its model according to LLVM."""
    backend = backend_of_architecture(host_architecture())
    flags = _hardware_flags(backend.hardware_bits) or _cpuinfo_flags()
    if flags is None:
        return _ask_compiler()
    reported = frozenset(name for name, flag in backend.instruction_sets.items() if flag in flags)
    return reported if reported.isdisjoint(amx.FEATURES) or amx.supported() else reported - amx.FEATURES


def _hardware_flags(places: Mapping[str, int]) -> set[str] | None:
    """What Linux reports to a process about its CPU, if at all, at these places. This is also right under emulation,
    where /proc/cpuinfo may be that of the emulating machine."""
    if sys.platform != "linux" or not places:
        return None
    try:
        ask = ctypes.CDLL(None).getauxval
    except (OSError, AttributeError):  # a C library without it
        return None
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    bits = ask(_AT_HWCAP) | ask(_AT_HWCAP2) << 64
    return {flag for flag, bit in places.items() if bits >> bit & 1}


def _cpuinfo_flags() -> set[str] | None:
    """The flags that Linux lists for the CPU: "flags" on x86, "Features" on ARM."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return None
    line = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), None)
    return None if line is None else set(line.split(":", 1)[1].split())


def missing_features(features: Iterable[str]) -> list[str]:
    """The instruction sets among these that this CPU lacks, or that the system does not let this process use."""
    wanted = list(features)
    missing = [feature for feature in wanted if feature not in host_features()]
    if missing or amx.FEATURES.isdisjoint(wanted) or amx.request():
        return missing
    return [feature for feature in wanted if feature in amx.FEATURES]


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
        refused = host_features().issuperset(missing)
        raise TargetError(
            f"built for a CPU with {', '.join(missing)}, which "
            f"{'the system does not let this process use' if refused else 'this CPU lacks'}; compile the model again, "
            f"with the target 'native' on this machine, or with {advised_target()} for any CPU"
        )


def advised_target() -> str:
    """The name of the target that any CPU of this machine's architecture can run, quoted."""
    return repr(backend_of_architecture(host_architecture()).baseline or "native")
