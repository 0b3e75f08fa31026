"""The one registry of the TorchScript frontend: operator kind -> converter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Convert = Callable[[Any], Any]
CONVERTERS: dict[str, Convert] = {}
CONSTANTS: dict[str, Sequence[str]] = {}
"""Operator kind -> arguments that its converter takes as constants. Where one is computed, there is no converter."""
TAKES: dict[str, Callable[[Mapping[str, Any]], bool]] = {}
"""Operator kind -> whether its converter takes these arguments, as passed to PyTorch. Else there is none."""


def converter(
    *kinds: str, constants: Sequence[str] = (), takes: Callable[[Mapping[str, Any]], bool] | None = None
) -> Callable[[Convert], Convert]:
    """Register the decorated function for these operators, by their full names: "quantized::conv2d".

    constants: arguments, as far as an operator has them, of which the converter reads the value
    takes:     of the arguments by name, whether the converter is for them, by default always
    """

    def register(function: Convert) -> Convert:
        for kind in kinds:
            if kind in CONVERTERS:
                raise ValueError(f"two converters for {kind}")
            CONVERTERS[kind], CONSTANTS[kind] = function, constants
            if takes is not None:
                TAKES[kind] = takes
        return function

    return register
