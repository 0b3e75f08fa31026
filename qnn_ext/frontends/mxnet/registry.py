"""The one registry of the MXNet frontend: operator name -> converter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Converter = Callable[[Any], Any | Sequence[Any]]
CONVERTERS: dict[str, Converter] = {}


def converter(*names: str) -> Callable[[Converter], Converter]:
    """Register the decorated function, (Node) -> expression or a list with one per output, for these operators."""

    def register(function: Converter) -> Converter:
        for name in names:
            if name in CONVERTERS:
                raise ValueError(f"two converters for {name}")
            CONVERTERS[name] = function
        return function

    return register
