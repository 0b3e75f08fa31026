"""The bodies of loops: what every pass over `main` leaves alone goes through the passes as a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tvm import IRModule, ir, relax
from tvm.relax.expr import _update_type

from ..op.loop import Loop
from .rewrite import Rebuild, bindings_of, function_of, needed, op_name, substitute, variables_of


def has_loops(mod: IRModule) -> bool:
    """Whether `main` calls a loop."""
    return any(Loop.of(binding.value) for binding in bindings_of(mod["main"]))


def every_binding(mod: IRModule) -> Iterator[tuple[relax.VarBinding, int]]:
    """The bindings of `main` and of the loops in it, in order, and how often each is computed: with a condition at
    least once."""
    return ((binding, rounds) for _, binding, rounds in named_bindings(mod["main"]))


def named_bindings(
    function: relax.Function, prefix: str = "", rounds: int = 1
) -> Iterator[tuple[str, relax.VarBinding, int]]:
    """As `every_binding`, each with its name: LOOP.VARIABLE in a loop."""
    for binding in bindings_of(function):
        name, loop = f"{prefix}{binding.var.name}", Loop.of(binding.value)
        if loop is None:
            yield name, binding, rounds
        else:
            yield from named_bindings(loop.body, f"{name}.", rounds * (loop.trips if loop.condition is None else 1))


def body_module(loop: Loop) -> IRModule:
    """A module whose `main` is the body of a loop."""
    return IRModule({"main": loop.body.with_attr("global_symbol", "main")})


def with_changed_body(loop: Loop, change: Callable[[IRModule], IRModule]) -> Loop:
    """A loop with change(module of its body) as its body."""
    return loop.with_body(_private(change(body_module(loop))["main"]))


def with_bodies(mod: IRModule, change: Callable[[IRModule], IRModule]) -> IRModule:
    """`mod` with change(module of the body) for the body of each loop in `main`. Other functions in the changed modules
    become functions of `mod`, under names of their own."""
    if not has_loops(mod):
        return mod
    functions = {var: function for var, function in mod.functions_items() if var.name_hint != "main"}
    names = {var.name_hint for var in mod.get_global_vars()}
    new = Rebuild(mod["main"])
    with new.main():
        for binding in new.bindings:
            loop = Loop.of(binding.value)
            if loop is None:
                new.keep(binding)
                continue
            changed = change(body_module(loop))
            renamed: dict[Any, ir.GlobalVar] = {}
            for var, function in changed.functions_items():
                if var.name_hint != "main":
                    renamed[var] = ir.GlobalVar(_unused(var.name_hint, names))
                    _update_type(renamed[var], var.ty)
                    functions[renamed[var]] = function
            body = _calling(changed["main"], renamed) if renamed else changed["main"]
            new.bind(binding.var, new.substituted(loop.with_body(_private(body)).call()))
    return IRModule({**functions, mod.get_global_var("main"): new.module()["main"]}, attrs=mod.attrs)


def everywhere(mod: IRModule, change: Callable[[IRModule], IRModule]) -> IRModule:
    """change(`mod`), with the same change in the bodies of all its loops, those of loops in loops as well."""
    return with_bodies(change(mod), lambda body: everywhere(body, change))


def _unused(name: str, names: set[str]) -> str:
    found, number = name, 0
    while found in names:
        number += 1
        found = f"{name}_{number}"
    names.add(found)
    return found


def _private(function: relax.Function) -> relax.Function:
    return function.without_attr("global_symbol")


def _calling(function: relax.Function, renamed: dict[Any, ir.GlobalVar]) -> relax.Function:
    """A function whose kernels, and those of loops in it, have other names."""
    new = Rebuild(function)
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            loop = Loop.of(value)
            if loop is not None:
                value = loop.with_body(_private(_calling(loop.body, renamed))).call()
            if op_name(value) == "call_tir":
                value = relax.Call(value.op, [renamed[value.args[0]], *value.args[1:]], value.attrs, value.ty_args)
            new.bind(binding.var, value)
    return new.module()["main"]


def without_unused(mod: IRModule) -> IRModule:
    """`mod` with loops that have only those states, outputs and sequences that something needs."""
    if not has_loops(mod):
        return mod
    new = Rebuild(mod["main"])
    used: dict[Any, set[int]] = {binding.var: set() for binding in new.bindings if Loop.of(binding.value)}
    for value in (*(binding.value for binding in new.bindings), new.function.body.body):
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in used:
            used[value.tuple_value].add(value.index)
            continue
        for var in variables_of(value):
            if var in used:
                used[var] = set(range(len(var.ty.fields)))
    places: dict[Any, dict[int, int]] = {}
    with new.main():
        for binding in new.bindings:
            value = binding.value
            if isinstance(value, relax.TupleGetItem) and value.tuple_value in places:
                field = places[value.tuple_value][value.index]
                new.bind(binding.var, relax.TupleGetItem(new.substituted(value.tuple_value), field))
                continue
            loop = Loop.of(value)
            if loop is not None:
                trimmed, kept = _trimmed(loop, used[binding.var])
                places[binding.var] = {old: index for index, old in enumerate(kept)}
                value = trimmed.call()
            new.bind(binding.var, new.substituted(value))
    return new.live_module()


def _trimmed(loop: Loop, used: set[int]) -> tuple[Loop, list[int]]:
    """A loop with only some of its results and what they need, and which results it still has."""
    captured, own, slices = loop.parameters
    condition, new_states, outputs = loop.results
    kept_outputs = [i for i in range(len(outputs)) if len(own) + i in used]
    fixed = [*([] if condition is None else [condition]), *(outputs[i] for i in kept_outputs)]
    states = {i for i in range(len(own)) if i in used}
    while True:
        live, read = needed(bindings_of(loop.body), [*fixed, *(new_states[i] for i in states)])
        found = states | {i for i, param in enumerate(own) if param in read}
        if found == states:
            break
        states = found
    kept = sorted(states)
    results = [*fixed[: condition is not None], *(new_states[i] for i in kept), *fixed[condition is not None :]]
    from_outside = [i for i, param in enumerate(captured) if param in read]
    parts = [i for i, param in enumerate(slices) if param in read]
    params = [*(captured[i] for i in from_outside), *(own[i] for i in kept), *(slices[i] for i in parts)]
    trimmed = replace(
        loop,
        body=function_of("body", live, params, relax.Tuple(results), private=True),
        captured=tuple(loop.captured[i] for i in from_outside),
        states=tuple(loop.states[i] for i in kept),
        sequences=tuple(loop.sequences[i] for i in parts),
        backwards_in=tuple(loop.backwards_in[i] for i in parts),
        backwards_out=tuple(loop.backwards_out[i] for i in kept_outputs),
    )
    return trimmed, [*kept, *(len(own) + i for i in kept_outputs)]


def hoist_invariants(mod: IRModule) -> IRModule:
    """`mod` with what is the same in every round computed before the loop. What a condition may skip stays inside, and
    so does what is constant: weights are packed when the model is built."""
    if not has_loops(mod):
        return mod
    new = Rebuild(mod["main"])
    with new.main():
        for binding in new.bindings:
            value = new.substituted(binding.value)
            loop = Loop.of(value)
            if loop is not None and loop.condition is None and loop.trips > 1:
                value = _Hoist(loop, new.builder).call()
            new.bind(binding.var, value)
    return new.module()


class _Hoist:
    """One loop, whose invariant operators go to the builder."""

    def __init__(self, loop: Loop, builder: relax.BlockBuilder) -> None:
        self._loop = loop
        self._builder = builder
        self._constant: dict[Any, relax.VarBinding] = {}  # by the variables that depend on nothing
        self._outside: dict[Any, Any] = dict(zip(loop.parameters[0], loop.captured, strict=True))

    def call(self) -> relax.Call:
        """The loop without them."""
        kept = []
        for binding in bindings_of(self._loop.body):
            read = variables_of(binding.value)
            if all(var in self._constant for var in read):
                self._constant[binding.var] = binding
                kept.append(binding)
            elif all(var in self._outside or var in self._constant for var in read):
                self._emit(binding)
            else:
                kept.append(binding)
        loop = self._loop
        _, new_states, outputs = loop.results
        result = relax.Tuple([*new_states, *outputs])
        inside = {binding.var for binding in kept}
        read = [var for value in (*(binding.value for binding in kept), result) for var in variables_of(value)]
        captured = list(dict.fromkeys(var for var in read if var in self._outside and var not in inside))
        own, slices = loop.parameters[1:]
        body = function_of("body", kept, [*captured, *own, *slices], result, private=True)
        return replace(loop, body=body, captured=tuple(self._outside[var] for var in captured)).call()

    def _emit(self, binding: relax.VarBinding) -> None:
        for var in variables_of(binding.value):
            if var not in self._outside:
                self._emit(self._constant[var])
        value = substitute(binding.value, self._outside)
        is_call = isinstance(value, (relax.Call, relax.TupleGetItem))
        self._outside[binding.var] = self._builder.emit(value, name_hint=binding.var.name) if is_call else value
