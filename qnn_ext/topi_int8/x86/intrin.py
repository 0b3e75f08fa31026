"""Dot-product instructions of x86. `vpmaddubsw` is absent on purpose: it saturates."""

from __future__ import annotations

from ..cpu.dot import DotInstruction

# Fastest first.
INSTRUCTIONS = (
    DotInstruction(
        name="vpdpbusd_512",
        features=(("avx512vnni", "avx512bw"),),
        lanes=16,
        depth=4,
        data_dtype="uint8",
        weight_dtype="int8",
        llvm="llvm.x86.avx512.vpdpbusd.512",
        accumulates=True,
        registers=32,
    ),
    DotInstruction(
        name="vpdpbusd_256",
        features=(("avxvnni",), ("avx512vnni", "avx512vl")),  # one instruction, two encodings
        lanes=8,
        depth=4,
        data_dtype="uint8",
        weight_dtype="int8",
        llvm="llvm.x86.avx512.vpdpbusd.256",
        accumulates=True,
        registers=16,
    ),
    DotInstruction(
        name="vpmaddwd_512",
        features=(("avx512bw",),),
        lanes=16,
        depth=2,
        data_dtype="int16",
        weight_dtype="int16",
        llvm="llvm.x86.avx512.pmaddw.d.512",
        accumulates=False,
        registers=32,
    ),
    DotInstruction(
        name="vpmaddwd_256",
        features=(("avx2",),),
        lanes=8,
        depth=2,
        data_dtype="int16",
        weight_dtype="int16",
        llvm="llvm.x86.avx2.pmadd.wd",
        accumulates=False,
        registers=16,
    ),
    DotInstruction(
        name="pmaddwd_128",
        features=(("sse2",),),
        lanes=4,
        depth=2,
        data_dtype="int16",
        weight_dtype="int16",
        llvm="llvm.x86.sse2.pmadd.wd",
        accumulates=False,
        registers=16,
    ),
)
