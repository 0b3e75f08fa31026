"""Relax operators without a NumPy rule: each call is compiled on its own, unscheduled, for any CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline

from ..numerics.bounded import bounded
from ..numerics.extremes import propagate_nan
from ..numerics.miscompiled import without_masks, without_zeros
from ..tvm_runtime import set_up
from .base import array_of, module_of

_PIPELINE = "qnn_ext.plain"


def _pipeline() -> tuple[tvm.transform.Pass, Any, Any]:
    """TVM's pipeline, followed by what keeps even the plainest code correct."""
    pipeline, finalize_host, finalize_device = default_s_tir_pipeline()
    last = tirx.transform.prim_func_pass(_finish, opt_level=0, name="qnn_ext.plain.finish")
    return tvm.ir.transform.Sequential([pipeline, last]), finalize_host, finalize_device


def _finish(function: tirx.PrimFunc, _mod: tvm.IRModule, _context: Any) -> tirx.PrimFunc:
    return function.with_body(propagate_nan(without_zeros(without_masks(function.body))))


tirx.register_tir_pipeline(_PIPELINE, _pipeline)

_MOST_COMPILED = 256  # each takes one to two megabytes
_compiled: dict[tvm_ffi.StructuralKey, relax.VirtualMachine] = {}


def evaluate_with_tvm(call: relax.Call, args: list[Any]) -> Any:
    """Compile the single call, unscheduled, and run it. Constants among the arguments stay constants, which some
    legalizations need."""
    set_up()
    module, runtime_args = _single_call_module(call, args)
    key = tvm_ffi.StructuralKey(module)  # type: ignore[call-arg]
    if key not in _compiled:
        if len(_compiled) >= _MOST_COMPILED:
            _compiled.pop(next(iter(_compiled)))
        safe = bounded(relax.transform.LegalizeOps()(module))
        executable = tvm.compile(safe, target=_target(runtime_args), tir_pipeline=_PIPELINE)
        _compiled[key] = relax.VirtualMachine(executable, tvm.cpu())
    return _to_numpy(_compiled[key]["main"](*runtime_args))


def _target(args: list[Any]) -> tvm.target.Target:
    """Any CPU: without arithmetic of float16, whose loops LLVM can take minutes for at its second level."""
    level = 1 if any(str(arg.dtype) == "float16" for arg in args) else 3
    return tvm.target.Target({"kind": "llvm", "opt-level": level})


def _single_call_module(call: relax.Call, args: list[Any]) -> tuple[tvm.IRModule, list[Any]]:
    parameters: list[relax.Var] = []
    runtime_args: list[Any] = []

    def replace(expr: Any, value: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([replace(field, item) for field, item in zip(expr.fields, value, strict=True)])
        if not isinstance(expr, relax.Var):
            return expr
        if isinstance(value, tuple):  # a variable bound to a tuple of tensors
            return relax.Tuple([parameter(item) for item in value])
        return parameter(value)

    def parameter(value: np.ndarray) -> relax.Var:
        var = relax.Var(f"p{len(parameters)}", relax.TensorType(value.shape, str(value.dtype)))
        parameters.append(var)
        runtime_args.append(tvm.runtime.tensor(np.asarray(value, order="C")))
        return var

    new_args = [replace(expr, value) for expr, value in zip(call.args, args, strict=True)]
    return module_of(relax.Call(call.op, new_args, call.attrs, call.ty_args), parameters), runtime_args


def _to_numpy(result: Any) -> Any:
    if hasattr(result, "numpy"):
        return array_of(result)
    return tuple(_to_numpy(item) for item in result)
