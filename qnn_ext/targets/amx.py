"""Linux's permission to use AMX, whose registers of 8 KiB a process has only once it asked for them: without it, their
instructions end the process (Linux, Documentation/arch/x86/xstate.rst)."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

FEATURES = frozenset({"amx-tile", "amx-int8", "amx-bf16"})
"""The instruction sets (LLVM's names) that need it."""

_ARCH_PRCTL = 158  # the number of the system call on x86-64
_GET_SUPPORTED, _REQUEST = 0x1021, 0x1023
_TILE_DATA = 18


@lru_cache(maxsize=1)
def supported() -> bool:
    """Whether the system can grant it."""
    features = ctypes.c_uint64()
    return _arch_prctl(_GET_SUPPORTED, ctypes.byref(features)) and bool(features.value >> _TILE_DATA & 1)


def request() -> bool:
    """Ask for it, for all threads of this process and processes forked from it; returns whether it is granted.

    The system refuses where a thread has an alternate signal stack that is too small for these registers.
    """
    return _arch_prctl(_REQUEST, ctypes.c_ulong(_TILE_DATA))


def _arch_prctl(code: int, argument: object) -> bool:
    if sys.platform != "linux":
        return False
    try:
        call = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return False
    return bool(call(_ARCH_PRCTL, ctypes.c_long(code), argument) == 0)
