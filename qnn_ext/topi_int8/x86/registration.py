"""Registers products on x86."""

from __future__ import annotations

from functools import partial

from ...targets.families import X86
from ..cpu.bfloat16 import HALVES, widening_of
from ..cpu.fma import instructions_of
from ..cpu.registration import LOWEST_PRIORITY, register_products
from .amx import TDPBF16PS, TDPBUSD, where_faster
from .intrin import BFLOAT16_DOTS, INSTRUCTIONS

register_products(INSTRUCTIONS, "x86")
for _matrix, _vector in ((TDPBUSD, INSTRUCTIONS[0]), (TDPBF16PS, instructions_of(X86)[0])):
    _change = partial(where_faster, instruction=_matrix, other=_vector)
    register_products((_matrix,), "x86", LOWEST_PRIORITY + len(INSTRUCTIONS), _change)
register_products(instructions_of(X86), "x86")
register_products(BFLOAT16_DOTS, "x86")
for _weight_dtype in HALVES:
    register_products(widening_of(X86, _weight_dtype), "x86")
