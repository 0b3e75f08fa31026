"""The one way passes walk and rebuild a QNN module: binding by binding through `main`'s dataflow blocks.

Arrays of TVM's are read as `array[:]` where there are many: that makes a list at once, several times as fast as TVM's
iteration over one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tvm_ffi
from tvm import IRModule, ir, relax

Emit = Callable[[relax.Expr], relax.Expr]
Rule = Callable[[relax.Expr, Emit], "relax.Expr | None"]


def bindings_of(function: relax.Function) -> list[relax.VarBinding]:
    """All bindings of a straight-line function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings[:]]


def substitute(expr: Any, environment: dict[Any, Any]) -> Any:
    """`expr` with its variables replaced; returned unchanged if it contains none of them. A call whose operands keep
    their types keeps its own, so that it is not inferred again."""
    if not environment:
        return expr
    kind = _kinds[type(expr)]
    if kind is relax.Var:
        return environment.get(expr, expr)
    if kind is relax.Call:
        args = expr.args[:]
        new = [substitute(arg, environment) for arg in args]
        changed = [(one, other) for one, other in zip(args, new, strict=True) if not one.same_as(other)]
        if not changed:
            return expr
        ty = expr.ty if all(_have_one_type(one, other) for one, other in changed) else None
        return relax.Call(expr.op, new, expr.attrs, expr.ty_args, ret_ty=ty)
    if kind is relax.Tuple:
        fields = expr.fields[:]
        new = [substitute(field, environment) for field in fields]
        return expr if all(map(_is_same, fields, new)) else relax.Tuple(new)
    if kind is relax.TupleGetItem:
        value = substitute(expr.tuple_value, environment)
        return expr if value.same_as(expr.tuple_value) else relax.TupleGetItem(value, expr.index)
    return expr


class _Kinds(dict[type, Any]):
    """Which of the expressions that have operands each class is. TVM's classes have a metaclass that makes `isinstance`
    slow where the answer is no."""

    def __missing__(self, of: type) -> Any:
        kinds = (relax.Call, relax.Var, relax.Tuple, relax.TupleGetItem)
        self[of] = next((kind for kind in kinds if issubclass(of, kind)), None)
        return self[of]


_kinds = _Kinds()
_COMPUTED = (relax.Call, relax.Tuple, relax.TupleGetItem)


def _place(var: relax.Var) -> int:
    """What tells a variable from all others: its hash is its address. Comparing variables is slow."""
    return hash(var)


def _stays(var: relax.Var, value: Any) -> bool:
    """Whether a variable stays bound to a value when `main` is built anew: aliases go, and results get another."""
    return isinstance(var, relax.DataflowVar) and _kinds[type(value)] in _COMPUTED


def _is_same(one: Any, other: Any) -> bool:
    return one.same_as(other)


def _have_one_type(one: Any, other: Any) -> bool:
    return one.ty.same_as(other.ty) or tvm_ffi.structural_equal(one.ty, other.ty)


@contextmanager
def straight_line(
    builder: relax.BlockBuilder,
    name: str,
    params: Sequence[relax.Var],
    attrs: Mapping[str, Any] | None = None,
    private: bool = False,
) -> Iterator[Callable[[relax.Expr], None]]:
    """A context that builds a function with one dataflow block, from what is emitted within, in the builder's module.
    It yields a callable that takes the function's result."""
    results: list[relax.Expr] = []
    with builder.function(name, list(params), attrs=None if attrs is None else dict(attrs), private=private):
        with builder.dataflow():
            yield results.append
            (result,) = results
            output = builder.emit_output(result)
        builder.emit_func_output(output)


def function_of(
    name: str,
    bindings: Sequence[relax.VarBinding],
    inputs: Sequence[relax.Var],
    result: relax.Expr,
    attrs: Mapping[str, Any] | None = None,
    private: bool = False,
) -> relax.Function:
    """Bindings as a function of the outside variables they read. Tuples are not bound, but put where they are used."""
    builder = relax.BlockBuilder()
    params = [relax.Var(var.name, var.ty) for var in inputs]
    environment: dict[Any, Any] = dict(zip(inputs, params, strict=True))
    with straight_line(builder, name, params, attrs, private) as returns:
        for binding in bindings:
            value = substitute(binding.value, environment)
            bound = value if isinstance(value, relax.Tuple) else emit_named(builder, value, binding.var.name)
            environment[binding.var] = bound
        returns(substitute(result, environment))
    return builder.get()[name]


