"""Cache sizes of CPUs by LLVM's names, from their data sheets. What of them work may take, kernels decide.

Intel: Intel 64 and IA-32 Architectures Optimization Reference Manual. AMD: Software Optimization Guides for families
17h, 19h and 1Ah. ARM cores come with caches of several sizes: listed are those of the chip that is meant by a target's
name (Broadcom's BCM2836, 2837, 2711 and 2712 in Raspberry Pis; AWS Graviton 2 to 4, from Arm's technical reference
manuals). Apple: what `sysctl hw.perflevel0` reports of a performance core; level 2 is shared by a cluster.
"""

from __future__ import annotations

from .backend import Caches


def _kib(l1: int, l2: int, *names: str) -> dict[str, Caches]:
    return dict.fromkeys(names, Caches(l1 << 10, l2 << 10))


CACHES = {
    **_kib(32, 256, "nehalem", "westmere", "sandybridge", "ivybridge", "haswell", "broadwell", "skylake"),
    **_kib(32, 1024, "skylake-avx512", "cascadelake", "cooperlake"),
    **_kib(48, 512, "icelake-client", "rocketlake"),
    **_kib(48, 1280, "icelake-server", "tigerlake", "alderlake"),
    **_kib(48, 2048, "raptorlake", "meteorlake", "sapphirerapids", "emeraldrapids", "graniterapids"),
    **_kib(32, 512, "znver1", "znver2", "znver3"),
    **_kib(32, 1024, "znver4"),
    **_kib(48, 1024, "znver5"),
    **_kib(32, 512, "cortex-a7", "cortex-a53"),
    **_kib(32, 1024, "cortex-a72"),
    **_kib(64, 512, "cortex-a76"),
    **_kib(64, 1024, "neoverse-n1", "neoverse-v1"),
    **_kib(64, 2048, "neoverse-v2"),
    **_kib(128, 12288, "apple-m1"),
    **_kib(128, 16384, "apple-m2", "apple-m3", "apple-m4"),
}
"""LLVM's name of a CPU -> the caches of one of its cores."""
