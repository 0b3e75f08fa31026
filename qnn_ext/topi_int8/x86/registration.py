"""Registers products on x86."""

from __future__ import annotations

from ...targets.families import X86
from ..cpu.bfloat16 import HALVES, widening_of
from ..cpu.fma import instructions_of
from ..cpu.registration import LOWEST_PRIORITY, register_products
from .amx import TDPBUSD, where_faster
from .intrin import BFLOAT16_DOTS, INSTRUCTIONS

register_products(INSTRUCTIONS, "x86")
register_products((TDPBUSD,), "x86", LOWEST_PRIORITY + len(INSTRUCTIONS), where_faster)
register_products(instructions_of(X86), "x86")
register_products(BFLOAT16_DOTS, "x86")
for _weight_dtype in HALVES:
    register_products(widening_of(X86, _weight_dtype), "x86")
