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
from ..limits import check, check_elements, check_rank, checkpoint, count_expression, most_folded
from ..op.base import constant, constant_value
from ..op.cost import attribute, is_quick

_SMALL_RESULT = 2**22  # elements that folding may make out of little


class Builder(relax.BlockBuilder):
    """Checks the limits of the import with everything it emits, whether converters of ours emit it or TVM's."""

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression. Raises LimitError when the module, the call or its result becomes too big, or the import
        takes too long."""
        count_expression()
        if isinstance(expr, relax.Call):
            check_call(expr)
        bound = super().emit(expr, name_hint)
        if isinstance(bound.ty, relax.TensorType) and isinstance(bound.ty.shape, relax.ShapeExpr):
            check_elements([int(dim) for dim in bound.ty.shape if isinstance(dim, tirx.IntImm)])
        return bound


def check_call(call: relax.Call) -> None:
    """Raises LimitError when a call has too many operands, or pads its image absurdly, UnsupportedOperatorError when it
    asks for a shape with too many dimensions."""
    check("operands", len(leaves(call)), "a call")
    for arg in call.args:
        if isinstance(arg, relax.ShapeExpr):
            check_rank(len(arg.values))
    padding = attribute(call, "padding")
    if padding is not None and isinstance(call.args[0].ty, relax.TensorType):
        _check_padded(call, [int(width) for width in padding])


def _check_padded(call: relax.Call, padding: list[int]) -> None:
    """Some kernels write the padded image down: it must be a tensor that can be."""
    check("padding", max(padding, default=0), "a window")
    layout = attribute(call, "data_layout") or attribute(call, "layout") or ""
    spatial = [axis for axis, letter in enumerate(str(layout)) if letter in "DHW"]
    shape = [int(dim) for dim in call.args[0].ty.shape]
    if len(padding) != 2 * len(spatial) or len(shape) != len(str(layout)):
        return  # to be refused by the type rule
    for axis, before, after in zip(spatial, padding[: len(spatial)], padding[len(spatial) :], strict=True):
        shape[axis] += before + after
    check_elements(shape, "the padded image")


def bind(builder: relax.BlockBuilder, expr: relax.Expr, name: str) -> relax.Expr:
    """`expr` bound to a variable; constants and variables stay as they are."""
    if isinstance(expr, relax.Var) or constant_value(expr) is not None:
        return expr
    return builder.emit(expr, identifier(name))


def fold(expr: relax.Expr, bound: relax.Expr) -> relax.Expr:
    """A call whose tensor arguments are all constant as a constant, unless that would be big; otherwise `bound`, the
    variable it is bound to. Shape arithmetic needs that, and float16 weights. The dead binding is removed later."""
    if not isinstance(expr, relax.Call):
        return bound
    values = [constant_value(leaf) for leaf in leaves(expr)]
    known = [value for value in values if value is not None]
    if known and len(known) == len(values) and _can_fold(expr, bound.ty, known):
        checkpoint()
        builder = relax.BlockBuilder()
        with builder.function("main", []):
            builder.emit_func_output(builder.emit(expr))
        with np.errstate(all="ignore"):  # the model's own arithmetic: it may well compute an infinity
            results = interpret(builder.get(), [])
        if len(results) == 1 and isinstance(bound.ty, relax.TensorType):
            return constant(results[0])
    return bound


def _can_fold(call: relax.Call, result: Any, operands: Sequence[np.ndarray]) -> bool:
    """Whether a result is cheap enough to compute it at import: small at all, or about as big as its operands, and made
    in a few seconds."""
    if not isinstance(result, relax.TensorType):
        return False
    size = math.prod(int(dim) for dim in result.shape)
    if size > min(max(_SMALL_RESULT, 2 * max(operand.size for operand in operands)), most_folded()):
        return False
    return is_quick(call, size, operands)


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
