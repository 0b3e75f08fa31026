"""What a TFLite model keeps between calls: one set of variables for all its subgraphs.

The variable tensors of a subgraph are none of them: LiteRT clears them whenever an operator starts to run the subgraph.
Here they are variables that are not declared, so that the rounds of a loop carry them as they carry the others.

A subgraph that is converted in place reads and assigns them directly. One that is a loop's body or a branch must return
what it assigns: which variables these are is found out by converting it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
from tvm import relax

from ...module import State
from ...op.base import constant

T = TypeVar("T")


class Variables:
    """The variables by name.

    initial:  the first values that an initialization gave
    declared: those in use with their first values, in the order of the states of `main`
    values:   what they hold from here on
    """

    def __init__(self, state: Callable[[Sequence[int], str], relax.Var]) -> None:
        """state: adds a state of a shape and dtype to `main`"""
        self.initial: dict[str, np.ndarray] = {}
        self.declared: list[State] = []
        self.values: dict[str, relax.Expr] = {}
        self._state = state
        self._parameters: dict[str, relax.Expr] = {}
        self._names: list[str] = []
        self._owned: dict[int, list[str]] = {}

    def read(self, name: str, initial: np.ndarray) -> relax.Expr:
        """The current value of a variable; its first use declares it with its initial value."""
        if name not in self.values:
            self.declared.append(State(name, initial))
            self._parameters[name] = self._state(initial.shape, str(initial.dtype))
            self.values[name] = self._parameters[name]
        return self.values[name]

    def read_owned(self, subgraph: int, name: str, initial: np.ndarray) -> relax.Expr:
        """The current value of a variable tensor of a subgraph that operators run."""
        if name not in self.values:
            self._owned.setdefault(subgraph, []).append(name)
            self._parameters[name] = constant(initial)
            self.values[name] = self._parameters[name]
        return self.values[name]

    @contextmanager
    def owned(self, *subgraphs: int) -> Iterator[None]:
        """A context in which an operator runs these subgraphs: their variable tensors start from their initial values,
        and what they then hold is lost."""
        try:
            self._clear(subgraphs)
            yield
        finally:
            self._clear(subgraphs)

    def _clear(self, subgraphs: Sequence[int]) -> None:
        for name in (name for subgraph in subgraphs for name in self._owned.get(subgraph, ())):
            self.values[name] = self._parameters[name]

    def final(self) -> list[relax.Expr]:
        """What those in use hold now, in the order of `declared`."""
        return [self.values[state.name] for state in self.declared]

    # ---- handles -------------------------------------------------------------------------------------------------

    def handle(self, name: str) -> np.ndarray:
        """A number that stands for a variable, as the value of a tensor of dtype "resource"."""
        if name not in self._names:
            self._names.append(name)
        return np.asarray(self._names.index(name), np.int32)

    def named(self, handle: np.ndarray) -> str:
        """The variable that a handle stands for."""
        return self._names[int(handle)]

    # ---- subgraphs that are functions ----------------------------------------------------------------------------

    def carried(self, convert: Callable[[list[str]], T]) -> T:
        """convert(names), again while what it converts `apart` assigns variables that are not among the names."""
        names: list[str] = []
        while True:
            before = dict(self.values)
            try:
                return convert(names)
            except _Assigned as found:
                names = [*names, *found.names]
                self._restore(before)
            except BaseException:
                self._restore(before)
                raise

    @contextmanager
    def apart(
        self, names: Sequence[str], values: Sequence[relax.Expr] | None = None
    ) -> Iterator[Callable[[], list[relax.Expr]]]:
        """A context in which variables have these values, by default their current ones, and after which they have
        those from before. Gives a function that returns what the variables then hold."""
        before = dict(self.values)
        self.values.update(zip(names, values or (), strict=False))
        inside = {**self._parameters, **self.values}

        def results() -> list[relax.Expr]:
            start = {**self._parameters, **inside}
            assigned = [name for name, value in self.values.items() if not value.same_as(start[name])]
            if missing := [name for name in assigned if name not in names]:
                raise _Assigned(missing)
            return [self.values[name] for name in names]

        try:
            yield results
        finally:
            self._restore(before)

    def _restore(self, values: dict[str, relax.Expr]) -> None:
        """Values from before; what has been declared since then is what it is at first."""
        self.values = {**self._parameters, **values}


class _Assigned(Exception):
    """A subgraph assigns variables that it does not return."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names
