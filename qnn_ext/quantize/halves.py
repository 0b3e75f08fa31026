"""Halves: a float16 model computed in float32, so that its products can be quantized."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..module import QnnModule
from ..op.base import constant, constant_value
from ..op.loop import Loop, results_of
from ..passes.bodies import every_binding, with_changed_body
from ..passes.layout.propagation import rebuild
from ..passes.rewrite import Rebuild, op_name


def in_float32(module: QnnModule) -> QnnModule:
    """The module with all float16 tensors in float32, those of loops too; inputs, states and outputs keep their dtype.

    Results are not rounded to float16 on the way. A module that computes nothing in float16 stays as it is.
    """
    if not any(_is_half(binding.var) and op_name(binding.value) != "astype" for binding, _ in every_binding(module.ir)):
        return module
    mod = module.ir.clone()
    mod["main"] = _widened(module.ir["main"], ports=True)
    return replace(module, ir=mod)


def _is_half(expr: Any) -> bool:
    return isinstance(expr.ty, relax.TensorType) and str(expr.ty.dtype) == "float16"


def _widened(function: relax.Function, ports: bool) -> relax.Function:
    """A function in float32. ports: whether what it takes and returns stays float16"""
    new = Rebuild(function)
    params = [param if ports else _wide_variable(param) for param in function.params]
    with new.main(params):
        for old, param in zip(function.params, params, strict=True):
            new.environment[old] = _cast(new, param, "float32", param.name) if _is_half(param) else param
        for binding in new.bindings:
            value = new.substituted(binding.value)
            if isinstance(value, relax.Tuple):  # put where it is used
                new.environment[binding.var] = value
                continue
            bound = new.bind(binding.var, _in_float32(value))
            if _is_half(bound):  # an operator whose result is float16 whatever it reads
                new.environment[binding.var] = _cast(new, bound, "float32", binding.var.name)
        results = []
        for result in results_of(function):
            wide = _wide_constant(new.substituted(result))
            results.append(_cast(new, wide, "float16", "half") if ports and _is_half(result) else wide)
        new.result = relax.Tuple(results)
    return new.module()["main"]


def _cast(new: Rebuild, value: relax.Expr, dtype: str, name: str) -> relax.Expr:
    return new.builder.emit(relax.op.astype(value, dtype), name_hint=name)


def _wide_variable(var: relax.Var) -> relax.Var:
    return relax.Var(var.name, relax.TensorType(var.ty.shape, "float32")) if _is_half(var) else var


def _wide_constant(expr: Any) -> Any:
    """A constant in float32, alone or in a tuple; anything else as it is."""
    if isinstance(expr, relax.Tuple):
        return relax.Tuple(list(map(_wide_constant, expr.fields)))
    array = constant_value(expr) if isinstance(expr, relax.Expr) else None
    return expr if array is None or array.dtype != np.float16 else constant(array.astype(np.float32))


def _in_float32(value: Any) -> Any:
    """What is computed, from operands that are in float32 already."""
    if not isinstance(value, relax.Call):
        return _wide_constant(value)
    args = list(map(_wide_constant, value.args))
    loop = Loop.of(relax.Call(value.op, args, value.attrs, value.ty_args))
    if loop is not None:
        return with_changed_body(loop, _widened_body).call()
    named = [name for name in ("dtype", "out_dtype") if str(getattr(value.attrs, name, None)) == "float16"]
    new = rebuild(value, args, **dict.fromkeys(named, "float32"))
    unchanged = op_name(new) == "astype" and str(new.attrs.dtype) == str(args[0].ty.dtype)
    return args[0] if unchanged else new


def _widened_body(body: IRModule) -> IRModule:
    return IRModule({"main": _widened(body["main"], ports=False)})
