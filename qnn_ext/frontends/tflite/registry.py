"""The one registry of the TFLite frontend: operator name -> converter, with the operator versions it understands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Converter:
    """How one operator becomes Relax expressions.

    convert:     (Node) -> expression, or a list with one expression per output
    max_version: the newest operator version whose meaning `convert` implements
    """

    convert: Callable[[Any], Any | Sequence[Any]]
    max_version: int


CONVERTERS: dict[str, Converter] = {}


def converter(*names: str, max_version: int) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register the decorated function for these operators (custom operators go by their custom code)."""

    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        for name in names:
            if name in CONVERTERS:
                raise ValueError(f"two converters for {name}")
            CONVERTERS[name] = Converter(function, max_version)
        return function

    return register
