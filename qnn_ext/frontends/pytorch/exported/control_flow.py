"""torch.cond, while_loop, map and scan: operators on graphs. A branch or a loop becomes a `qnn.loop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx
from tvm import relax

from ....errors import UnsupportedOperatorError
from ....op.base import constant_value, shape_of
from ....op.loop import MOST_TRIPS
from ...assembly import Assembly
from ...loops import branch, loop

Run = Callable[[Any, Sequence[Any]], list[Any]]
"""Converts a graph, an argument of the operator, with these values; returns its outputs."""


def _cond(run: Run, assembly: Assembly, condition: Any, then: Any, otherwise: Any, operands: Any) -> list[Any]:
    """The results of one graph or the other one. A known condition chooses now."""
    known = condition if isinstance(condition, bool) else constant_value(condition)
    if known is not None:
        return run(then if np.all(known) else otherwise, operands)
    return branch(assembly, _scalar(assembly, condition), lambda: run(then, operands), lambda: run(otherwise, operands))


def _while_loop(run: Run, assembly: Assembly, going: Any, body: Any, states: Any, more: Any) -> list[Any]:
    """The states after as many rounds as the condition holds before."""
    _check_tensors(states)

    def holds(current: Sequence[relax.Expr]) -> relax.Expr:
        return _scalar(assembly, run(going, [*current, *more])[0])

    def one_round(current: list[relax.Expr], _: list[relax.Expr]) -> tuple[Any, ...]:
        new = run(body, [*current, *more])
        return holds(new), new, []

    final, _ = loop(assembly, one_round, states, [], MOST_TRIPS, condition=holds(states))
    return final


def _map(run: Run, assembly: Assembly, body: Any, sequences: Any, more: Any) -> list[Any]:
    """The results of the body for each slice along the first axis, stacked."""
    return loop(assembly, lambda _, parts: ([], run(body, [*parts, *more])), [], sequences, _length(sequences))[1]


def _scan(run: Run, assembly: Assembly, body: Any, states: Any, sequences: Any, more: Any) -> list[Any]:
    """The last states, and what the body returns beside them for each slice along the first axis, stacked."""

    def one_round(current: list[relax.Expr], parts: list[relax.Expr]) -> tuple[Any, ...]:
        results = run(body, [*current, *parts, *more])
        return results[: len(current)], results[len(current) :]

    final, outputs = loop(assembly, one_round, states, sequences, _length(sequences))
    return [*final, *outputs]


def _length(sequences: Sequence[relax.Expr]) -> int:
    return int(shape_of(sequences[0])[0])


def _scalar(assembly: Assembly, condition: relax.Expr) -> relax.Expr:
    return assembly.emit(relax.op.reshape(condition, [])) if shape_of(condition) else condition


def _check_tensors(states: Sequence[Any]) -> None:
    if not all(isinstance(state, relax.Expr) for state in states):
        raise UnsupportedOperatorError("a state of a loop that is a number; make it a tensor: torch.tensor(0)")


_CONVERTERS: dict[str, Callable[..., list[Any]]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "map_impl": _map,
    "scan": _scan,
}


def converter_of(node: fx.Node) -> Callable[..., list[Any]] | None:
    """What converts an operator on graphs: (run, assembly, *operands) -> results. None for other operators."""
    target: Any = node.target
    return _CONVERTERS.get(target.name()) if isinstance(target, torch._ops.HigherOrderOperator) else None
