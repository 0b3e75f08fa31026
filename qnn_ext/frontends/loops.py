"""Loops of a model: what a converter emits for one round becomes the body of a `qnn.loop`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import IRModule, relax

from ..errors import ModelFormatError, UnsupportedOperatorError
from ..limits import check_elements, checkpoint
from ..op.base import as_expr, constant, constant_value, shape_of
from ..op.evaluate import interpret
from ..op.loop import loop as call_of
from ..passes.bodies import has_loops
from ..passes.rewrite import function_of, needed, substitute, variables_of
from .assembly import Assembly, Conversion

Body = Callable[[list[relax.Expr], list[relax.Expr]], tuple[Any, ...]]
Branch = Callable[[], Sequence[relax.Expr]]

_MOST_TRIPS = 2**31 - 1
_MOST_COUNTED = 1 << 14
"""Rounds that are counted at import, at a fraction of a millisecond each."""


class ChangingStateError(ModelFormatError):
    """A state has another type after a round."""


class RunTimeSizeError(UnsupportedOperatorError):
    """A state, a slice or a result of a round has a size known only at run time."""


class UnknownRoundsError(UnsupportedOperatorError):
    """The number of rounds is only known at run time."""


def loop(
    node: Conversion | Assembly,
    body: Body,
    states: Sequence[relax.Expr],
    sequences: Sequence[relax.Expr],
    trips: int,
    *,
    backwards_in: Sequence[bool] = (),
    backwards_out: Sequence[bool] = (),
    condition: relax.Expr | None = None,
    whole: bool = False,
) -> tuple[list[relax.Expr], list[relax.Expr]]:
    """The final states, and the outputs of all rounds, each stacked along a new axis 0.

    body: (states, slices of the sequences) -> (new states, outputs); with `condition`, -> (condition, new states,
        outputs). What it emits into `node` becomes the loop's body, and may use any variable from outside.
    trips: the number of rounds, the most of them with a `condition`. A condition that depends only on constants, such
        as that a counter is below a limit, is evaluated now; then there are fewer rounds and as many outputs.
    sequences, backwards_in, backwards_out, condition: as in `op.loop`
    whole: whether there are as many rounds as slices of the outputs, and not more than of the sequences, of which those
        after the last round are not read. The number of rounds must be known then

    Raises ChangingStateError if a state changes its shape or dtype, RunTimeSizeError where a size is known only at run
    time, UnsupportedOperatorError for outputs whose number is, LimitError if they are too large.
    """
    assembly = node.assembly if isinstance(node, Conversion) else node
    states, sequences = [as_expr(state) for state in states], [as_expr(sequence) for sequence in sequences]
    _refuse_sizes(assembly, [*states, *sequences], "a state of a loop")
    own = [relax.Var(f"state{index}", state.ty) for index, state in enumerate(states)]
    slices = [
        relax.Var(f"slice{index}", relax.TensorType(shape_of(sequence)[1:], sequence.ty.dtype))
        for index, sequence in enumerate(sequences)
    ]
    with _block(assembly, [*own, *slices]) as bindings:
        *found, new_states, outputs = body(list(own), list(slices))
    going, new_states, outputs = ([as_expr(value) for value in values] for values in (found, new_states, outputs))
    _refuse_sizes(assembly, [*going, *new_states, *outputs], "a result of a round of a loop")
    check_states(states, new_states)
    if condition is not None:
        rounds = _counted(_Function(bindings, [*going, *new_states], own), [condition, *states], trips)
        if rounds is not None:
            trips, condition, going = rounds, None, []
        elif (outputs or sequences) and whole:
            raise UnknownRoundsError(
                "the number of rounds, and so the length of the stacked outputs, depends on values computed at run time"
            )
    for output in outputs:
        check_elements((trips, *shape_of(output)), "the loop's output")
    if condition is None and trips > _MOST_TRIPS:
        raise UnsupportedOperatorError(f"a loop of {trips:,} rounds; up to {_MOST_TRIPS:,} are supported")
    if whole:
        sequences = [_beginning(assembly, sequence, trips) for sequence in sequences]
    if trips == 0:
        empty = [constant(np.zeros((0, *shape_of(output)), str(output.ty.dtype))) for output in outputs]
        return states, empty
    changing = [index for index, (old, new) in enumerate(zip(own, new_states, strict=True)) if not new.same_as(old)]
    fixed = {old: state for old, state, new in zip(own, states, new_states, strict=True) if new.same_as(old)}
    bindings = [relax.VarBinding(binding.var, substitute(binding.value, fixed)) for binding in bindings]
    results = [substitute(value, fixed) for value in (*going, *(new_states[index] for index in changing), *outputs)]
    function = _Function(bindings, results, [*(own[index] for index in changing), *slices])
    initial = [states[index] for index in changing]
    call = call_of(
        function.definition, function.captured, initial, sequences, trips, backwards_in, backwards_out, condition
    )
    fields = _fields(node, call)
    for index in changing:
        states[index] = fields.pop(0)
    return states, fields


def _refuse_sizes(assembly: Assembly, values: Sequence[Any], what: str) -> None:
    try:
        assembly.builder.sizes.refuse(values, what)
    except UnsupportedOperatorError as error:
        raise RunTimeSizeError(str(error)) from None


def branch(node: Conversion | Assembly, condition: relax.Expr, then: Branch, otherwise: Branch) -> list[relax.Expr]:
    """The results of `then` if the condition, a bool scalar, is true, else those of `otherwise`. Only one of them is
    computed: each is a loop of at most one round.

    then, otherwise: what they emit into `node` becomes a branch, and may use any variable from outside

    Raises UnsupportedOperatorError if the branches differ in the types of their results.
    """
    assembly = node.assembly if isinstance(node, Conversion) else node
    taken = []
    for emit_branch in (then, otherwise):
        with _block(assembly, []) as bindings:
            taken.append((bindings, [as_expr(result) for result in emit_branch()]))
        assembly.builder.sizes.refuse(taken[-1][1], "a result of a branch chosen at run time")
    types = [[_type(result) for result in results] for _, results in taken]
    if types[0] != types[1]:
        one, other = next((pair for pair in zip(*types, strict=False) if pair[0] != pair[1]), map(len, types))
        raise UnsupportedOperatorError(
            f"the branches of a condition computed at run time differ: {one} and {other}{_remedy(assembly, condition)}"
        )
    results = [
        assembly.emit(relax.op.broadcast_to(constant(np.zeros((), str(result.ty.dtype))), shape_of(result)))
        for result in taken[0][1]
    ]
    conditions = (condition, assembly.emit(relax.op.logical_not(condition)))
    for going, (bindings, values) in zip(conditions, taken, strict=True):
        own = [relax.Var(f"state{index}", value.ty) for index, value in enumerate(results)]
        function = _Function(bindings, [constant(np.bool_(False)), *values], own)
        results = _fields(node, call_of(function.definition, function.captured, results, [], 1, condition=going))
    return results


def _remedy(assembly: Assembly, condition: relax.Expr) -> str:
    """How a condition becomes known at import, for an error."""
    pending, behind = [condition], set()
    while pending:
        value = pending.pop()
        behind.add(value)
        binding = assembly.builder.lookup_binding(value) if isinstance(value, relax.Var) else None
        pending += [var for var in variables_of(binding) if var not in behind]
    names = [var.name for var in assembly.inputs if var in behind]
    if not 0 < len(names) < len(assembly.inputs):
        return ""
    example = ", ".join(f"{name!r}: …" for name in names)
    options = " ".join(f"--constant {name}=…" for name in names)
    return f"; if what it depends on never changes, bind it at import: constants={{{example}}}, or {options}"


def _beginning(assembly: Assembly, sequence: relax.Expr, count: int) -> relax.Expr:
    length = shape_of(sequence)[0]
    if count > length:
        raise ModelFormatError(f"the loop takes {count} rounds, and a tensor it goes through has only {length} slices")
    return sequence if count == length else assembly.emit(relax.op.strided_slice(sequence, [0], [0], [count]))


def _type(value: relax.Expr) -> str:
    return f"{value.ty.dtype} of shape {shape_of(value)}"


def _fields(node: Conversion | Assembly, call: relax.Call) -> list[relax.Expr]:
    results = node.emit(call)
    return [node.emit(relax.TupleGetItem(results, index)) for index in range(len(results.ty.fields))]


class _Function:
    """Bindings as a function with these parameters; captured: the other variables that they use."""

    def __init__(
        self, bindings: Sequence[relax.VarBinding], results: Sequence[relax.Expr], params: Sequence[relax.Var]
    ) -> None:
        live, read = needed(bindings, results)
        bound = {*params, *(binding.var for binding in live)}
        self.captured = [var for var in read if var not in bound]
        self._parts = live, list(results), list(params)

    @property
    def definition(self) -> relax.Function:
        bindings, results, params = self._parts
        return function_of("body", bindings, [*self.captured, *params], relax.Tuple(results), private=True)

    def sources(self, results: Sequence[relax.Expr]) -> set[relax.Var]:
        """The variables from outside, and the parameters, that some of the results depend on."""
        live, read = needed(self._parts[0], results)
        return set(read) - {binding.var for binding in live}

    def restricted(self, results: Sequence[relax.Expr], params: Sequence[relax.Var]) -> relax.Function:
        """The function of fewer parameters that computes some of the results."""
        live, _ = needed(self._parts[0], results)
        return function_of("main", live, list(params), relax.Tuple(list(results)))

    @property
    def results(self) -> list[relax.Expr]:
        return self._parts[1]

    @property
    def params(self) -> list[relax.Var]:
        return self._parts[2]


def _counted(update: _Function, values: Sequence[relax.Expr], most: int) -> int | None:
    """The number of rounds, if their condition depends only on states that start with constants and on nothing else.

    update: what a round computes: the condition and the new states. values: what they are at first
    """
    going, *states = (constant_value(value) for value in values)
    if going is None:
        return None
    if not going:
        return 0
    condition, *new_states = update.results
    position = {param: index for index, param in enumerate(update.params)}
    involved: set[relax.Var] = set()
    pending = update.sources([condition])
    while pending - involved:
        var = (pending - involved).pop()
        if var not in position or states[position[var]] is None:
            return None
        involved.add(var)
        pending |= update.sources([new_states[position[var]]])
    params = [param for param in update.params if param in involved]
    results = [condition, *(new_states[position[param]] for param in params)]
    mod = IRModule({"main": update.restricted(results, params)})
    if has_loops(mod):
        return None
    carried: list[Any] = [states[position[param]] for param in params]
    for rounds in range(1, _MOST_COUNTED):
        if rounds >= most:
            return most
        checkpoint()
        with np.errstate(all="ignore"):
            going, *carried = interpret(mod, carried)
        if not going:
            return rounds
        if not params:
            return most
    return None


@contextmanager
def _block(assembly: Assembly, params: Sequence[relax.Var]) -> Iterator[list[relax.VarBinding]]:
    """A context whose emitted bindings stay out of the surrounding block; they are in the list afterwards."""
    builder = assembly.builder
    found: list[relax.VarBinding] = []
    builder.begin_scope(list(params))
    builder._begin_dataflow_block()
    try:
        with builder.sizes.block():
            yield found
    finally:
        found.extend(builder._end_block().bindings)
        builder.end_scope()


def check_states(states: Sequence[relax.Expr], new: Sequence[relax.Expr]) -> None:
    """Raises ChangingStateError unless the new states have the types of the old ones."""
    if len(states) != len(new):
        raise ModelFormatError(f"the loop has {len(states)} states, and its body returns {len(new)}")
    for index, (before, after) in enumerate(zip(states, new, strict=True)):
        if (shape_of(before), str(before.ty.dtype)) != (shape_of(after), str(after.ty.dtype)):
            raise ChangingStateError(
                f"state {index} of the loop changes from {before.ty.dtype} of shape {shape_of(before)} to "
                f"{after.ty.dtype} of shape {shape_of(after)}: only states that keep their type are supported"
            )
