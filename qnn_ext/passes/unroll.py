"""Unroll: loops written out round by round, for what cannot run them, and to read modules without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..limits import check
from ..op.base import constant, shape_of
from ..op.loop import Loop
from .rewrite import Emit, Rebuild, bindings_of, substitute, without_dead_code


def unrolled(mod: IRModule, chosen: Callable[[Loop], bool] | None = None) -> IRModule:
    """`mod` with the chosen loops written out, by default all of them, those inside others as well. What follows a
    condition that is false is computed and then not used. Raises LimitError for too many rounds."""
    new = Rebuild(mod["main"])
    wanted = chosen or (lambda loop: True)
    loops = [loop for loop in (Loop.of(binding.value) for binding in new.bindings) if loop]
    if not any(map(wanted, loops)):
        return mod
    with new.main():
        _Unroller(new.builder, wanted).run(new.function, new.environment)
        new.result = substitute(new.function.body.body, new.environment)
    return without_dead_code(new.module())


class _Unroller:
    def __init__(self, builder: relax.BlockBuilder, chosen: Callable[[Loop], bool]) -> None:
        self._builder = builder
        self._chosen = chosen

    def run(self, function: relax.Function, environment: dict[Any, Any]) -> None:
        """Emit a function's bindings, with its parameters, and from then on its variables, as in `environment`."""
        for binding in bindings_of(function):
            value = substitute(binding.value, environment)
            loop = Loop.of(value)
            if loop is not None and self._chosen(loop):
                environment[binding.var] = relax.Tuple(self._rounds(loop, self._emitter(binding.var.name)))
            elif isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Tuple):
                environment[binding.var] = value.tuple_value.fields[value.index]
            elif isinstance(value, (relax.Tuple, relax.Var)):
                environment[binding.var] = value
            else:
                environment[binding.var] = self._builder.emit(value, name_hint=binding.var.name)

    def _emitter(self, name: str) -> Emit:
        return lambda expr: self._builder.emit(expr, name_hint=name)

    def _rounds(self, loop: Loop, emit: Emit) -> list[relax.Expr]:
        check("unrolled", loop.trips, "a loop that has to be unrolled")
        captured, own, slices = loop.parameters
        going, states = loop.condition, list(loop.states)
        outputs: list[list[relax.Expr]] = [[] for _ in loop.backwards_out]
        condition, new_states, results = loop.results
        for number in range(loop.trips):
            environment = dict(zip([*captured, *own], [*loop.captured, *states], strict=True))
            for param, whole, back in zip(slices, loop.sequences, loop.backwards_in, strict=True):
                environment[param] = _slice(whole, loop.trips - 1 - number if back else number, emit)
            self.run(loop.body, environment)
            before, states = states, [substitute(state, environment) for state in new_states]
            found = [substitute(result, environment) for result in results]
            if going is not None:
                states = [emit(relax.op.where(going, *pair)) for pair in zip(states, before, strict=True)]
                found = [emit(relax.op.where(going, result, _zeros(result))) for result in found]
                going = emit(relax.op.logical_and(going, substitute(condition, environment)))
            for rounds, result in zip(outputs, found, strict=True):
                rounds.append(emit(relax.op.reshape(result, (1, *shape_of(result)))))
        stacked = zip(results, outputs, loop.backwards_out, strict=True)
        return [*states, *(_stacked(result, rounds[:: -1 if back else 1], emit) for result, rounds, back in stacked)]


def _stacked(result: relax.Expr, rounds: list[relax.Expr], emit: Emit) -> relax.Expr:
    """The outputs of all rounds along a new axis; result: the output of one round"""
    if not rounds:
        return constant(np.zeros((0, *shape_of(result)), str(result.ty.dtype)))
    return emit(relax.op.concat(rounds, 0)) if len(rounds) > 1 else rounds[0]


def _slice(whole: relax.Expr, index: int, emit: Emit) -> relax.Expr:
    part = emit(relax.op.strided_slice(whole, [0], [index], [index + 1])) if shape_of(whole)[0] > 1 else whole
    return emit(relax.op.reshape(part, shape_of(whole)[1:]))


def _zeros(expr: relax.Expr) -> relax.Expr:
    return constant(np.zeros((), str(expr.ty.dtype)))
