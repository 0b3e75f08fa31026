"""The arguments of a call by name and by role, as the traits of its operator say."""

from __future__ import annotations

from typing import Any

from tvm import relax

from .relax_table import traits_of


def argument(call: relax.Call, name: str) -> Any:
    """The argument with this name."""
    return traits_of(call).argument(call, name)


def data_of(value: Any) -> Any:
    """The tensor an operator works on, or the first of several; of a tuple's item, the tuple. An operator without
    traits has its data first."""
    if isinstance(value, relax.TupleGetItem):
        return value.tuple_value
    traits = traits_of(value)
    return traits.argument(value, traits.data[0].name) if traits.data else value.args[0]


def factors_of(product: relax.Call) -> tuple[Any, Any]:
    """The two tensors that a product multiplies: data and weight, or the operands of a matrix product."""
    traits = traits_of(product)
    first, second = traits.data
    return traits.argument(product, first.name), traits.argument(product, second.name)


def with_arguments(call: relax.Call, **changes: Any) -> relax.Call:
    """The call with some arguments changed, by name."""
    traits, args = traits_of(call), list(call.args)
    for name, arg in changes.items():
        args[traits.index(name)] = arg
    return relax.Call(call.op, args, call.attrs, call.ty_args)


def with_data(call: relax.Call, *data: Any) -> relax.Call:
    """The call with its first data arguments changed: what `data_of` or `factors_of` gives."""
    names = (one.name for one in traits_of(call).data)
    return with_arguments(call, **dict(zip(names, data, strict=False)))
