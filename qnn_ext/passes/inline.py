"""Inline: functions that `main` calls become part of it, for the passes of the build see `main` alone."""

from __future__ import annotations

from typing import Any

from tvm import IRModule, ir, relax

from .rewrite import bindings_of, plain_attrs, substitute


def inlined(mod: IRModule) -> IRModule:
    """`mod` with every function that `main` calls in its place; the module itself when `main` calls none."""
    main = mod["main"]
    if not any(_callee(mod, binding.value) for binding in bindings_of(main)):
        return mod
    builder = relax.BlockBuilder()
    environment: dict[Any, Any] = {}

    def result_of(value: Any) -> Any:
        """A value whose variables are replaced; of a call of a function that function's result."""
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
        return expr if isinstance(expr, (relax.Var, relax.Tuple)) else builder.emit(expr, name_hint=name)

    with builder.function("main", list(main.params), attrs=plain_attrs(main)):
        with builder.dataflow():
            for binding in bindings_of(main):
                value = result_of(substitute(binding.value, environment))
                environment[binding.var] = bound(value, binding.var.name)
            result = builder.emit_output(substitute(main.body.body, environment))
        builder.emit_func_output(result)
    return builder.get()


def _callee(mod: IRModule, value: Any) -> relax.Function | None:
    """The function that a call runs, None for calls of operators and everything else."""
    return mod[value.op] if isinstance(value, relax.Call) and isinstance(value.op, ir.GlobalVar) else None
