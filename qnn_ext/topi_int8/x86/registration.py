"""Registers products on x86."""

from __future__ import annotations

from ...targets.families import X86
from ..cpu.fma import instructions_of
from ..cpu.registration import register_products
from .intrin import INSTRUCTIONS

register_products(INSTRUCTIONS, "x86")
register_products(instructions_of(X86), "x86")
