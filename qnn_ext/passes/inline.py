"""Inline: functions that `main` calls become part of it, because the build's passes see only `main`; and `main` becomes
part of another function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import IRModule, ir, relax

from .rewrite import Rebuild, bindings_of, substitute


def inlined(mod: IRModule) -> IRModule:
    """`mod` with every function that `main` calls inlined; the unchanged module if `main` calls none."""
    new = Rebuild(mod["main"])
    if not any(_callee(mod, binding.value) for binding in new.bindings):
        return mod

    def result_of(value: Any) -> Any:
        """A value with its variables replaced; for a call of a function, that function's result."""
        function = _callee(mod, value)
        if function is not None:
            local = dict(zip(function.params, value.args, strict=True))
            for binding in bindings_of(function):
                local[binding.var] = bound(substitute(binding.value, local), binding.var.name)
            return substitute(function.body.body, local)
        if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Tuple):
            return value.tuple_value.fields[value.index]
        return value

    def bound(expr: Any, name: str) -> Any:
        return expr if isinstance(expr, (relax.Var, relax.Tuple)) else new.builder.emit(expr, name_hint=name)

    with new.main():
        for binding in new.bindings:
            new.environment[binding.var] = bound(result_of(new.substituted(binding.value)), binding.var.name)
    return new.module()


def emitted(mod: IRModule, inputs: Sequence[Any], emit: Callable[[Any], Any]) -> list[Any]:
    """The results of `main` for these inputs, emitted elsewhere binding by binding; `emit` binds and types a value."""
    main = inlined(mod)["main"]
    environment: dict[Any, Any] = dict(zip(main.params, inputs, strict=True))
    for binding in bindings_of(main):
        value = substitute(binding.value, environment)
        environment[binding.var] = value if isinstance(value, relax.Tuple) else emit(value)
    result = substitute(main.body.body, environment)
    if isinstance(result, relax.Tuple):
        return list(result.fields)
    if isinstance(main.ret_ty, relax.TupleType):
        return [emit(relax.TupleGetItem(result, index)) for index in range(len(main.ret_ty.fields))]
    return [result]


def _callee(mod: IRModule, value: Any) -> relax.Function | None:
    """The function that a call invokes; None for calls of operators and everything else."""
    return mod[value.op] if isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar) else None
