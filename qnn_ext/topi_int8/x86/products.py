"""Products on x86."""

from __future__ import annotations

from ..cpu.products import register_products
from .intrin import INSTRUCTIONS

register_products(INSTRUCTIONS, "x86")
