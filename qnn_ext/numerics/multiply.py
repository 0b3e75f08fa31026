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


FITS, ROUNDS = 1, 2


def multiplied(x: Expr, multiplier: Expr, up: Expr, down: Expr, facts: int = 0) -> Expr:
    """`tir.multiply_tflite` as int32, with the shift in two parts: up = max(shift, 0), down = min(shift, 0).

    x, multiplier ≥ 0, up and down are int32.
    facts: FITS if |x · 2^up| < 2³⁰ is known, ROUNDS if down < 0 is known of all, or both
    """
    return tirx.call_intrin("int32", MULTIPLY, x, multiplier, up, down, tirx.const(facts, "int32"))


def facts_of(call: Expr) -> int:
    """The facts that are known of the operator's arguments, which vectorization may have broadcast."""
    facts = call.args[4]
    return int(facts.value if isinstance(facts, tirx.Broadcast) else facts)


def is_multiply(node: Expr) -> bool:
    """Whether an expression is the operator."""
    return is_call(node, MULTIPLY)


def in_64_bits(call: Expr) -> Expr:
    """The operator on scalars as ordinary TIR."""
    x, multiplier, up, down, _ = call.args
    return tir.multiply_tflite(x, multiplier, up + down).astype("int32")


define(MULTIPLY, "x * multiplier * 2^(up + down)", 5, in_64_bits)
