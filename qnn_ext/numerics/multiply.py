"""The TIR operator for TFLite's fixed-point multiplication, x · multiplier · 2^shift of int32, rounded twice.

It stays a separate operator until code generation for CPUs that have instructions for it, as ARM's do: in plain TIR it
needs 64 bits.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from . import tir
from .operator import define, is_call

Expr = Any
MULTIPLY = "tirx.qnn_multiply_tflite"


def multiplied(x: Expr, multiplier: Expr, up: Expr, down: Expr) -> Expr:
    """`tir.multiply_tflite` as int32, with the shift in two parts: up = max(shift, 0), down = min(shift, 0).

    x, multiplier ≥ 0, up and down are int32.
    """
    return tirx.call_intrin("int32", MULTIPLY, x, multiplier, up, down)


def is_multiply(node: Expr) -> bool:
    """Whether an expression is the operator."""
    return is_call(node, MULTIPLY)


def in_64_bits(call: Expr) -> Expr:
    """The operator on scalars as ordinary TIR."""
    x, multiplier, up, down = call.args
    return tir.multiply_tflite(x, multiplier, up + down).astype("int32")


define(MULTIPLY, "x * multiplier * 2^(up + down)", 4, in_64_bits)
