"""Registers products on x86."""

from __future__ import annotations

from ..cpu.registration import register_products
from .intrin import INSTRUCTIONS

register_products(INSTRUCTIONS, "x86")
