"""NVIDIA GPUs: names of architectures, what this machine has, and whether it can run a compiled model.

The driver is queried through its C interface, which needs no toolkit and never ends the process; nothing here imports
TVM.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

from ..errors import TargetError

ARCHITECTURES = {
    "sm_61": "Pascal: P4, P40, GTX 10",
    "sm_70": "Volta: V100",
    "sm_72": "Xavier",
    "sm_75": "Turing: T4, RTX 20",
    "sm_80": "Ampere: A100, A30",
    "sm_86": "Ampere: A10, A40, RTX 30",
    "sm_87": "Orin",
    "sm_89": "Ada: L4, L40, RTX 40",
    "sm_90": "Hopper: H100, H200",
    "sm_100": "Blackwell: B200",
    "sm_120": "Blackwell: RTX 50",
}
OLDEST = 61  # the first with dp4a
_NAME = re.compile(r"(?:cuda-)?sm_(\d{2,3})[af]?")
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


def is_name(name: str) -> bool:
    """Whether a target's name means a GPU: "cuda", "sm_80", "cuda-sm_80"."""
    return name == "cuda" or _NAME.fullmatch(name) is not None


def architecture_of(name: str) -> str:
    """The architecture that a name means, "sm_80"; for "cuda", that of this machine's GPU. Raises TargetError."""
    known = ", ".join(map(repr, ARCHITECTURES))
    if name == "cuda":
        found, reason = of_this_machine()
        if found is None:
            raise TargetError(
                f"target 'cuda' means this machine's GPU, but {reason}: give an architecture, one of {known}"
            )
        return found
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) < OLDEST:
        raise TargetError(f"{name!r} is not a GPU architecture with integer kernels: use 'cuda' or {known}")
    return name.removeprefix("cuda-")


def of_this_machine() -> tuple[str | None, str]:
    """The architecture of this machine's first GPU, "sm_80"; or None, and why there is none."""
    version, reason = _driver()
    return (None, reason) if version is None else (f"sm_{version}", "")


def version_of(architecture: str) -> int:
    """The compute capability of "sm_80" as a number, 80."""
    match = _NAME.fullmatch(architecture)
    if match is None:
        raise TargetError(f"{architecture!r} is not a GPU architecture: it must be 'sm_' and a number, such as 'sm_80'")
    return int(match[1])


def can_run(target: Mapping[str, Any]) -> bool:
    """Whether this machine's GPU can run what was built for the target; true if the target is not a GPU."""
    return _obstacle(target) is None


def check_runnable(target: Mapping[str, Any]) -> None:
    """Raise TargetError if the target is a GPU and this machine has no GPU, no driver, or one that is too old."""
    obstacle = _obstacle(target)
    if obstacle is not None:
        raise TargetError(
            f"built for an NVIDIA GPU ({target.get('arch')}), but {obstacle}; run it on a machine with such a GPU, "
            "or compile the model for this CPU with the target 'native'"
        )


def _obstacle(target: Mapping[str, Any]) -> str | None:
    if target.get("kind") != "cuda":
        return None
    version, reason = _driver()
    if version is None:
        return reason
    if version < version_of(str(target.get("arch"))):
        return f"the GPU here is of an older architecture, sm_{version}"
    return None


_forked = False


def _lose_driver() -> None:
    """Called in a forked process, where CUDA does not work."""
    global _forked
    _forked = _forked or (_asked_driver.cache_info().currsize > 0 and _asked_driver()[0] is not None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_driver)


def check_not_forked() -> None:
    """Raise TargetError in a process forked after the driver was used: CUDA contexts stay in the parent."""
    if _forked:
        raise TargetError(
            f"{_FORKED}; fork before using the GPU, or start processes with multiprocessing's method 'spawn'"
        )


_FORKED = "this process was forked from one that used the GPU, which CUDA does not support"


def _driver() -> tuple[int | None, str]:
    return (None, _FORKED) if _forked else _asked_driver()


@cache
def _asked_driver() -> tuple[int | None, str]:
    """The compute capability of the first GPU that the driver reports, or None, and why there is none."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None, "this machine has no NVIDIA driver"
    status = driver.cuInit(0)
    if status != 0:
        return None, f"the NVIDIA driver cannot be initialized here (cuInit: error {status})"
    device, version = ctypes.c_int(), 0
    if driver.cuDeviceGet(ctypes.byref(device), 0) != 0:
        return None, "the NVIDIA driver reports no GPU"
    for attribute in (_MAJOR, _MINOR):
        value = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) != 0:
            return None, "the NVIDIA driver does not report the GPU's compute capability"
        version = 10 * version + value.value
    return version, ""
