"""Integer rules of functions of one tensor: evaluated now for every integer it can hold.

sigmoid(x), x · clip(x + 3, 0, 6) / 6, gelu(x): whatever chain of elementwise operators follows one 8- or 16-bit tensor
is a table of its values, and with the quantize behind it a table of integers.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...numerics.reference import domain
from ...op.base import constant, constant_value, shape_of
from .hoist import evaluate
from .rules import integer_rule
from .tensors import NARROW, Mapped, Quantized
from .walker import Context, dequantized

# operators that take no longer than a look-up
_CHEAP = frozenset({
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "abs", "square", "clip", "nn.relu",
    "nn.relu6", "nn.leakyrelu", "floor", "ceil", "round", "sign", "where",
    "greater", "greater_equal", "less", "less_equal", "equal", "not_equal",
})  # fmt: skip
_COSTLY = (
    "power", "sqrt", "rsqrt", "exp", "log", "erf", "tanh", "sigmoid", "sin", "cos", "tan", "asin", "acos", "atan",
    "sinh", "cosh", "asinh", "acosh", "atanh", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus", "nn.selu",
)  # fmt: skip


def as_mapped(expr: Any, context: Context) -> Mapped | None:
    """An operand as a function of its integers, None when it is none or has scales per channel."""
    tensor = context.known(expr)
    if not isinstance(tensor, Quantized):
        return tensor
    if tensor.vectors or tensor.dtype not in NARROW or tensor.constants is None:
        return None
    if constant_value(tensor.data) is not None:
        return None
    return Mapped(tensor.data, dequantized(domain(tensor.dtype), *tensor.constants))


@integer_rule(*sorted(_CHEAP - {"add", "multiply", "maximum", "minimum", "where"}), *_COSTLY)
def tabulate(call: relax.Call, context: Context) -> Mapped | None:
    """The call as a function of the one tensor its operands are functions of; other operands must be scalars."""
    sources: list[Mapped] = []
    args: list[Any] = []
    for arg in call.args:
        mapped = as_mapped(arg, context)
        if mapped is not None:
            sources.append(mapped)
            args.append(constant(mapped.values))
            continue
        real = context.value(arg) if isinstance(arg, relax.Var) and context.known(arg) is None else arg
        value = constant_value(real) if isinstance(real, relax.Expr) else None
        if isinstance(real, relax.Var) or (value is not None and value.size != 1):
            return None
        args.append(real if value is None else constant(value.reshape(())))
    if not sources or any(not other.data.same_as(sources[0].data) for other in sources):
        return None
    data = sources[0].data
    if shape_of(call) != shape_of(data):
        return None
    cheap = str(call.op.name).removeprefix("relax.") in _CHEAP and all(source.cheap for source in sources)
    return Mapped(data, evaluate(relax.Call(call.op, args, call.attrs, call.ty_args)), cheap)
