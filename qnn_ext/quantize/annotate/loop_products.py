"""The products in the bodies of loops that can be quantized, and the observers there. See `loops.py`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ...op.arguments import factors_of
from ...op.base import call_attributes, constant, definition_of, shape_of
from ...op.loop import Loop, results_of
from ...op.observe import OBSERVE
from ...op.relax_table import traits_of
from ...passes.bodies import named_bindings, with_changed_body
from ...passes.rewrite import Emit, Rebuild, bindings_of
from .families import is_constant

_MOST_ROUNDS, _FEWEST_ROUNDS = 64, 4
"""Rounds that calibration sees of a loop that takes as many as it finds at run time."""
_MOST_ELEMENTS = 1 << 20
"""Elements of all these rounds, unless the fewest have more."""


def loop_layers(function: relax.Function) -> list[str]:
    """The names of the products that can be quantized: those of the loops they are in, and their own."""
    return [
        name
        for name, binding, _ in named_bindings(function)
        if name != binding.var.name and weight_position(binding.value) is not None
    ]


def weight_position(value: Any) -> int | None:
    """Which factor of a float convolution or matrix product is a constant weight; None for other operators."""
    if definition_of(value) is not None or traits_of(value).product is None:
        return None
    factors = factors_of(value)
    constants = [index for index, factor in enumerate(factors) if is_constant(factor)]
    plain = all(len(shape_of(factor)) >= 2 and str(factor.ty.dtype) == "float32" for factor in factors)
    return constants[0] if len(constants) == 1 and plain else None


def observed_in_loops(mod: IRModule) -> Iterator[tuple[relax.Call, dict]]:
    """The observers in loops, each with its attributes."""
    for binding in bindings_of(mod["main"]):
        loop = Loop.of(binding.value)
        if loop is not None:
            yield from _observers(loop.body)


def _observers(body: relax.Function) -> Iterator[tuple[relax.Call, dict]]:
    for binding in bindings_of(body):
        loop = Loop.of(binding.value)
        if loop is not None:
            yield from _observers(loop.body)
        elif definition_of(binding.value) is OBSERVE:
            yield binding.value, call_attributes(binding.value)


class Fields:
    """of: variable of a loop in the old function -> what its results are in the new one"""

    def __init__(self) -> None:
        self.of: dict[Any, list[relax.Expr]] = {}

    def replace(self, binding: Any, environment: dict[Any, Any]) -> bool:
        """Enter a binding of one of these results into the environment; False for any other binding."""
        value = binding.value
        if not isinstance(value, relax.TupleGetItem) or value.tuple_value not in self.of:
            return False
        environment[binding.var] = self.of[value.tuple_value][value.index]
        return True


def with_rounds(loop: Loop, emit: Emit) -> tuple[list[relax.Expr], dict[str, relax.Expr]]:
    """The results of a loop without observers, and the tensors that they observe along a new first axis, by site: those
    of all rounds or, where their number is only known at run time, of some of the last ones."""
    plain, sites = _without_observers(loop)
    count = 0 if loop.condition is None or loop.trips <= _MOST_ROUNDS else len(sites)
    if count:
        first = len(loop.states) + len(loop.backwards_out)
        types = [result.ty for result in results_of(plain.body)[first + 1 :]]
        plain = _with_last_rounds(plain, types)
        count += 1  # the number of the round
    results = emit(plain.call())
    before, outputs = len(loop.states), len(loop.backwards_out)
    own = [*range(before), *range(before + count, before + count + outputs)]
    more = before if count else before + outputs
    observed = {site: emit(relax.TupleGetItem(results, more + index)) for index, site in enumerate(sites)}
    return [emit(relax.TupleGetItem(results, index)) for index in own], observed


def _without_observers(loop: Loop) -> tuple[Loop, list[str]]:
    """A loop with the observed tensors as further outputs in place of the observers, and their sites."""
    found: dict[str, Any] = {}

    def change(body: IRModule) -> IRModule:
        new, fields = Rebuild(body["main"]), Fields()
        with new.main():
            for binding in new.bindings:
                if fields.replace(binding, new.environment):
                    continue
                value = new.substituted(binding.value)
                inner = Loop.of(value)
                if inner is not None:
                    fields.of[binding.var], more = with_rounds(inner, new.builder.emit)
                    found.update(more)
                elif definition_of(value) is not OBSERVE:
                    new.bind(binding.var, value)
                else:
                    new.environment[binding.var] = value.args[0]
                    if not is_constant(value.args[0]):
                        found[call_attributes(value)["site"]] = value.args[0]
            results = [new.substituted(result) for result in results_of(body["main"])]
            new.result = relax.Tuple([*results, *found.values()])
        return new.module()

    changed = with_changed_body(loop, change)
    return replace(changed, backwards_out=(*loop.backwards_out, *(False for _ in found))), list(found)


def _with_last_rounds(loop: Loop, types: list[Any]) -> Loop:
    """A loop whose last outputs, of these types, become states: tensors of the last rounds, round i at i mod their
    number, and zero where there was none. A further state is the round's number."""
    shapes = [[int(size) for size in ty.shape] for ty in types]
    kept = [min(max(_MOST_ELEMENTS // max(math.prod(shape), 1), _FEWEST_ROUNDS), _MOST_ROUNDS) for shape in shapes]
    initial = [np.zeros((count, *shape), str(ty.dtype)) for count, shape, ty in zip(kept, shapes, types, strict=True)]
    states = [constant(array) for array in (*initial, np.asarray(0, np.int64))]

    def change(body: IRModule) -> IRModule:
        new = Rebuild(body["main"])
        captured, own, slices = loop.parameters
        rings = [relax.Var(f"rounds{index}", state.ty) for index, state in enumerate(states)]
        with new.main([*captured, *own, *rings, *slices]):
            for binding in new.bindings:
                new.bind(binding.var, new.substituted(binding.value))
            results = [new.substituted(result) for result in results_of(body["main"])]
            first = 1 + len(own)  # behind the condition
            places = zip(rings, results[-len(types) :], kept, strict=False)
            written = [_written(*place, rings[-1], new.builder.emit) for place in places]
            after = new.builder.emit(relax.op.add(rings[-1], constant(np.int64(1))))
            new.result = relax.Tuple([*results[:first], *written, after, *results[first : -len(types)]])
        return new.module()

    changed = with_changed_body(loop, change)
    return replace(
        changed,
        states=(*loop.states, *states),
        backwards_out=loop.backwards_out[: len(loop.backwards_out) - len(types)],
    )


def _written(ring: relax.Var, value: relax.Expr, count: int, number: relax.Expr, emit: Emit) -> relax.Expr:
    """`ring` with a value at the place of this round."""
    shape = shape_of(value)
    place = emit(relax.op.mod(number, constant(np.int64(count))))
    here = emit(relax.op.equal(constant(np.arange(count).reshape(count, *(1 for _ in shape))), place))
    return emit(relax.op.where(here, emit(relax.op.reshape(value, (1, *shape))), ring))
