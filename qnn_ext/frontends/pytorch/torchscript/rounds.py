"""Loops of a script that end when a condition does not hold that is computed from the values of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ....errors import UnsupportedOperatorError
from ....op.loop import MOST_TRIPS
from ...assembly import Assembly
from ...loops import branch, loop
from ..common import import_torch
from .decisions import Decision, chosen_values, either, is_chosen
from .run_time_sizes import Count
from .values import Traced, plain, qparams_of, traced_in

_MOST_WRITTEN_OUT = 256


@dataclass
class Rounds:
    """A `prim::Loop`.

    run:    (the round's number, the variables) -> the condition and the variables after the round. What the round
            changes must be its own
    traced: makes a value of an example and its expression
    """

    assembly: Assembly
    node: Any
    run: Callable[[Sequence[Any]], list[Any]]
    traced: Callable[[Any, relax.Expr], Traced]

    def after(self, begun: int, trips: int, condition: Decision, carried: Sequence[Any]) -> list[Any]:
        """The variables after the loop, of which `begun` rounds were known. It is one operator, unless numbers change:
        then each round is a branch of its own. Raises UnsupportedOperatorError."""
        if self._counts_nothing():
            return self._repeated(min(trips - begun, MOST_TRIPS), condition, carried)
        return self._written_out(begun, trips, condition, carried)

    def _counts_nothing(self) -> bool:
        """Whether no number changes from one round to the next."""
        (body,) = self.node.blocks()
        counter, *variables = body.inputs()
        changing = zip(variables, list(body.outputs())[1:], strict=True)
        numbers = (one.type().kind() in ("IntType", "FloatType") for one, new in changing if one != new)
        return not list(counter.uses()) and not any(numbers)

    def _repeated(self, most: int, condition: Decision, carried: Sequence[Any]) -> list[Any]:
        after: list[Any] = []

        def one_round(states: list[relax.Expr], _: list[relax.Expr]) -> tuple[Any, ...]:
            before = _in_place_of(carried, states, Traced)
            going, *after[:] = self.run([0, *before])  # nothing reads the number
            _check_round(before, after)
            return chosen_values([going])[0], chosen_values(after), []

        final, _ = loop(self.assembly, one_round, chosen_values(carried), [], most, condition=condition.expr)
        return _in_place_of(after, final, self.traced)

    def _written_out(self, begun: int, trips: int, condition: Decision | bool, carried: Sequence[Any]) -> list[Any]:
        for count in range(begun, trips):
            if condition is False:
                break
            if count - begun == _MOST_WRITTEN_OUT:
                raise UnsupportedOperatorError(
                    "a loop whose number of rounds depends on the values of a tensor, and that counts them up to more "
                    f"than {_MOST_WRITTEN_OUT}; count with a tensor, or move the decision out of it"
                )
            condition, *carried = self._perhaps(condition, [False, *carried], [count, *carried])
        for output, value in zip(self.node.outputs(), carried, strict=True):
            if not is_chosen(value) and list(output.uses()):
                raise UnsupportedOperatorError(
                    "a number or list that is read after a loop whose number of rounds depends on the values of a "
                    "tensor; make it a tensor"
                )
        return list(carried)

    def _perhaps(self, condition: Decision | bool, otherwise: list[Any], variables: list[Any]) -> list[Any]:
        """The results of a round if the condition holds. Numbers are those of the round: if there was none, no other
        follows."""
        if not isinstance(condition, Decision):
            return self.run(variables)
        after: list[Any] = []

        def then() -> list[relax.Expr]:
            after[:] = self.run(variables)
            return chosen_values(after)

        def skipped() -> list[relax.Expr]:
            return chosen_values([old for old, new in zip(otherwise, after, strict=True) if is_chosen(new)])

        found = iter(branch(self.assembly, condition.expr, then, skipped))
        return [
            either(new, old, True, found, self.traced) if is_chosen(new) else new
            for new, old in zip(after, otherwise, strict=True)
        ]


def _in_place_of(
    values: Sequence[Any], exprs: Sequence[relax.Expr], traced: Callable[[Any, relax.Expr], Traced]
) -> list[Any]:
    """The values, of which those that `chosen_values` chooses have these expressions."""
    found = iter(exprs)

    def one(value: Any) -> Any:
        if isinstance(value, (Decision, bool)):
            return Decision(bool(plain(value)), next(found))
        return traced(plain(value), next(found)) if isinstance(value, (Traced, import_torch().Tensor)) else value

    return [one(value) for value in values]


def _check_round(before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raises UnsupportedOperatorError for variables of a loop that have another kind of value after a round, and for
    those that change and are no tensors, when the number of rounds is only known at run time."""
    for old, new in zip(before, after, strict=True):
        if isinstance(old, Decision):
            continue
        if isinstance(old, Traced):
            if isinstance(new, Count) or qparams_of(old.example) != qparams_of(plain(new)):
                raise UnsupportedOperatorError("a round of a loop returns a tensor of other QParams, or a number")
        elif new is not old and (any(traced_in(new)) or new != old):
            raise UnsupportedOperatorError(
                "a loop whose number of rounds depends on the values of a tensor, and that changes a list; "
                "only tensors and numbers may change in it"
            )
