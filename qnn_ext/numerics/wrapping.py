"""Sums, differences and products of int32 and int64 that wrap where they overflow, as NumPy's and every framework's do.

TVM tells LLVM that they never overflow, and LLVM then compares operands in place of a difference, or widens the sum
behind one. Computed with twice the bits and cut, nothing can overflow; LLVM makes the same single instruction of it.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

Expr = Any
KINDS = (tirx.Add, tirx.Sub, tirx.Mul)
_TWICE = {"int32": "int64", "int64": "int128", "uint32": "uint64", "uint64": "uint128"}


def wrapped(node: Expr, widest: str = "int128") -> Expr:
    """One of KINDS of integers, wrapping; of 8 and 16 bits, and of floats, as it is.

    widest: the integers that code can be generated for; with int64 alone, int64 stays as it is, too
    """
    dtype = str(node.ty.dtype)
    if dtype not in _TWICE or (widest == "int64" and dtype.endswith("64")):
        return node
    a, b = (tirx.Cast(_TWICE[dtype], operand) for operand in (node.a, node.b))
    return tirx.Cast(dtype, type(node)(a, b))
