"""Registers products on ARM CPUs."""

from __future__ import annotations

from ...targets.families import AARCH64 as BACKEND_64
from ..cpu.bfloat16 import HALVES, widening_of
from ..cpu.fma import instructions_of
from ..cpu.registration import register_products
from .fma import Fmla, WideningFmla, bfloat16_of, float16_of
from .intrin import AARCH64, ARM32

register_products(AARCH64, "arm_cpu")
register_products(ARM32, "arm_cpu")
register_products(instructions_of(BACKEND_64, Fmla), "arm_cpu")
register_products(bfloat16_of(BACKEND_64), "arm_cpu")
register_products(float16_of(BACKEND_64), "arm_cpu")
for _weight_dtype in HALVES:
    register_products(widening_of(BACKEND_64, _weight_dtype, WideningFmla), "arm_cpu")
