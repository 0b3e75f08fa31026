"""Plain arithmetic that TVM's code generation or its LLVM miscompiles, rewritten to a form that both get right.

**Remainders of loop variables by powers of two.** LLVM treats `v % 4` as the two lowest bits of v, which count up with
v until they wrap. The vectorizer of TVM 0.27's LLVM forgets that they wrap: in two nested loops, the inner one of 16
iterations, x[v % 4] may read x[0 … 7], with AVX-512, AVX2 and SSE alike. A quotient by multiplication and shift, as
compilers generate it for other divisors, hides the bits.

**The bits of an integer zero.** TVM's code generation mistakes a reinterpreted zero for a null pointer's.

**Floats that cancel.** TVM's simplifier takes floats for real numbers in differences and comparisons: (x + y) − y
becomes x, which drops the rounding, x − x becomes 0 and x = x true, which they are not of NaN and ∞. It sees no equal
operands where one is read back from its bits, which costs nothing: LLVM puts the two casts together.

**Comparisons of truth values.** TVM's code generation compares them as floats, which LLVM refuses.

**Values that nothing reads.** TVM's simplifier finds constants, such as a quotient that is always 0, behind `let`s
whose variables they no longer read. The vectorizer takes such a `let` for a scalar, although its value has lanes, and
fails.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.tirx.analysis import undefined_vars

_MOST = 1 << 29  # bound of values, whose product with the factor stays below 2^63
_SURPLUS = 11
"""LLVM would still turn a factor of 2^k + 1 into a shift and a sum, and that into a mask, but not 2^k + 11."""


def without_masks(body: tirx.Stmt) -> tirx.Stmt:
    """The statement with v mod 2^k as v − 2^k·⌊v / 2^k⌋ wherever v is known to be non-negative and below 2^29."""
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
    """⌊value·(2^s/d + 11) / 2^s⌋, which is ⌊value/d⌋ because it exceeds value/d by 11·value/2^s < 1/d before ⌊·⌋."""
    shift = (_SURPLUS * (largest + 1) * divisor - 1).bit_length()
    factor = (1 << shift) // divisor + _SURPLUS
    dtype = "int32" if largest * factor < 1 << 31 and shift < 31 else "int64"
    product = value.astype(dtype) * tirx.const(factor, dtype)
    return (product >> tirx.const(shift, dtype)).astype(str(value.ty.dtype))


def without_zeros(body: tirx.Stmt) -> tirx.Stmt:
    """The statement with an integer zero in place of the reinterpreted bits of each zero."""
    return tvm_ffi.structural_map(body, (ir.Call, integer_zero))


def integer_zero(call: ir.Call) -> Any:
    """An integer zero for the reinterpreted bits of a zero, any other call unchanged."""
    named = isinstance(call.op, ir.Op) and call.op.name == "tirx.reinterpret"
    value = call.args[0] if named else None
    if not isinstance(value, tirx.IntImm) or int(value.value) != 0 or "int" not in str(call.ty.dtype):
        return call
    return tirx.const(0, str(call.ty.dtype))


def without_cancellation(body: tirx.Stmt) -> tirx.Stmt:
    """The statement with one operand of each float difference or comparison that TVM would simplify from its bits."""
    kinds = [(tirx.Sub, _difference), *((kind, _comparison) for kind in (tirx.EQ, tirx.NE, tirx.LE, tirx.GE))]
    return tvm_ffi.structural_map(body, kinds)


_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)


def without_truth_values(body: tirx.Stmt) -> tirx.Stmt:
    """The statement with truth values compared as integers."""
    return tvm_ffi.structural_map(body, [(kind, _of_integers) for kind in _COMPARISONS])


def without_unread(body: tirx.Stmt) -> tirx.Stmt:
    """The statement without the `let`s of expressions whose variables nothing reads."""
    return tvm_ffi.structural_map(body, (tirx.Let, lambda let: let if _reads(let.body, let.var) else let.body))


def _reads(value: Any, var: tirx.Var) -> bool:
    return any(var.same_as(free) for free in undefined_vars(value))


def _of_integers(node: Any) -> Any:
    if str(node.a.ty.dtype) != "bool":
        return node
    return type(node)(node.a.astype("int8"), node.b.astype("int8"))


def _difference(node: tirx.Sub) -> tirx.Sub:
    if not _is_float(node.a):
        return node
    same = tvm_ffi.structural_equal
    one, two = node.a, node.b
    cancels = same(one, two) or _is_term(one, two) or _is_term(two, one)
    cancels = cancels or (
        isinstance(one, tirx.Select) and isinstance(two, tirx.Select) and same(one.condition, two.condition)
    )
    return tirx.Sub(_from_bits(one), two) if cancels else node


def _is_term(term: Any, total: Any) -> bool:
    """Whether `total` is the sum of the term and something else."""
    return isinstance(total, tirx.Add) and any(tvm_ffi.structural_equal(part, term) for part in (total.a, total.b))


def _comparison(node: Any) -> Any:
    if not _is_float(node.a) or not tvm_ffi.structural_equal(node.a, node.b):
        return node
    return type(node)(_from_bits(node.a), node.b)


def _is_float(value: Any) -> bool:
    return str(value.ty.dtype).startswith("float")


def _from_bits(value: Any) -> Any:
    dtype = str(value.ty.dtype)
    return tirx.reinterpret(dtype, tirx.reinterpret(dtype.replace("float", "int"), value))
