"""Functions of one 8-bit tensor that are computed in several steps, one of them a lookup, become a single lookup.

x · sigmoid(x) in ONNX QDQ is a table of x and a product of x with its result, each rounded: a table too. The entries
are what the operators' references give for all 256 values, so results stay equal bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import IRModule, relax

from .. import op as qnn
from ..numerics.reference import domain
from ..op.arguments import argument
from ..op.base import constant, constant_value, definition_of, has_type, shape_of
from ..op.folding import folded, leaves
from ..op.relax_table import traits_of
from ..op.table import TABLE
from ..op.traits import Kind
from .rewrite import Rebuild

_BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class _Function:
    """A variable as a function of an 8-bit one.

    values:  the result for every value of the source
    looked_up: whether one of its steps is a table
    """

    source: relax.Var
    values: np.ndarray
    looked_up: bool


def join_tables(mod: IRModule) -> IRModule:
    """`mod` with such functions replaced by `qnn.table`; steps that nothing else reads disappear."""
    if not any(_is_table(binding.value) for block in mod["main"].body.blocks for binding in block.bindings):
        return mod
    new = Rebuild(mod["main"])
    functions: dict[relax.Var, _Function] = {}
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            found = _function(value, functions)
            joined = found is not None and found.looked_up and str(found.values.dtype) in _BYTES
            if found is not None and joined:
                value = qnn.table(found.source, constant(found.values))
            var = new.bind(binding.var, value)
            if found is not None:
                functions[var] = found
    return new.live_module()


def _is_table(value: Any) -> bool:
    return definition_of(value) is TABLE


def _function(value: Any, functions: dict[relax.Var, _Function]) -> _Function | None:
    """The value as a function of one 8-bit variable; None if it is none, or its operands are broadcast."""
    if definition_of(value) is None or traits_of(value).kind is not Kind.POINTWISE:
        return None
    variables = [leaf for leaf in leaves(value) if isinstance(leaf, relax.Var)]
    known = [functions.get(var) for var in variables]
    sources = {var if found is None else found.source for var, found in zip(variables, known, strict=True)}
    if len(sources) != 1 or not all(isinstance(arg, relax.Var) or _same_for_all(arg, value) for arg in value.args):
        return None
    (source,) = sources
    if not has_type(source) or str(source.ty.dtype) not in _BYTES or not shape_of(source):
        return None
    if any(shape_of(var) != shape_of(source) for var in variables):
        return None
    shape = (*(1 for _ in shape_of(source)[1:]), -1)
    every = domain(str(source.ty.dtype))
    operands = {
        var: constant((every if found is None else found.values).reshape(shape))
        for var, found in zip(variables, known, strict=True)
    }
    result = folded(relax.Call(value.op, [operands.get(arg, arg) for arg in value.args], value.attrs, value.ty_args))
    values = None if result is None else constant_value(result)
    if values is None:
        return None
    looked_up = _is_table(value) or any(found is not None and found.looked_up for found in known)
    return _Function(source, values.reshape(-1), looked_up)


def _same_for_all(arg: Any, call: relax.Call) -> bool:
    """Whether a constant argument is the same for all elements: a single number, or the table of a lookup."""
    value = constant_value(arg)
    return value is not None and (value.ndim == 0 or (_is_table(call) and argument(call, "table").same_as(arg)))
