"""What a target offers to the integer kernels; of CPUs, LLVM is asked, so that `-mcpu` and `-mattr` both count."""

from __future__ import annotations

from functools import lru_cache

import tvm
from tvm.target import Target


@lru_cache(maxsize=256)
def _has(feature: str, target_json: str) -> bool:
    return bool(tvm.target.codegen.llvm_cpu_has_features(feature, Target(target_json)))


def is_x86(target: Target) -> bool:
    """Whether the target is an LLVM CPU target of the x86 family."""
    return _architecture(target) in ("x86_64", "amd64", "i386", "i586", "i686")


def is_aarch64(target: Target) -> bool:
    """Whether the target is a 64-bit ARM CPU."""
    return _architecture(target) in ("aarch64", "arm64")


def is_arm32(target: Target) -> bool:
    """Whether the target is a 32-bit ARM CPU: armv7l, armv8l and others."""
    name = _architecture(target)
    return name.startswith("arm") and name != "arm64"


def is_arm(target: Target) -> bool:
    """Whether the target is an ARM CPU, of 64 or 32 bits."""
    return is_aarch64(target) or is_arm32(target)


def on_arm() -> bool:
    """Whether what is computed now is for an ARM CPU, as `on_gpu`."""
    target = Target.current(allow_none=True)
    return target is not None and is_arm(target)


def is_cuda(target: Target) -> bool:
    """Whether the target is an NVIDIA GPU."""
    return target.kind.name == "cuda"


def on_gpu() -> bool:
    """Whether what is computed now is for a GPU: for rules of TE, which know no target but the current one."""
    target = Target.current(allow_none=True)
    return target is not None and is_cuda(target)


def _architecture(target: Target) -> str:
    """The first part of a CPU target's triple; empty for other kinds of targets."""
    if target.kind.name != "llvm":
        return ""
    triple = str(target.attrs.get("mtriple", "")) or str(tvm.target.codegen.llvm_get_system_triple())
    return triple.split("-")[0].lower()


def has_feature(target: Target, feature: str) -> bool:
    """Whether the target's CPU has an LLVM feature: "avx512vnni" or "avx2" of x86, "dotprod" or "i8mm" of ARM."""
    return target.kind.name == "llvm" and _has(feature, str(target))


def contracts(target: Target) -> bool:
    """Whether LLVM makes one operation, which rounds once, of a float product and what is added to it.

    It does wherever the CPU has such an instruction: all 64-bit ARM CPUs, 32-bit ones with VFPv4, x86 with FMA.
    """
    return is_aarch64(target) or has_feature(target, "vfp4" if is_arm32(target) else "fma")
