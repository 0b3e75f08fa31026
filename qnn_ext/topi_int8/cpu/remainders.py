"""Remainders of loop variables by powers of two, in a form that LLVM's vectorizer understands.

LLVM reads `v % 4` as the two lowest bits of v, which count up like v until they wrap. The vectorizer of TVM 0.27's LLVM
forgets that they do: of two nested loops, the inner one 16 long, x[v % 4] may read x[0 … 7]. It does for AVX-512, AVX2
and SSE alike. A quotient by multiplication and shift, as compilers make it for other divisors, hides the bits.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

_MOST = 1 << 29  # of a value: its product with the factor stays below 2^63
_SURPLUS = 11
"""A factor of 2^k + 1 LLVM still takes for a shift and a sum, and that for a mask; 2^k + 11 it does not."""


def without_masks(body: tirx.Stmt) -> tirx.Stmt:
    """The statement with v mod 2^k as v − 2^k·⌊v / 2^k⌋ wherever v is known to be at least 0 and below 2^29."""
    analyzer = Analyzer()

    def bind(loop: tirx.For) -> None:
        analyzer.bind(loop.loop_var, ir.Range.from_min_extent(loop.min, loop.extent))

    tvm_ffi.structural_walk(body, (tirx.For, bind))
    return tvm_ffi.structural_map(body, (tirx.FloorMod, lambda node: _remainder(node, analyzer)))


def _remainder(node: tirx.FloorMod, analyzer: Analyzer) -> Any:
    if not isinstance(node.b, tirx.IntImm) or str(node.ty.dtype) not in ("int32", "int64"):
        return node
    divisor = int(node.b)
    bound = analyzer.const_int_bound(node.a)
    if divisor < 2 or divisor & (divisor - 1) or bound.min_value < 0 or bound.max_value >= _MOST:
        return node
    return node.a - _quotient(node.a, int(bound.max_value), divisor) * node.b


def _quotient(value: Any, largest: int, divisor: int) -> Any:
    """⌊value·(2^s/d + 11) / 2^s⌋, which is ⌊value/d⌋ for it exceeds value/d by 11·value/2^s < 1/d."""
    shift = (_SURPLUS * (largest + 1) * divisor - 1).bit_length()
    factor = (1 << shift) // divisor + _SURPLUS
    dtype = "int32" if largest * factor < 1 << 31 and shift < 31 else "int64"
    product = value.astype(dtype) * tirx.const(factor, dtype)
    return (product >> tirx.const(shift, dtype)).astype(str(value.ty.dtype))
