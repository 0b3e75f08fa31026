"""The one registry of the TorchScript frontend: operator kind -> converter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Convert = Callable[[Any], Any]
CONVERTERS: dict[str, Convert] = {}
CONSTANTS: dict[str, Sequence[str]] = {}
"""Operator kind -> arguments that its converter takes as constants. Where one is computed, there is no converter."""


def converter(*kinds: str, constants: Sequence[str] = ()) -> Callable[[Convert], Convert]:
    """Register the decorated function for these operators, by their full names: "quantized::conv2d".

    constants: arguments, as far as an operator has them, of which the converter reads the value
    """

    def register(function: Convert) -> Convert:
        for kind in kinds:
            if kind in CONVERTERS:
                raise ValueError(f"two converters for {kind}")
            CONVERTERS[kind], CONSTANTS[kind] = function, constants
        return function

    return register
