"""Registers products on ARM CPUs."""

from __future__ import annotations

from ..cpu.registration import register_products
from .intrin import AARCH64, ARM32

register_products(AARCH64, "arm_cpu")
register_products(ARM32, "arm_cpu")