class Rebuild:
    """A new `main` made from an old one, binding by binding.

        new = Rebuild(mod["main"])
        with new.main():
            for binding in new.bindings:
                new.bind(binding.var, changed(new.substituted(binding.value)))
        return new.module()

    bindings:    the bindings of the old `main`
    builder:     emits into the new one
    environment: variable of the old `main` -> its replacement in the new one
    result:      the result of the new `main`; if None, that of the old one
    """

    def __init__(self, function: relax.Function) -> None:
        self.function = function
        self.bindings = bindings_of(function)
        self._bound = {_place(binding.var): binding for binding in self.bindings}
        self.builder = relax.BlockBuilder()
        self.environment: dict[Any, Any] = {}
        self.result: relax.Expr | None = None

    @contextmanager
    def main(self, params: Sequence[relax.Var] | None = None, attrs: Mapping[str, Any] | None = None) -> Iterator[None]:
        """A context that emits the new `main`, by default with the parameters and attributes of the old one."""
        params = self.function.params if params is None else params
        attrs = plain_attrs(self.function) if attrs is None else attrs
        with straight_line(self.builder, "main", params, attrs) as returns:
            yield
            returns(self.substituted(self.function.body.body) if self.result is None else self.result)

    def substituted(self, expr: Any) -> Any:
        """An expression of the old `main` with its variables replaced."""
        return substitute(expr, self.environment)

    def bind(self, var: relax.Var, expr: Any) -> Any:
        """Replace a variable of the old `main` by `expr`, bound under the same name. A value of the same type is bound
        to the same variable, so that what reads it stays as it is and no type is inferred again."""
        self.environment[var] = bound = self._bound_anew(var, expr)
        return bound

    def rebind(self, var: relax.Var, expr: Any) -> Any:
        """`bind`, where nobody asks the environment for variables that stay what they are."""
        bound = self._bound_anew(var, expr)
        if not bound.same_as(var):
            self.environment[var] = bound
        return bound

    def _bound_anew(self, var: relax.Var, expr: Any) -> Any:
        old = self._bound.get(_place(var))
        if old is not None and _stays(var, expr):
            value = expr if expr.same_as(old.value) else self.builder.normalize(expr)
            if _have_one_type(value, var):
                return self._bound_to(old, value)
        return emit_named(self.builder, expr, var.name)

    def _bound_to(self, old: relax.VarBinding, value: relax.Expr) -> relax.Var:
        """The variable of an old binding, or one of another name if its own is taken, bound to a value of its type."""
        name = self.builder.get_unique_name(old.var.name)
        var = old.var if name == old.var.name else relax.DataflowVar(name, old.var.ty)
        kept = var is old.var and value.same_as(old.value)
        self.builder.emit_normalized(old if kept else relax.VarBinding(var, value))
        return var

    def keep(self, binding: relax.VarBinding) -> Any:
        """Keep a binding of the old `main`."""
        return self.bind(binding.var, self.substituted(binding.value))

    def module(self) -> IRModule:
        """The module with the new `main` and the functions added to `builder`."""
        return self.builder.get()

    def live_module(self) -> IRModule:
        """`module()` without bindings that nothing reads."""
        return without_dead_code(self.module())


def without_dead_code(mod: IRModule) -> IRModule:
    """`mod` without bindings of `main` that nothing reads, and without functions that nothing calls."""
    main = mod["main"]
    blocks, result = main.body.blocks[:], main.body.body
    if len(mod.get_global_vars()) > 1 or [type(block) for block in blocks] != [relax.DataflowBlock]:
        return relax.transform.DeadCodeElimination(["main"])(mod)
    bindings = blocks[0].bindings[:]
    live, _ = needed(bindings, [result])
    if len(live) == len(bindings):
        return mod
    # TVM's pass takes a second for a few thousand bindings of which a third are dead
    body = relax.BlockBuilder().normalize(relax.SeqExpr([relax.DataflowBlock(live)], result))  # with its type
    return with_main(mod, relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs))


def rewrite(mod: IRModule, rule: Rule) -> IRModule:
    """Rebuild `main`: each bound value, its operands already rewritten, becomes rule(value, emit), or stays if None.

    `emit` binds helper expressions before it. Unused bindings disappear. Variable names are kept, because they are the
    model's layer names: if a rule binds its result itself, everything it binds is named after the replaced variable.
    The value itself, emitted by a rule that wants to know its variable, stays bound to the one that it has.
    """
    rewriting = _Rewriting(mod["main"], rule)
    return rewriting.module() if rewriting.changes() else without_dead_code(mod)


class _Rewriting:
    """A rule applied to `main`, which is only built anew from the first binding on that the rule changes."""

    def __init__(self, main: relax.Function, rule: Rule) -> None:
        self._new = Rebuild(main)
        self._rule = rule
        self._names: dict[str, str] = {}  # of variables that the rule emitted -> those that replace them

    def changes(self) -> bool:
        """Apply the rule. Returns whether anything has changed."""
        with ExitStack() as building:
            kept: list[relax.VarBinding] | None = []  # so far, while nothing has changed

            def begin() -> None:
                nonlocal kept
                if kept is not None:
                    building.enter_context(self._new.main())
                    for binding in kept:
                        self._new.rebind(binding.var, binding.value)
                    kept = None

            for binding in self._new.bindings:
                if kept and not _stays(kept[-1].var, kept[-1].value):  # where this one reads it, it reads another
                    begin()
                one = _Rewritten(self._new, binding, begin)
                result = self._rule(one.value, one.emit)
                if kept is not None and (result is None or result.same_as(one.value)):
                    kept.append(binding)
                    continue
                begin()
                self._finish(one, binding, one.value if result is None else result)
            return kept is None

    def _finish(self, one: _Rewritten, binding: relax.VarBinding, result: relax.Expr) -> None:
        """Replace a variable by the result of the rule."""
        if any(result.same_as(var) for var in (*one.emitted, *one.kept)):
            self._names.update({var.name: binding.var.name for var in one.emitted})
        if not any(result.same_as(var) for var in one.kept):
            self._new.rebind(binding.var, result)

    def module(self) -> IRModule:
        """The module with the new `main`."""
        return _renamed(self._new.live_module(), self._names)


