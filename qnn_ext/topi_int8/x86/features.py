"""What the CPU of a target offers to the integer kernels, asked of LLVM so that `-mcpu` and `-mattr` both count."""

from __future__ import annotations

from functools import lru_cache

import tvm
from tvm.target import Target


@lru_cache(maxsize=256)
def _has(feature: str, target_json: str) -> bool:
    return bool(tvm.target.codegen.llvm_cpu_has_features(feature, Target(target_json)))


def is_x86(target: Target) -> bool:
    """Whether the target is an LLVM CPU target of the x86 family."""
    if target.kind.name != "llvm":
        return False
    triple = str(target.attrs.get("mtriple", "")) or str(tvm.target.codegen.llvm_get_system_triple())
    return triple.split("-")[0] in ("x86_64", "amd64", "i386", "i586", "i686")


def has_feature(target: Target, feature: str) -> bool:
    """Whether the target's CPU has an LLVM feature such as "avx512vnni", "avxvnni", "avx512bw", "avx2" or "sse2"."""
    return is_x86(target) and _has(feature, str(target))
