"""Dot-product instructions of x86."""

from __future__ import annotations

from ...targets.families import X86
from ..cpu.bfloat16 import dots_of
from ..cpu.dot import DotInstruction


def _instruction(name: str, depth: int, dtypes: tuple[str, str], llvm: str, accumulates: bool) -> DotInstruction:
    product = X86.product(name)
    return DotInstruction(
        name=name,
        product=product,
        lanes=product.registers.lanes(32),
        depth=depth,
        data_dtype=dtypes[0],
        weight_dtype=dtypes[1],
        llvm=llvm,
        accumulates=accumulates,
        backend=X86,
    )


# Fastest first.
INSTRUCTIONS = (
    _instruction("vpdpbusd_512", 4, ("uint8", "int8"), "llvm.x86.avx512.vpdpbusd.512", True),
    _instruction("vpdpbusd_256", 4, ("uint8", "int8"), "llvm.x86.avx512.vpdpbusd.256", True),
    _instruction("vpmaddwd_512", 2, ("int16", "int16"), "llvm.x86.avx512.pmaddw.d.512", False),
    _instruction("vpmaddwd_256", 2, ("int16", "int16"), "llvm.x86.avx2.pmadd.wd", False),
    _instruction("pmaddwd_128", 2, ("int16", "int16"), "llvm.x86.sse2.pmadd.wd", False),
)

BFLOAT16_DOTS = dots_of(X86, "llvm.x86.avx512bf16.dpbf16ps.{bits}")
