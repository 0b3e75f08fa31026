"""Sums, differences and products of int32 and int64 that wrap when they overflow, as in NumPy and every framework.

TVM tells LLVM that they never overflow, and LLVM then compares operands instead of their difference, or widens the
sum that contains one; TVM's own simplifier assumes the same. Computed with twice the bits and truncated, nothing can
overflow, and LLVM generates the same single instruction.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

Expr = Any
KINDS = (tirx.Add, tirx.Sub, tirx.Mul)
_TWICE = {"int32": "int64", "int64": "int128", "uint32": "uint64", "uint64": "uint128"}


def wrapped(node: Expr, widest: str = "int128") -> Expr:
    """One of KINDS of integers, wrapping; those of 8 and 16 bits, and of floats, are unchanged.

    widest: the widest integers that code can be generated for; if that is int64, int64 is also unchanged
    """
    dtype = str(node.ty.dtype)
    if dtype not in _TWICE or (widest == "int64" and dtype.endswith("64")):
        return node
    a, b = (tirx.Cast(_TWICE[dtype], operand) for operand in (node.a, node.b))
    return low_bits(type(node)(a, b), dtype)


def low_bits(x: Expr, dtype: str) -> Expr:
    """The low bits of an integer as `dtype`, in a form that TVM's simplifier cannot reason about.

    TVM assumes that a cast to fewer bits loses nothing: of a cast uint8 value shifted into the sign bit, it proves that
    it is not negative.
    """
    return tirx.reinterpret(dtype, tirx.Cast("uint" + dtype.removeprefix("u").removeprefix("int"), x))
