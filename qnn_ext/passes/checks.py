"""Checks of run-time values: collected into one status tensor, an extra last result of `main`, and then dropped.

Memory safety does not depend on them: `numerics/bounded.py` keeps every address within its tensor. The checks report
that a result is not what the model's framework would have computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..module import BOUNDS, DIVISOR, Check
from ..op.base import call_attributes, constant, definition_of
from ..op.check import CHECK_BOUNDS, CHECK_DIVISOR, STATUS_SHAPE, first_violation
from ..op.loop import Loop
from ..op.write_rows import WRITE_ROWS, write_rows
from .rewrite import Emit, Rebuild, bindings_of, emit_named, rewrite, variables_of, without_dead_code


def collect_checks(mod: IRModule) -> tuple[IRModule, list[Check]]:
    """`mod` with the status of its checks as the last result, and the checks, numbered from 1; the unchanged module if
    it has none."""
    if not _has_checks(mod["main"]):
        return mod, []
    new = Rebuild(without_dead_code(mod)["main"])
    early, rest, is_all = _before_writes(new.bindings)
    checks: list[Check] = []
    with new.main():
        new.bindings = early
        status = _collect(new, constant(np.zeros(STATUS_SHAPE, np.int64)), checks)
        new.bindings = rest
        status = _collect(new, status, checks, _guard(new, status, not is_all))
        new.result = relax.Tuple([*_fields(new.substituted(new.function.body.body)), status])
    others = {var: function for var, function in mod.functions_items() if var.name_hint != "main"}
    return IRModule({**others, **dict(new.module().functions_items())}, attrs=mod.attrs), checks


# ---- writes ------------------------------------------------------------------------------------------------------


def _before_writes(bindings: list[relax.VarBinding]) -> tuple[list[relax.VarBinding], list[relax.VarBinding], bool]:
    """The checks that depend on no write_rows, with what they need; all other bindings; and whether those are all
    checks. A program writes into its states, which must stay as they are if a check fails: so checks come first."""
    if not any(definition_of(binding.value) is WRITE_ROWS for binding in bindings):
        return [], bindings, True
    written: set[Any] = set()
    for binding in bindings:
        if definition_of(binding.value) is WRITE_ROWS or any(part in written for part in variables_of(binding.value)):
            written.add(binding.var)
    checks = [binding.var for binding in bindings if _performs_checks(binding.value)]
    needed = {var for var in checks if var not in written}
    for binding in reversed(bindings):
        if binding.var in needed:
            needed.update(variables_of(binding.value))
    early = [binding for binding in bindings if binding.var in needed]
    rest = [binding for binding in bindings if binding.var not in needed]
    return early, rest, not any(var in written for var in checks)


def _guard(new: Rebuild, status: relax.Expr, copies: bool) -> Callable[[relax.Call], relax.Call]:
    """Makes each write_rows write nothing after a failed check.

    copies: whether there are checks that it cannot wait for, so that it must not overwrite anything
    """
    guarded: dict[Any, relax.Expr] = {}

    def where_passed(positions: relax.Expr) -> relax.Expr:
        emit, dtype = new.builder.emit, str(positions.ty.dtype)
        failed = emit(relax.op.strided_slice(status, [0], [0], [1]))
        passed = emit(relax.op.equal(failed, constant(np.zeros(1, np.int64))))
        return emit(relax.op.where(passed, positions, constant(np.asarray(-1, dtype))))

    def guard(call: relax.Call) -> relax.Call:
        data, rows, positions = call.args
        if not copies and positions not in guarded:
            guarded[positions] = where_passed(positions)
        return write_rows(data, rows, guarded.get(positions, positions), call_attributes(call)["axis"], copies)

    return guard


def _collect(
    new: Rebuild, status: relax.Expr, checks: list[Check], guard: Callable[[relax.Call], relax.Call] | None = None
) -> relax.Expr:
    """Rebuild a function; returns the status after its checks, which are added to `checks`.

    guard: what becomes of each write_rows
    """
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
        if guard is not None and definition_of(value) is WRITE_ROWS:
            new.bind(binding.var, guard(new.substituted(value)))
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
    return any(_performs_checks(binding.value) for binding in bindings_of(function))


def _performs_checks(value: Any) -> bool:
    """Whether a bound value is a check, or a loop that performs some."""
    loop = Loop.of(value)
    return bool(_checks_of(value)) or (loop is not None and _has_checks(loop.body))


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
