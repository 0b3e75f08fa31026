"""relay: expressions and operators, and what builds, imports, quantizes and runs models of them."""

from __future__ import annotations

from typing import Any as _AnyType

from ...absent import absent
from ...basic import *  # noqa: F403
from ...basic import ELEMENTWISE, REDUCTIONS
from ...basic import __all__ as _BASIC
from ...expressions import (
    Any_ as Any,
)
from ...expressions import (
    Call,
    Constant,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    TupleWrapper,
    Var,
    const,
    var,
)
from ...functors import ExprFunctor, ExprMutator, ExprVisitor, bind
from ...library import build, create_executor
from ...passes import PassContext as build_config
from ...saved import load_param_dict, save_param_dict
from . import analysis, backend, build_module, dataflow_pattern, frontend, nn, op, qnn, quantize, testing, transform, vm
from .op import annotation

globals().update(ELEMENTWISE, **REDUCTIONS)

__all__ = [
    *ELEMENTWISE,
    *REDUCTIONS,
    *_BASIC,
    "Any",
    "Call",
    "Constant",
    "Expr",
    "ExprFunctor",
    "ExprMutator",
    "ExprVisitor",
    "FuncType",
    "Function",
    "GlobalVar",
    "TensorType",
    "Tuple",
    "TupleGetItem",
    "TupleType",
    "TupleWrapper",
    "Var",
    "analysis",
    "annotation",
    "backend",
    "bind",
    "build",
    "build_config",
    "build_module",
    "const",
    "create_executor",
    "dataflow_pattern",
    "frontend",
    "load_param_dict",
    "nn",
    "op",
    "qnn",
    "quantize",
    "save_param_dict",
    "scalar_type",
    "testing",
    "transform",
    "var",
    "vm",
]


def scalar_type(dtype: str) -> TensorType:
    """The type of a scalar."""
    return TensorType((), dtype)


_INSTEAD: dict[str, _AnyType] = {
    "ScopeBuilder": "control flow comes in with imported models",
    "If": "control flow comes in with imported models",
    "Let": "control flow comes in with imported models",
    "Match": "control flow comes in with imported models",
    "fromtext": "modules are TVMScript: tvm.script.from_source",
    "parse": "modules are TVMScript: tvm.script.from_source",
    "optimize": "build runs all passes",
}

__getattr__ = absent("relay", _INSTEAD)
