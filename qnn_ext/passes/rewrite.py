"""The one way passes walk and rebuild a QNN module: binding by binding through `main`'s dataflow blocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm import IRModule, ir, relax

Emit = Callable[[relax.Expr], relax.Expr]
Rule = Callable[[relax.Expr, Emit], "relax.Expr | None"]


def bindings_of(function: relax.Function) -> list[relax.VarBinding]:
    """All bindings of a straight-line function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def substitute(expr: Any, environment: dict[Any, Any]) -> Any:
    """`expr` with its variables replaced; anything without replaced variables is returned as it is."""
    if isinstance(expr, relax.Var):
        return environment.get(expr, expr)
    if isinstance(expr, relax.Call):
        args = [substitute(arg, environment) for arg in expr.args]
        if all(new.same_as(old) for new, old in zip(args, expr.args, strict=True)):
            return expr
        return relax.Call(expr.op, args, expr.attrs, expr.ty_args)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([substitute(field, environment) for field in expr.fields])
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(substitute(expr.tuple_value, environment), expr.index)
    return expr


def rewrite(mod: IRModule, rule: Rule) -> IRModule:
    """Rebuild `main`: each bound value, its operands already rewritten, becomes rule(value, emit), or stays if None.

    `emit` binds helper expressions before it. Unused bindings disappear. Variable names are kept, for they are the
    layer names of the model: a rule that binds its result itself has all it binds named after what it replaces.
    """
    function = mod["main"]
    builder = relax.BlockBuilder()
    environment: dict[Any, Any] = {}
    names: dict[str, str] = {}
    with builder.function("main", list(function.params), attrs=plain_attrs(function)):
        with builder.dataflow():
            for binding in bindings_of(function):
                emitted: list[relax.Var] = []

                def emit(expr: relax.Expr, emitted: list[relax.Var] = emitted) -> relax.Expr:
                    emitted.append(builder.emit(expr))
                    return emitted[-1]

                value = substitute(binding.value, environment)
                replacement = rule(value, emit)
                result = value if replacement is None else replacement
                if any(result.same_as(var) for var in emitted):
                    names.update({var.name: binding.var.name for var in emitted})
                environment[binding.var] = emit_named(builder, result, binding.var.name)
            result = builder.emit_output(substitute(function.body.body, environment))
        builder.emit_func_output(result)
    return _renamed(relax.transform.DeadCodeElimination(["main"])(builder.get()), names)


def _renamed(mod: IRModule, names: dict[str, str]) -> IRModule:
    """`mod` with variables renamed; of several with one new name the later ones get a number."""
    if not names:
        return mod
    function = mod["main"]
    builder = relax.BlockBuilder()
    environment: dict[Any, Any] = {}
    with builder.function("main", list(function.params), attrs=plain_attrs(function)):
        with builder.dataflow():
            for binding in bindings_of(function):
                name = names.get(binding.var.name, binding.var.name)
                environment[binding.var] = builder.emit(substitute(binding.value, environment), name_hint=name)
            result = builder.emit_output(substitute(function.body.body, environment))
        builder.emit_func_output(result)
    return builder.get()


def plain_attrs(function: relax.Function) -> dict[str, Any]:
    """A function's attributes as a dict that BlockBuilder can extend."""
    return {str(key): value for key, value in function.attrs.items() if key != "global_symbol"}


def emit_named(builder: relax.BlockBuilder, expr: Any, name: str) -> Any:
    """Bind an expression under a name hint; variables and constants need no binding."""
    if isinstance(expr, (relax.Var, ir.GenericConst)):
        return expr
    return builder.emit(expr, name_hint=name)


def operands(expr: Any) -> Iterator[Any]:
    """The tensor-like operands of a bound value, tuples opened."""
    if isinstance(expr, relax.Call):
        for arg in expr.args:
            yield from arg.fields if isinstance(arg, relax.Tuple) else (arg,)
    elif isinstance(expr, relax.Tuple):
        yield from expr.fields
    elif isinstance(expr, relax.TupleGetItem):
        yield expr.tuple_value
    elif isinstance(expr, relax.Var):
        yield expr


def consumers(function: relax.Function, bindings: Sequence[relax.VarBinding]) -> dict[Any, list[int]]:
    """Variable -> indices of the bindings that read it; the function's result counts as index len(bindings)."""
    found: dict[Any, list[int]] = defaultdict(list)
    for index, value in enumerate([*(binding.value for binding in bindings), function.body.body]):
        for operand in operands(value):
            if isinstance(operand, relax.Var):
                found[operand].append(index)
    return found


def op_name(expr: Any) -> str:
    """The operator of a call, without "relax.": "qnn.conv2d", "add"; "" for anything else."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op):
        return str(expr.op.name).removeprefix("relax.")
    return ""
