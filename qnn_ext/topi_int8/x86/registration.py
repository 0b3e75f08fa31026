"""Registers products on x86."""

from __future__ import annotations

from ...targets.families import X86
from ..cpu.bfloat16 import HALVES, widening_of
from ..cpu.fma import instructions_of
from ..cpu.registration import register_products
from .intrin import BFLOAT16_DOTS, INSTRUCTIONS

register_products(INSTRUCTIONS, "x86")
register_products(instructions_of(X86), "x86")
register_products(BFLOAT16_DOTS, "x86")
for _weight_dtype in HALVES:
    register_products(widening_of(X86, _weight_dtype), "x86")
