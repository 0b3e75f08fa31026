"""Evaluates Relax functions on NumPy arrays, operator by operator.

QNN operators run their NumPy reference. The common ones among Relax's own operators have a rule in `relax_numpy.py`;
all others are compiled one by one, unscheduled, as TVM defines them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import IRModule, ir, relax, tirx

from .base import call_attributes, constant_value, definition_of, shape_of
from .relax_compiled import evaluate_with_tvm
from .relax_numpy import NUMPY_RULES


def interpret(mod: IRModule, inputs: Sequence[np.ndarray], function: str = "main") -> list[np.ndarray]:
    """All results of `mod[function]` for these inputs, in order, as arrays."""
    result = _run_function(mod, mod[function], list(inputs))
    return list(result) if isinstance(result, tuple) else [result]


def _run_function(mod: IRModule, function: relax.Function, inputs: list[Any]) -> Any:
    environment: dict[Any, Any] = dict(zip(function.params, inputs, strict=True))
    for block in function.body.blocks:
        for binding in block.bindings:
            environment[binding.var] = evaluate(mod, binding.value, environment)
    return evaluate(mod, function.body.body, environment)


def evaluate(mod: IRModule, expr: Any, environment: Mapping[Any, Any]) -> Any:
    if isinstance(expr, relax.Var):
        return environment[expr]
    value = constant_value(expr)
    if value is not None:
        return value
    if isinstance(expr, relax.Tuple):
        return tuple(evaluate(mod, field, environment) for field in expr.fields)
    if isinstance(expr, relax.TupleGetItem):
        return evaluate(mod, expr.tuple_value, environment)[expr.index]
    if isinstance(expr, relax.ShapeExpr):
        return tuple(int(dim) for dim in expr.values)
    if isinstance(expr, (tirx.IntImm, tirx.FloatImm)):
        return expr.value
    if isinstance(expr, relax.Call):
        args = [evaluate(mod, arg, environment) for arg in expr.args]
        return evaluate_call(mod, expr, args)
    raise NotImplementedError(f"the interpreter does not support {type(expr).__name__}")


def evaluate_call(mod: IRModule, call: relax.Call, args: list[Any]) -> Any:
    definition = definition_of(call)
    if definition is not None:
        return definition.reference(*args, **call_attributes(call))
    if isinstance(call.op, ir.GlobalVar):
        return _run_function(mod, mod[call.op], args)
    if isinstance(call.ty, relax.TensorType) and call.ty.shape is not None and 0 in shape_of(call):
        return np.zeros(shape_of(call), str(call.ty.dtype))
    rule = NUMPY_RULES.get(call.op.name)
    result = rule(call, *args) if rule is not None else evaluate_with_tvm(call, args)
    return np.asarray(result) if isinstance(result, np.generic) else result  # NumPy's functions of scalars
