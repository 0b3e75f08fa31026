"""What all importers need to build a module: names, constants computed at import, errors that name their operator."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from .. import op as qnn
from ..errors import ModelFormatError, QnnError, UnsupportedOperatorError
from ..limits import check, check_elements, check_rank, count_expression
from ..op import compound
from ..op.arguments import data_of
from ..op.base import constant, constant_value, dims_of, shape_of
from ..op.cost import attribute
from ..op.folding import folded, leaves
from .size_rules import carried
from .sizes import Axes, Sizes
from .sizes import leaves as leaves_of

_CLIP = tvm.ir.Op.get("relax.clip")
_WINDOW = ("pool_size", "strides", "dilation")
_MOST_STEPS = 2**24  # for a window's extent and strides: kernels multiply them in 32 bits


def to_bfloat16(emit: Callable[[relax.Expr], relax.Expr], data: relax.Expr) -> relax.Expr:
    """A tensor of any dtype as bfloat16, rounded as float32: a cast alone rounds only what a kernel stores."""
    if str(data.ty.dtype) != "float32":
        data = emit(relax.op.astype(data, "float32"))
    return relax.op.astype(emit(qnn.bfloat16(data)), "bfloat16")


class Builder(relax.BlockBuilder):
    """Checks everything it emits against the limits of the import, whether our converters emit it or TVM's.

    layer: the name given to anything emitted without one
    sizes: which values have sizes known only at run time
    """

    layer = ""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sizes = Sizes(self, carried)

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression. Raises LimitError when the module, the call or its result becomes too big, or the import
        takes too long."""
        name_hint = name_hint or self.layer
        count_expression()
        if isinstance(expr, relax.Call):
            expr = self._with_bound_operands(expr)
            check_call(expr)
            expr = _with_ordered_bounds(expr)
        axes: Axes = {}
        if self.sizes.any_in(expr):
            expr, axes = self._with_sizes(expr)
        return self.sizes.set(self.emit_plain(expr, name_hint), axes)

    def _with_sizes(self, expr: relax.Expr) -> tuple[relax.Expr, Axes]:
        """What to emit for an expression that reads values with sizes known only at run time, and its own such
        sizes."""
        if isinstance(expr, relax.Call):
            return self.sizes.carried(expr)
        if isinstance(expr, relax.TupleGetItem):
            return expr, self.sizes.of(expr.tuple_value)
        self.sizes.refuse(list(leaves_of(expr)), "a tuple of such tensors")
        return expr, {}

    def emit_plain(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression that has been checked, whatever sizes it reads."""
        bound = super().emit(expr, name_hint or self.layer)
        if isinstance(bound.ty, relax.TensorType) and isinstance(bound.ty.shape, relax.ShapeExpr):
            check_elements([int(dim) for dim in dims_of(bound.ty) if isinstance(dim, tirx.IntImm)])
        return bound

    def normalize(self, expr: relax.Expr) -> relax.Expr:
        """An expression with its type, the calls nested in it bound. Raises as `emit` does."""
        if isinstance(expr, relax.Call):
            expr = self._with_bound_operands(expr)
            check_call(expr)
        return super().normalize(expr)

    def normalize_plain(self, expr: relax.Expr) -> relax.Expr:
        """An expression that has been checked, with its type."""
        return super().normalize(expr)

    def _with_bound_operands(self, call: relax.Call) -> relax.Call:
        """A call whose nested calls are each emitted first, so that they are checked as well, and those in tuples where
        there are sizes known only at run time."""
        given = call.args[:]
        args = [self.emit(arg) if isinstance(arg, relax.Call) else arg for arg in given]
        nested = any(isinstance(arg, relax.Call) for arg in given)
        for index, arg in enumerate(args):
            if isinstance(arg, relax.Tuple) and not self.sizes.none:
                fields = [self.emit(field) if isinstance(field, relax.Call) else field for field in arg.fields]
                args[index], nested = relax.Tuple(fields), True
        return relax.Call(call.op, args, call.attrs, call.ty_args) if nested else call


def check_call(call: relax.Call) -> None:
    """Raises LimitError when a call has too many operands, or absurd padding, UnsupportedOperatorError when it asks for
    a shape with too many dimensions or for a window that no kernel supports."""
    check("operands", len(leaves(call)), "a call")
    for arg in call.args[:]:
        if isinstance(arg, relax.ShapeExpr):
            check_rank(len(arg.values))
    padding = attribute(call, "padding")
    if padding is not None and isinstance(data_of(call).ty, relax.TensorType):
        _check_padded(call, [int(width) for width in padding])
    for name in _WINDOW:
        steps = [int(step) for step in attribute(call, name) or ()]
        if any(not 0 < step <= _MOST_STEPS for step in steps):
            raise UnsupportedOperatorError(f"{name} {steps} are out of the supported range of 1 to {_MOST_STEPS:,}")


def _with_ordered_bounds(call: relax.Call) -> relax.Call:
    """R.clip with its bounds in order, within an integer's range: where bounds cross, PyTorch, NumPy and ONNX Runtime
    use the upper one, TVM the lower."""
    if call.op != _CLIP or not isinstance(data_of(call).ty, relax.TensorType):
        return call
    data, *bounds = call.args
    dtype, given = str(data.ty.dtype), [bound.value for bound in bounds]
    low, high = given
    if dtype.startswith(("int", "uint")):
        low, high = (min(max(bound, np.iinfo(dtype).min), np.iinfo(dtype).max) for bound in given)
    low = min(low, high)
    return call if [low, high] == given else relax.op.clip(data, low, high)


def _check_padded(call: relax.Call, padding: list[int]) -> None:
    """Some kernels materialize the padded image, so it must have a size that a tensor can have."""
    check("padding", max(padding, default=0), "a window")
    layout = attribute(call, "data_layout") or attribute(call, "layout") or ""
    spatial = [axis for axis, letter in enumerate(str(layout)) if letter in "DHW"]
    shape = [int(dim) for dim in data_of(call).ty.shape]
    if len(padding) != 2 * len(spatial) or len(shape) != len(str(layout)):
        return  # the type rule will refuse it
    for axis, before, after in zip(spatial, padding[: len(spatial)], padding[len(spatial) :], strict=True):
        shape[axis] += before + after
    check_elements(shape, "the padded image")


def bind(builder: relax.BlockBuilder, expr: relax.Expr, name: str) -> relax.Expr:
    """`expr` bound to a variable; constants and variables stay as they are."""
    if isinstance(expr, relax.Var) or constant_value(expr) is not None:
        return expr
    return builder.emit(expr, identifier(name))


def sign_or_nan(emit: Callable[[relax.Expr], relax.Expr], x: relax.Expr) -> relax.Expr:
    """−1, 0 or 1 by the sign of x, and NaN where a float is NaN; R.sign gives 0 there, as PyTorch does."""
    sign = relax.op.sign(x)
    if not str(x.ty.dtype).startswith(("float", "bfloat")):
        return sign
    return relax.op.where(emit(relax.op.isnan(x)), x, emit(sign))


def fold(expr: relax.Expr, bound: relax.Expr) -> relax.Expr:
    """A call whose tensor arguments are all constant, as a constant, unless that would be big; otherwise `bound`, the
    variable it is bound to. Shape arithmetic and float16 weights need this. The dead binding is removed later."""
    found = folded(expr) if isinstance(expr, relax.Call) else None
    return bound if found is None else found


def padded(
    emit: Callable[[relax.Expr], relax.Expr], data: relax.Expr, widths: Sequence[int], value: float
) -> relax.Expr:
    """`data` padded with `value` by (before, after) pairs. Relax stores the value as a float64: an int64 beyond 2⁵³ is
    brought in by an exclusive or before and after the padding, which is exact."""
    if isinstance(value, int) and abs(value) > 2**53:
        mask = constant(np.asarray(value, str(data.ty.dtype)))
        around = emit(relax.op.nn.pad(emit(relax.op.bitwise_xor(data, mask)), widths, "constant", 0))
        return relax.op.bitwise_xor(around, mask)
    return relax.op.nn.pad(data, widths, "constant", float(value))


def group_norm(
    emit: Callable[[relax.Expr], relax.Expr],
    data: relax.Expr,
    gamma: relax.Expr,
    beta: relax.Expr,
    groups: int,
    epsilon: float,
) -> relax.Expr:
    """Relax's group normalization of (N, C, …), also of (N, C), which has none of the axes that it wants to normalize
    over."""
    shape = shape_of(data)
    spatial = shape if len(shape) > 2 else (*shape, 1)
    data = compound.reshape(data, spatial, emit)
    result = relax.op.nn.group_norm(data, gamma, beta, groups, 1, list(range(2, len(spatial))), epsilon)
    return result if spatial == shape else relax.op.reshape(emit(result), shape)


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number appended to those that repeat an earlier one."""
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
    cleaned = re.sub("[^0-9A-Za-z]", "_", name).strip("_")
    return f"t{cleaned}" if cleaned[:1].isdigit() else cleaned


def _contradiction(label: str, error: Exception) -> QnnError:
    """The message of an error raised by a type rule of TVM's own operators: the file contradicts itself."""
    return ModelFormatError(f"{label}: inputs and attributes do not match: {reason(error)}; export the model again")


@contextmanager
def blaming(
    label: str | Callable[[], str], unexpected: Callable[[str, Exception], QnnError] = _contradiction
) -> Iterator[None]:
    """Turns every error within into one of ours that names the operator.

    label:      the operator's label, or a function that returns it, called only on an error
    unexpected: turns a foreign error into one of ours
    """
    try:
        yield
    except Exception as error:
        text = label if isinstance(label, str) else label()
        if isinstance(error, QnnError) and text in str(error):
            raise
        raise (_known(text, error) or unexpected(text, error)) from error


def _known(label: str, error: Exception) -> QnnError | None:
    if isinstance(error, QnnError):
        return type(error)(f"{label}: {error}")
    if isinstance(error, MemoryError):
        return ModelFormatError(f"{label}: needs more memory than is available: {error}")
    if isinstance(error, ArithmeticError):
        return ModelFormatError(f"{label}: scales or attributes are far out of range: {error}")
    return None


def reason(error: Exception) -> str:
    """The last line of a message, with operators that TVM prints in full reduced to their names."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r'ir\.Op\(.*?, name="([\w.]+)".*support_level=\d+\)', r"\1", lines[-1]).rstrip(".")