class _Rewritten:
    """One binding while a rule looks at its value.

    emitted: variables of what the rule has emitted; kept: that of the value, if the rule has emitted it
    """

    def __init__(self, new: Rebuild, binding: relax.VarBinding, begin: Callable[[], None]) -> None:
        """begin: called before anything is emitted"""
        self.value = new.substituted(binding.value)
        self.emitted: list[relax.Var] = []
        self.kept: list[relax.Var] = []
        self._new, self._binding, self._begin = new, binding, begin

    def emit(self, expr: relax.Expr) -> relax.Expr:
        self._begin()
        if expr is self.value and not self.kept:
            self.kept.append(self._new.rebind(self._binding.var, expr))
            return self.kept[0]
        self.emitted.append(self._new.builder.emit(expr))
        return self.emitted[-1]


def _renamed(mod: IRModule, names: dict[str, str]) -> IRModule:
    """`mod` with variables renamed; if several get the same name, the later ones are numbered."""
    if not names:
        return mod
    new = Rebuild(mod["main"])
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            if binding.var.name in names:
                new.environment[binding.var] = new.builder.emit(value, name_hint=names[binding.var.name])
            else:
                new.rebind(binding.var, value)
    return new.module()


def with_main(mod: IRModule, main: relax.Function) -> IRModule:
    """`mod` with another `main`."""
    result = mod.clone()
    result.update_func(result.get_global_var("main"), main)
    return result


def plain_attrs(function: relax.Function) -> dict[str, Any]:
    """A function's attributes as a dict that BlockBuilder can extend."""
    return {str(key): value for key, value in function.attrs.items() if key != "global_symbol"}


def emit_named(builder: relax.BlockBuilder, expr: Any, name: str) -> Any:
    """Bind an expression under a name hint; variables and constants need no binding."""
    if isinstance(expr, (relax.Var, ir.GenericConst)):
        return expr
    return builder.emit(expr, name_hint=name)


def is_anonymous(name: str) -> bool:
    """Whether a variable's name is one that TVM gave it, and not the model's."""
    return _ANONYMOUS.fullmatch(name) is not None


_ANONYMOUS = re.compile(r"(lv|gv)\d*")


def operands(expr: Any) -> Iterator[Any]:
    """The tensor-like operands of a bound value, with tuples unpacked."""
    kind = _kinds[type(expr)]
    if kind is relax.Call:
        for arg in expr.args[:]:
            yield from arg.fields[:] if _kinds[type(arg)] is relax.Tuple else (arg,)
    elif kind is relax.Tuple:
        yield from expr.fields[:]
    elif kind is relax.TupleGetItem:
        yield expr.tuple_value
    elif kind is relax.Var:
        yield expr


def variables_of(expr: Any) -> list[relax.Var]:
    """The operands of a bound value that are variables."""
    return [operand for operand in operands(expr) if _kinds[type(operand)] is relax.Var]


def needed(
    bindings: Sequence[relax.VarBinding], results: Sequence[relax.Expr]
) -> tuple[list[relax.VarBinding], list[relax.Var]]:
    """The bindings that some results need, in order, and all variables that these and the results read, once each."""
    read = {_place(var): var for result in results for var in variables_of(result)}
    live = []
    for binding in reversed(bindings):
        if _place(binding.var) in read:
            live.append(binding)
            for var in variables_of(binding.value):
                read.setdefault(_place(var), var)
    return live[::-1], list(read.values())


def consumers(function: relax.Function, bindings: Sequence[relax.VarBinding]) -> dict[Any, list[int]]:
    """Variable -> indices of the bindings that read it; the function's result counts as index len(bindings)."""
    found: dict[Any, list[int]] = defaultdict(list)
    for index, value in enumerate([*(binding.value for binding in bindings), function.body.body]):
        for var in variables_of(value):
            found[var].append(index)
    return found


def only_reader(
    var: Any, readers: Mapping[Any, Sequence[int]], bindings: Sequence[relax.VarBinding]
) -> relax.VarBinding | None:
    """The binding that alone reads a variable, of those that `consumers` found; None if several do, or the result."""
    found = readers[var]
    return bindings[found[0]] if len(found) == 1 and found[0] < len(bindings) else None


def total_of(terms: Sequence[relax.Expr], emit: Emit) -> relax.Expr:
    """Their sum, from the first on."""
    total = terms[0]
    for term in terms[1:]:
        total = emit(relax.op.add(total, term))
    return total


def op_name(expr: Any) -> str:
    """The operator of a call, without "relax.": "qnn.conv2d", "add"; "" for anything else."""
    if _kinds[type(expr)] is relax.Call and isinstance(expr.op, ir.Op):
        return str(expr.op.name).removeprefix("relax.")
    return ""
