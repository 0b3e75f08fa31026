"""Checks of run-time values: collected into one status tensor, an extra last result of `main`, and then dropped.

Memory safety does not depend on them: `numerics/bounded.py` keeps every address within its tensor. The checks report
that a result is not what the model's framework would have computed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..module import BOUNDS, DIVISOR, Check
from ..op.base import call_attributes, constant, definition_of
from ..op.check import CHECK_BOUNDS, CHECK_DIVISOR, STATUS_SHAPE, first_violation
from ..op.loop import Loop
from .rewrite import Emit, Rebuild, bindings_of, emit_named, rewrite, without_dead_code


def collect_checks(mod: IRModule) -> tuple[IRModule, list[Check]]:
    """`mod` with the status of its checks as the last result, and the checks, numbered from 1; the unchanged module if
    it has none."""
    if not _has_checks(mod["main"]):
        return mod, []
    new = Rebuild(without_dead_code(mod)["main"])
    checks: list[Check] = []
    with new.main():
        status = _collect(new, constant(np.zeros(STATUS_SHAPE, np.int64)), checks)
        new.result = relax.Tuple([*_fields(new.substituted(new.function.body.body)), status])
    others = {var: function for var, function in mod.functions_items() if var.name_hint != "main"}
    return IRModule({**others, **dict(new.module().functions_items())}, attrs=mod.attrs), checks


def _collect(new: Rebuild, status: relax.Expr, checks: list[Check]) -> relax.Expr:
    """Rebuild a function; returns the status after its checks, which are added to `checks`."""
    fields: dict[Any, list[relax.Expr]] = {}  # of loops
    for binding in new.bindings:
        value = binding.value
        loop = Loop.of(value)
        if loop is not None and _has_checks(loop.body):
            changed = Loop.of(new.substituted(value)).with_body(loop.body)  # type: ignore[union-attr]
            call = _with_status(changed, status, checks)
            results = new.builder.emit(call, name_hint=binding.var.name)
            every = [new.builder.emit(relax.TupleGetItem(results, i)) for i in range(len(results.ty.fields))]
            status = every.pop(len(loop.states))
            fields[binding.var] = every
            continue
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in fields:
            new.environment[binding.var] = fields[value.tuple_value][value.index]
            continue
        new.keep(binding)
        found = _checks_of(value)
        if found:
            low, high = [check.low for check in found], [check.high for check in found]
            tensor = new.substituted(value.args[0])
            call = first_violation(tensor, status, low, high, found[0].kind, len(checks) + 1)
            status = emit_named(new.builder, call, f"{binding.var.name}_status")
            checks += found
    return status


def _with_status(loop: Loop, status: relax.Expr, checks: list[Check]) -> relax.Call:
    """A loop with the status as its last state."""
    captured, own, slices = loop.parameters
    condition, states, outputs = loop.results
    new, before = Rebuild(loop.body), relax.Var("status", status.ty)
    with new.main([*captured, *own, before, *slices]):
        after = _collect(new, before, checks)
        fields = [*([] if condition is None else [condition]), *states]
        new.result = relax.Tuple([*map(new.substituted, fields), after, *map(new.substituted, outputs)])
    body = new.module()["main"].without_attr("global_symbol")
    return replace(loop, body=body, states=(*loop.states, status)).call()


def _has_checks(function: relax.Function) -> bool:
    """Whether a function, or a loop in it, performs a check."""
    loops = (Loop.of(binding.value) for binding in bindings_of(function))
    return any(_checks_of(binding.value) for binding in bindings_of(function)) or any(
        _has_checks(loop.body) for loop in loops if loop is not None
    )


def _checks_of(value: Any) -> list[Check]:
    """The checks that a bound value performs."""
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
    """`mod` with every check replaced by its operand; indices are clipped, so that nothing computed from them
    overflows."""

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

    return rewrite(mod, rule) if _has_checks(mod["main"]) else mod


def _representable(bounds: list[int], dtype: str) -> relax.Expr:
    """Bounds as a constant of `dtype`, a scalar or along the last axis."""
    limits = np.iinfo(dtype)
    values = np.clip(np.asarray(bounds, np.int64), limits.min, limits.max).astype(dtype)
    return constant(values if len(bounds) > 1 else values.reshape(()))
