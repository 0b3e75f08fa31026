"""Integer rules of functions of one tensor: evaluated now for every integer it can hold.

sigmoid(x), x · clip(x + 3, 0, 6) / 6, gelu(x): whatever chain of elementwise operators follows one 8- or 16-bit tensor
is a table of its values, and with the quantize behind it a table of integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ...interpreter import interpret
from ...numerics.reference import domain
from ...op.base import constant, constant_value
from .products import NARROW, _bias
from .rules import RULES, integer_rule
from .tensors import Mapped, Quantized
from .walker import Context, materialize


def as_mapped(expr: Any, context: Context) -> Mapped | None:
    """An operand as a function of its integers, None when it is none or has scales per channel."""
    tensor = context.known(expr)
    if isinstance(tensor, Mapped) or tensor is None:
        return tensor
    if (
        tensor.vectors
        or tensor.dtype not in NARROW
        or tensor.constants is None
        or constant_value(tensor.data) is not None
    ):
        return None
    values = constant_value(materialize(Quantized(constant(domain(tensor.dtype)), tensor.scale, tensor.zero_point)))
    return None if values is None else Mapped(tensor.data, values)


def tabulate(call: relax.Call, context: Context) -> Mapped | None:
    """The call as a function of the one tensor its operands are functions of; other operands must be scalars."""
    source: Mapped | None = None
    args: list[Any] = []
    for arg in call.args:
        mapped = as_mapped(arg, context)
        if mapped is not None:
            if source is not None and not mapped.data.same_as(source.data):
                return None
            source = mapped
            args.append(constant(mapped.values))
            continue
        value = constant_value(arg) if isinstance(arg, relax.Expr) else None
        if isinstance(arg, relax.Var) or (value is not None and value.size != 1):
            return None
        args.append(arg if value is None else constant(value.reshape(())))
    if source is None or [int(d) for d in call.ty.shape] != [int(d) for d in source.data.ty.shape]:
        return None
    return Mapped(source.data, _evaluate(relax.Call(call.op, args, call.attrs, call.ty_args)))


def _evaluate(call: relax.Call) -> np.ndarray:
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        result = builder.emit(call)
        builder.emit_func_output(result)
    return np.asarray(interpret(builder.get(), [])[0], np.float32)


@integer_rule(
    "subtract",
    "multiply",
    "divide",
    "power",
    "negative",
    "abs",
    "square",
    "sqrt",
    "rsqrt",
    "exp",
    "log",
    "erf",
    "tanh",
    "sigmoid",
    "sin",
    "cos",
    "tan",
    "floor",
    "ceil",
    "round",
    "sign",
    "clip",
    "nn.relu",
    "nn.relu6",
    "nn.leakyrelu",
    "nn.gelu",
    "nn.gelu_tanh",
    "nn.silu",
    "nn.softplus",
    "nn.selu",
)
def _function(call: relax.Call, context: Context) -> Any:
    return tabulate(call, context)


def _add(call: relax.Call, context: Context) -> Any:
    """A bias, or one more step of a function."""
    result = _bias(call, context)
    return tabulate(call, context) if result is None else result


RULES["add"] = _add
