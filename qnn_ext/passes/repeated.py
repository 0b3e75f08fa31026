"""Repeated: what is computed again from the same tensor is computed once: dynamic quantization of each product's data.

ONNX Runtime's `quantize_dynamic` reshapes, measures and quantizes the data of every product, although the products of
attention's queries, keys and values read the same tensor. Only such steps are looked for, which are kernels of their
own: reshapes, reductions, quantize, and numbers made from those. Other operators are better repeated in the kernels
that read them, as dequantize is.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import tvm_ffi
from tvm import IRModule, relax, tirx

from ..op.base import constant_value
from ..op.relax_table import traits_of
from ..op.traits import Kind
from .rewrite import Rebuild, op_name

_STEPS = ("qnn.quantize", "qnn.range_scale", "qnn.range_zero_point")
SMALL = 64  # elements of constants that are compared by value; larger ones are equal if they are the same


def compute_once(mod: IRModule) -> IRModule:
    """`mod` with every second reshape, reduction, quantize or number that equals an earlier one replaced by that."""
    new = Rebuild(mod["main"])
    known: dict[Hashable, Any] = {}
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            key = _key(value) if _is_candidate(value, binding.var) else None
            if key is None or key not in known:
                bound = new.bind(binding.var, value)
                if key is not None:
                    known[key] = bound
            else:
                new.environment[binding.var] = known[key]
    return new.live_module()


def _is_candidate(value: Any, var: relax.Var) -> bool:
    """Whether it is one of the steps of quantization at run time. Their numbers are scalars or ranges."""
    if not op_name(value) or not value.op.get_attr("FPurity"):
        return False
    traits = traits_of(value)
    if traits.reshapes or traits.reduces or op_name(value) in _STEPS:
        return True
    return traits.kind in (Kind.POINTWISE, Kind.JOIN) and _elements(var) in (1, 2)


def _elements(var: relax.Var) -> int | None:
    shape = getattr(var.ty, "shape", None)
    if shape is None or not all(isinstance(dim, tirx.IntImm) for dim in shape):
        return None
    return math.prod(int(dim) for dim in shape)


def _key(call: relax.Call) -> Hashable:
    """Equal for calls with equal results."""
    attributes = None if call.attrs is None else tvm_ffi.StructuralKey(call.attrs)  # type: ignore[call-arg]
    return op_name(call), attributes, tuple(_operand_key(arg) for arg in call.args)


def _operand_key(operand: Any) -> Hashable:
    if isinstance(operand, relax.Tuple):
        return tuple(_operand_key(one) for one in operand.fields)
    if isinstance(operand, relax.Var):
        return operand
    value = constant_value(operand)
    if value is None:
        return tvm_ffi.StructuralKey(operand)  # type: ignore[call-arg]
    return (str(value.dtype), value.shape, value.tobytes()) if value.size <= SMALL else operand
