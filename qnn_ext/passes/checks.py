"""Checks of run-time values: collected into one status tensor, an extra last result of `main`, and dropped.

What is checked is safe without: `numerics/bounded.py` keeps every address within its tensor. The checks say that a
result is not what the model's framework would have computed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..module import Check
from ..op.base import call_attributes, constant, definition_of
from ..op.check import BOUNDS, CHECK_BOUNDS, CHECK_DIVISOR, DIVISOR, STATUS_SHAPE, first_violation
from .rewrite import Emit, bindings_of, emit_named, plain_attrs, rewrite, substitute


def collect_checks(mod: IRModule) -> tuple[IRModule, list[Check]]:
    """`mod` with the status of its checks as the last result, and the checks, the first with number 1; the module
    itself where it has none."""
    if not _has_checks(mod):
        return mod, []
    main = relax.transform.DeadCodeElimination(["main"])(mod)["main"]
    checks: list[Check] = []
    status: relax.Expr = constant(np.zeros(STATUS_SHAPE, np.int64))
    builder = relax.BlockBuilder()
    environment: dict[Any, Any] = {}
    with builder.function("main", list(main.params), attrs=plain_attrs(main)):
        with builder.dataflow():
            for binding in bindings_of(main):
                value = substitute(binding.value, environment)
                environment[binding.var] = emit_named(builder, value, binding.var.name)
                found = _checks_of(value)
                if found:
                    low, high = [check.low for check in found], [check.high for check in found]
                    call = first_violation(value.args[0], status, low, high, found[0].kind, len(checks) + 1)
                    status = emit_named(builder, call, f"{binding.var.name}_status")
                    checks += found
            results = _fields(substitute(main.body.body, environment))
            result = builder.emit_output(relax.Tuple([*results, status]))
        builder.emit_func_output(result)
    others = {var: function for var, function in mod.functions_items() if var.name_hint != "main"}
    return IRModule({**others, **dict(builder.get().functions_items())}, attrs=mod.attrs), checks


def _has_checks(mod: IRModule) -> bool:
    return any(_checks_of(binding.value) for binding in bindings_of(mod["main"]))


def _checks_of(value: Any) -> list[Check]:
    """The checks that a bound value makes."""
    definition = definition_of(value)
    if definition is CHECK_DIVISOR:
        attributes = call_attributes(value)
        return [Check(attributes["label"], DIVISOR, attributes["zero"], attributes["zero"])]
    if definition is not CHECK_BOUNDS:
        return []
    attributes = call_attributes(value)
    pairs = zip(attributes["low"], attributes["high"], strict=True)
    return [Check(attributes["label"], BOUNDS, low, high) for low, high in pairs]


def _fields(result: relax.Expr) -> list[relax.Expr]:
    """The results of `main`, which returns a tuple or a single tensor."""
    if isinstance(result, relax.Tuple):
        return list(result.fields)
    if not isinstance(result.ty, relax.TupleType):
        return [result]
    return [relax.TupleGetItem(result, index) for index in range(len(result.ty.fields))]


def drop_checks(mod: IRModule) -> IRModule:
    """`mod` with every check replaced by its operand; indices clipped, so that what is computed from them overflows
    nowhere."""

    def rule(value: relax.Expr, emit: Emit) -> relax.Expr | None:
        checks = _checks_of(value)
        if not checks:
            return None
        if checks[0].kind == DIVISOR:
            return value.args[0]
        dtype = str(value.args[0].ty.dtype)
        low = _representable([check.low for check in checks], dtype)
        high = _representable([check.high for check in checks], dtype)
        return relax.op.minimum(emit(relax.op.maximum(value.args[0], low)), high)

    return rewrite(mod, rule) if _has_checks(mod) else mod


def _representable(bounds: list[int], dtype: str) -> relax.Expr:
    """Bounds as a constant of `dtype`, a scalar or along the last axis."""
    limits = np.iinfo(dtype)
    values = np.clip(np.asarray(bounds, np.int64), limits.min, limits.max).astype(dtype)
    return constant(values if len(bounds) > 1 else values.reshape(()))
