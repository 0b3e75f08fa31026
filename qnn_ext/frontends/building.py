"""What all importers need to build a module: names, constants computed at import, errors that name their operator."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..errors import ModelFormatError, QnnError
from ..interpreter import interpret
from ..op.base import constant, constant_value, shape_of
from .limits import check_elements, checkpoint, count_expression

_SMALL_RESULT = 2**22  # elements that folding may make out of little


def bind(builder: relax.BlockBuilder, expr: relax.Expr, name: str) -> relax.Expr:
    """`expr` bound to a variable; constants and variables stay as they are. Raises LimitError when the result would be
    too big, or the import takes too long."""
    if isinstance(expr, relax.Var) or constant_value(expr) is not None:
        return expr
    count_expression()
    bound = builder.emit(expr, identifier(name))
    if isinstance(bound.ty, relax.TensorType):
        check_elements(shape_of(bound))
    return bound


def fold(expr: relax.Expr, bound: relax.Expr) -> relax.Expr:
    """A call whose tensor arguments are all constant as a constant, unless that would be big; otherwise `bound`, the
    variable it is bound to. Shape arithmetic needs that, and float16 weights. The dead binding is removed later."""
    if not isinstance(expr, relax.Call):
        return bound
    values = [constant_value(leaf) for leaf in leaves(expr)]
    known = [value for value in values if value is not None]
    if known and len(known) == len(values) and _can_fold(bound.ty, known):
        checkpoint()
        builder = relax.BlockBuilder()
        with builder.function("main", []):
            builder.emit_func_output(builder.emit(expr))
        with np.errstate(all="ignore"):  # the model's own arithmetic: it may well compute an infinity
            results = interpret(builder.get(), [])
        if len(results) == 1 and isinstance(bound.ty, relax.TensorType):
            return constant(results[0])
    return bound


def _can_fold(result: Any, operands: Sequence[np.ndarray]) -> bool:
    """Whether a result is small enough to compute it at import: small at all, or about as big as its operands."""
    if not isinstance(result, relax.TensorType):
        return False
    size = math.prod(int(dim) for dim in result.shape)
    return size <= max(_SMALL_RESULT, 2 * max(operand.size for operand in operands))


def padded(
    emit: Callable[[relax.Expr], relax.Expr], data: relax.Expr, widths: Sequence[int], value: float
) -> relax.Expr:
    """`data` with `value` around it, by (before, after) pairs. Relax has the value as a float64: an int64 beyond 2⁵³
    reaches the result by an exclusive or before and after, which is exact."""
    if isinstance(value, int) and abs(value) > 2**53:
        mask = constant(np.asarray(value, str(data.ty.dtype)))
        around = emit(relax.op.nn.pad(emit(relax.op.bitwise_xor(data, mask)), widths, "constant", 0))
        return relax.op.bitwise_xor(around, mask)
    return relax.op.nn.pad(data, widths, "constant", float(value))


def leaves(expr: Any) -> list[Any]:
    """The tensor arguments of a call, tuples opened; shapes and plain numbers left out."""
    found: list[Any] = []
    for arg in expr.args if isinstance(expr, relax.Call) else []:
        if isinstance(arg, relax.Tuple):
            found.extend(arg.fields)
        elif not isinstance(arg, (relax.ShapeExpr, tirx.IntImm, tirx.FloatImm)):
            found.append(arg)
    return found


def distinct(names: Sequence[str]) -> list[str]:
    """The names, later ones that repeat an earlier one with a number behind."""
    taken: dict[str, int] = {}
    result = []
    for name in names:
        unique = name
        while unique in taken:
            taken[name] += 1
            unique = f"{name}:{taken[name]}"
        taken[unique] = 0
        result.append(unique)
    return result


def identifier(name: str) -> str:
    """A tensor name as a Relax variable name."""
    cleaned = "".join(ch if ch.isalnum() and ch.isascii() else "_" for ch in name).strip("_")
    return f"t{cleaned}" if cleaned[:1].isdigit() else cleaned


@contextmanager
def blaming(label: str | Callable[[], str]) -> Iterator[None]:
    """Every error within becomes one of ours that names the operator. `label` may be a function, which is called only
    then."""
    try:
        yield
    except Exception as error:
        text = label if isinstance(label, str) else label()
        if isinstance(error, QnnError) and text in str(error):
            raise
        raise _blamed(text, error) from error


def _blamed(label: str, error: Exception) -> QnnError:
    if isinstance(error, QnnError):
        return type(error)(f"{label}: {error}")
    if isinstance(error, MemoryError):
        return ModelFormatError(f"{label}: needs more memory than there is: {error}")
    if isinstance(error, ArithmeticError):
        return ModelFormatError(f"{label}: scales or attributes are out of any sensible range: {error}")
    # a type rule of TVM's own operators, or a contradiction in the file
    return ModelFormatError(
        f"{label}: inputs and attributes do not fit together: {reason(error)}; export the model again"
    )


def reason(error: Exception) -> str:
    """The last line of a message, with the operators that TVM spells out reduced to their names."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r'ir\.Op\(.*?, name="([\w.]+)".*support_level=\d+\)', r"\1", lines[-1]).rstrip(".")
