"""Sums, differences and products of int32 and int64 that wrap where they overflow, as NumPy's and every framework's do.

TVM tells LLVM that they never overflow, and LLVM then compares operands in place of a difference, or widens the sum
behind one; TVM's own simplifier believes it, too. Computed with twice the bits and cut, nothing can overflow, and LLVM
makes the same single instruction of it.
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
    return low_bits(type(node)(a, b), dtype)


def low_bits(x: Expr, dtype: str) -> Expr:
    """The low bits of an integer as one of `dtype`, with which TVM's simplifier cannot reckon.

    TVM takes a cast to fewer bits for one that loses nothing: of a cast uint8 value shifted into the sign it proves
    that it is not negative.
    """
    return tirx.reinterpret(dtype, tirx.Cast("uint" + dtype.removeprefix("u").removeprefix("int"), x))
