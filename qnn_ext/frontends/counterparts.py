"""Counterparts of a format's converters, for operators that read tensors whose sizes are known only at run time, or
shapes with such sizes: those that take numbers from shapes. Others carry the sizes on (`sizes.py`), or are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tvm import relax

from .bounded_values import scalars_of
from .sizes import Sizes

Convert = TypeVar("Convert", bound=Callable[..., Any])


class Counterparts:
    """converters: by the operators' names; carrying: the operators whose own converters take no numbers from shapes"""

    def __init__(self, carrying: str) -> None:
        self.converters: dict[str, Callable[..., Any]] = {}
        self.carrying = frozenset(carrying.split())

    def of(self, *names: str) -> Callable[[Convert], Convert]:
        """Register the decorated converter for these operators."""

        def register(function: Convert) -> Convert:
            self.converters.update(dict.fromkeys(names, function))
            return function

        return register

    def convert(
        self,
        node: Any,
        sizes: Sizes,
        name: str,
        inputs: Iterable[Any],
        computed: Callable[[Any, Sizes], relax.Expr | None],
        known: bool = True,
    ) -> Any:
        """The result of an operator with these inputs, None where its own converter does it right. Raises
        UnsupportedOperatorError.

        computed: (node, sizes) -> the shape that it computes from shapes, if it does
        known:    whether the name is that of an operator known here, not of another domain's
        """
        values = [value for value in inputs if isinstance(value, relax.Var)]
        shaped = any(sizes.elements(value) is not None for value in values)
        if not shaped and not any(sizes.of(value) for value in values):
            return None
        found = computed(node, sizes) if shaped and known else None
        if found is not None:
            return found
        if known and name in self.converters:
            return self.converters[name](node, sizes)
        if not known or name not in self.carrying:
            sizes.refuse(values, name)
        return None


def given_dims(node: Any, sizes: Sizes, index: int) -> list[Any]:
    """An input that is a shape, or a part of one: integers and sizes."""
    found = sizes.elements(node.input(index))
    return node.integers(index) if found is None else found.reshape(-1).tolist()


def given_bounds(node: Any, sizes: Sizes, index: int) -> list[Any]:
    """An input that is bounds of slices: integers, sizes, and scalars computed from data."""
    known = sizes.elements(node.input(index)) is not None
    return given_dims(node, sizes, index) if known else scalars_of(sizes.builder, node.input(index))
