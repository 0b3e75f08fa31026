"""Architectures by name: the one that any of their names means, and this process's."""

from __future__ import annotations

import platform
import re
import struct


def architecture_name(name: str) -> str:
    """The canonical name for any of an architecture's names in LLVM and on machines: x86_64, i686, aarch64, arm (32
    bits), cortex-m (its profile for microcontrollers), each little endian. Any other name, such as riscv64, is returned
    in lower case."""
    name = name.lower()
    if name in ("x86_64", "amd64"):
        return "x86_64"
    if name in ("aarch64", "arm64", "arm64e"):
        return "aarch64"
    if re.fullmatch(r"i[3-6]86", name):
        return "i686"
    if re.fullmatch(r"(arm|thumb)v[678](\.\d)?e?m(\.base|\.main)?", name):
        return "cortex-m"
    return "arm" if re.fullmatch(r"(arm|thumb)(hf|v\d\w*)?", name) and "eb" not in name else name


def host_architecture() -> str:
    """The architecture of this process, which may be 32-bit on a 64-bit kernel."""
    machine = architecture_name(platform.machine())
    return machine if struct.calcsize("P") == 8 else {"aarch64": "arm", "x86_64": "i686"}.get(machine, machine)
