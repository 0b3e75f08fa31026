"""The one registry of the TorchScript frontend: operator kind -> converter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Convert = Callable[[Any], Any]
CONVERTERS: dict[str, Convert] = {}


def converter(*kinds: str) -> Callable[[Convert], Convert]:
    """Register the decorated function for these operators, by their full names: "quantized::conv2d"."""

    def register(function: Convert) -> Convert:
        for kind in kinds:
            if kind in CONVERTERS:
                raise ValueError(f"two converters for {kind}")
            CONVERTERS[kind] = function
        return function

    return register
