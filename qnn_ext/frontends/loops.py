"""Loops of a model: what a converter emits for one round becomes the body of a `qnn.loop`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from tvm import relax

from ..errors import ModelFormatError
from ..limits import check_elements
from ..op.base import as_expr, constant, shape_of
from ..op.loop import loop as call_of
from ..passes.rewrite import function_of, operands
from .assembly import Assembly, Conversion

Body = Callable[[list[relax.Expr], list[relax.Expr]], tuple[Any, ...]]


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
) -> tuple[list[relax.Expr], list[relax.Expr]]:
    """The final states, and the outputs of all rounds, each stacked along a new axis 0.

    body: (states, slices of the sequences) -> (new states, outputs); with `condition`, -> (condition, new states,
        outputs). What it emits into `node` becomes the loop's body, and may use any variable from outside.
    trips: the number of rounds, the most of them with a `condition`
    sequences, backwards_in, backwards_out, condition: as in `op.loop`

    Raises ModelFormatError if a state changes its shape or dtype, LimitError if the outputs are too large.
    """
    assembly = node.assembly if isinstance(node, Conversion) else node
    states, sequences = [as_expr(state) for state in states], [as_expr(sequence) for sequence in sequences]
    own = [relax.Var(f"state{index}", state.ty) for index, state in enumerate(states)]
    slices = [
        relax.Var(f"slice{index}", relax.TensorType(shape_of(sequence)[1:], sequence.ty.dtype))
        for index, sequence in enumerate(sequences)
    ]
    with _block(assembly, [*own, *slices]) as bindings:
        *going, new_states, outputs = body(list(own), list(slices))
        going, new_states, outputs = ([as_expr(value) for value in values] for values in (going, new_states, outputs))
    _check_states(states, new_states)
    for output in outputs:
        check_elements((trips, *shape_of(output)), "the loop's output")
    if trips == 0:
        empty = [constant(np.zeros((0, *shape_of(output)), str(output.ty.dtype))) for output in outputs]
        return states, empty
    result = relax.Tuple([*going, *new_states, *outputs])
    needed, captured = _needed(bindings, result, {*own, *slices})
    function = function_of("body", needed, [*captured, *own, *slices], result, private=True)
    call = call_of(function, captured, states, sequences, trips, backwards_in, backwards_out, condition)
    results = assembly.emit(call)
    fields = [assembly.emit(relax.TupleGetItem(results, index)) for index in range(len(states) + len(outputs))]
    return fields[: len(states)], fields[len(states) :]


@contextmanager
def _block(assembly: Assembly, params: Sequence[relax.Var]) -> Iterator[list[relax.VarBinding]]:
    """A context whose emitted bindings stay out of the surrounding block; they are in the list afterwards."""
    builder = assembly.builder
    found: list[relax.VarBinding] = []
    builder.begin_scope(list(params))
    builder._begin_dataflow_block()
    try:
        yield found
    finally:
        found.extend(builder._end_block().bindings)
        builder.end_scope()


def _check_states(states: Sequence[relax.Expr], new: Sequence[relax.Expr]) -> None:
    if len(states) != len(new):
        raise ModelFormatError(f"the loop has {len(states)} states, and its body returns {len(new)}")
    for index, (before, after) in enumerate(zip(states, new, strict=True)):
        if (shape_of(before), str(before.ty.dtype)) != (shape_of(after), str(after.ty.dtype)):
            raise ModelFormatError(
                f"state {index} of the loop changes from {before.ty.dtype} of shape {shape_of(before)} to "
                f"{after.ty.dtype} of shape {shape_of(after)}: only states that keep their type are supported"
            )


def _needed(
    bindings: Sequence[relax.VarBinding], result: relax.Tuple, params: set[relax.Var]
) -> tuple[list[relax.VarBinding], list[relax.Var]]:
    """The bindings that a result needs, and the variables of the surrounding block that they use."""
    used: dict[relax.Var, None] = dict.fromkeys(var for var in operands(result) if isinstance(var, relax.Var))
    needed, bound = [], set(params)
    for binding in reversed(bindings):
        if binding.var in used:
            needed.append(binding)
            bound.add(binding.var)
            used.update(dict.fromkeys(var for var in operands(binding.value) if isinstance(var, relax.Var)))
    return needed[::-1], [var for var in used if var not in bound]
