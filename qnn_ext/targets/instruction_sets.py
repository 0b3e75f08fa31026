"""Instruction sets that LLVM uses in ordinary code, by family: LLVM's name -> the flag by which Linux reports it.

Linux lists the flags in /proc/cpuinfo. On 64-bit ARM it also reports them to a process, as bits.
"""

from __future__ import annotations

X86_64: dict[str, str] = {
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
    "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
}

AARCH64: dict[str, str] = {
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
}

ARM: dict[str, str] = {
    "vfp3": "vfpv3",
    "neon": "neon",
    "vfp4": "vfpv4",
    "hwdiv-arm": "idiva",
    "fullfp16": "asimdhp",
    "fp16fml": "asimdfhm",
    "bf16": "asimdbf16",
    "dotprod": "asimddp",
    "i8mm": "i8mm",
}

RISCV64: dict[str, str] = {}
"""Linux lists the letters of its base as one word, which every CPU that runs a distribution has."""

CORTEX_M: dict[str, str] = {name: name for name in ("dsp", "mve", "mve.fp", "fpregs", "fp64")}
"""There is no Linux on microcontrollers, so the names are LLVM's."""

AARCH64_BITS: dict[str, int] = {
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
"""Flag -> where the kernel reports it to a process: bits 0 to 63 are AT_HWCAP's, those from 64 on AT_HWCAP2's."""

ARM_BITS: dict[str, int] = {
    "neon": 12,
    "vfpv3": 13,
    "vfpv4": 16,
    "idiva": 17,
    "asimdhp": 23,
    "asimddp": 24,
    "asimdfhm": 25,
    "asimdbf16": 26,
    "i8mm": 27,
}
"""The same for 32-bit programs, all of them AT_HWCAP's."""

X86_64_BITS: dict[str, tuple[int, int, int, int]] = {
    "sse3": (1, 0, 2, 0),
    "ssse3": (1, 0, 2, 9),
    "fma": (1, 0, 2, 12),
    "sse4.1": (1, 0, 2, 19),
    "sse4.2": (1, 0, 2, 20),
    "movbe": (1, 0, 2, 22),
    "popcnt": (1, 0, 2, 23),
    "avx": (1, 0, 2, 28),
    "f16c": (1, 0, 2, 29),
    "bmi": (7, 0, 1, 3),
    "avx2": (7, 0, 1, 5),
    "bmi2": (7, 0, 1, 8),
    "avx512f": (7, 0, 1, 16),
    "avx512dq": (7, 0, 1, 17),
    "adx": (7, 0, 1, 19),
    "avx512ifma": (7, 0, 1, 21),
    "avx512cd": (7, 0, 1, 28),
    "avx512bw": (7, 0, 1, 30),
    "avx512vl": (7, 0, 1, 31),
    "avx512vbmi": (7, 0, 2, 1),
    "avx512vbmi2": (7, 0, 2, 6),
    "gfni": (7, 0, 2, 8),
    "vaes": (7, 0, 2, 9),
    "vpclmulqdq": (7, 0, 2, 10),
    "avx512vnni": (7, 0, 2, 11),
    "avx512bitalg": (7, 0, 2, 12),
    "avx512vpopcntdq": (7, 0, 2, 14),
    "avx512fp16": (7, 0, 3, 23),
    "avxvnni": (7, 1, 0, 4),
    "avx512bf16": (7, 1, 0, 5),
    "avxifma": (7, 1, 0, 23),
    "avxvnniint8": (7, 1, 3, 4),
    "amx-bf16": (7, 0, 3, 22),
    "amx-tile": (7, 0, 3, 24),
    "amx-int8": (7, 0, 3, 25),
    "lzcnt": (0x80000001, 0, 2, 5),
}
"""LLVM's name -> where cpuid reports it: leaf, subleaf, word (of eax, ebx, ecx, edx), bit (Intel, Software Developer's
Manual, volume 2, CPUID)."""

X86_64_KEPT = {"avx": 0x6, "avx512": 0xE6, "amx": 0x60000}
"""How LLVM's name of a feature starts -> the bits of XCR0 that the system must have set for it: it keeps these parts of
the registers (ibid., volume 1, 13.3)."""
