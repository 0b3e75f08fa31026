"""Integer rules of functions of one tensor: evaluated now for every integer value it can have.

sigmoid(x), x · clip(x + 3, 0, 6) / 6, gelu(x): any chain of elementwise operators on one 8- or 16-bit tensor is a table
of its values, and together with the quantize after it a table of integers.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...numerics.reference import domain
from ...op.base import constant, constant_value, shape_of
from ...op.relax_table import traits_of
from ...op.traits import Kind
from .context import Context, dequantized
from .hoist import evaluate
from .registry import integer_rule
from .tensors import NARROW, Mapped, Quantized


def as_mapped(expr: Any, context: Context) -> Mapped | None:
    """An operand as a function of integers, None if it is not one or has per-channel scales."""
    tensor = context.known(expr)
    if not isinstance(tensor, Quantized):
        return tensor
    if tensor.vectors or tensor.dtype not in NARROW or tensor.constants is None:
        return None
    if constant_value(tensor.data) is not None:
        return None
    return Mapped(tensor.data, dequantized(domain(tensor.dtype), *tensor.constants))


@integer_rule(Kind.POINTWISE, "qnn.float_function")
def tabulate(call: relax.Call, context: Context) -> Mapped | None:
    """The call as a function of the one tensor that its operands are functions of; other operands must be scalars."""
    is_cheap = traits_of(call).cheap
    if is_cheap is None:
        return None
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
    cheap = is_cheap and all(source.cheap for source in sources)
    return Mapped(data, evaluate(relax.Call(call.op, args, call.attrs, call.ty_args)), cheap)
