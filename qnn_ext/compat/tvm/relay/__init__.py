"""relay: expressions and operators, and what builds, imports, quantizes and runs models of them."""

from __future__ import annotations

from typing import Any as _AnyType

from ...absent import absent
from ...basic import (
    ELEMENTWISE,
    REDUCTIONS,
    broadcast_to,
    cast,
    clip,
    concatenate,
    expand_dims,
    full,
    ones,
    repeat,
    reshape,
    round,
    split,
    squeeze,
    stack,
    strided_slice,
    take,
    tile,
    transpose,
    where,
    zeros,
)
from ...expressions import (
    Any_ as Any,
)
from ...expressions import (
    Call,
    Constant,
    Expr,
    Function,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    TupleWrapper,
    Var,
    const,
    var,
)
from ...library import build, create_executor
from ...passes import PassContext as build_config
from ...saved import load_param_dict, save_param_dict
from . import analysis, build_module, frontend, nn, op, qnn, quantize, testing, transform, vm

globals().update(ELEMENTWISE, **REDUCTIONS)

__all__ = [
    *ELEMENTWISE,
    *REDUCTIONS,
    "Any",
    "Call",
    "Constant",
    "Expr",
    "Function",
    "TensorType",
    "Tuple",
    "TupleGetItem",
    "TupleType",
    "TupleWrapper",
    "Var",
    "analysis",
    "broadcast_to",
    "build",
    "build_config",
    "build_module",
    "cast",
    "clip",
    "concatenate",
    "const",
    "create_executor",
    "expand_dims",
    "frontend",
    "full",
    "load_param_dict",
    "nn",
    "ones",
    "op",
    "qnn",
    "quantize",
    "repeat",
    "reshape",
    "round",
    "save_param_dict",
    "scalar_type",
    "split",
    "squeeze",
    "stack",
    "strided_slice",
    "take",
    "testing",
    "tile",
    "transform",
    "transpose",
    "var",
    "vm",
    "where",
    "zeros",
]


def scalar_type(dtype: str) -> TensorType:
    """The type of a scalar."""
    return TensorType((), dtype)


_IR = "there is no Relay IR to walk: qnn_ext's modules are Relax, in `module.ir`"
_INSTEAD: dict[str, _AnyType] = {
    "ExprMutator": _IR,
    "ExprVisitor": _IR,
    "ExprFunctor": _IR,
    "dataflow_pattern": _IR,
    "GlobalVar": "a module has one function, main",
    "If": "control flow comes in with imported models",
    "Let": "control flow comes in with imported models",
    "Match": "control flow comes in with imported models",
    "fromtext": "modules are TVMScript: tvm.script.from_source",
    "parse": "modules are TVMScript: tvm.script.from_source",
    "optimize": "build runs all passes",
    "backend": "qnn_ext.build is the compiler",
}

__getattr__ = absent("relay", _INSTEAD)
