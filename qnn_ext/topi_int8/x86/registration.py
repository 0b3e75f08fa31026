"""Registers products on x86."""

from __future__ import annotations

from ...targets.families import X86
from ..cpu.bfloat16 import HALVES, dots_of, widening_of
from ..cpu.fma import instructions_of
from ..cpu.registration import register_products
from .intrin import INSTRUCTIONS

register_products(INSTRUCTIONS, "x86")
register_products(instructions_of(X86), "x86")
register_products(dots_of(X86, "llvm.x86.avx512bf16.dpbf16ps.{bits}"), "x86")
for _weight_dtype in HALVES:
    register_products(widening_of(X86, _weight_dtype), "x86")
