"""The registry of this frontend: PyTorch operator -> converter. TVM's own importer converts operators it lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Converter:
    """How one operator becomes Relax expressions.

    convert: (importer, *arguments in schema order, defaults filled in) -> expression, number, or a tuple of them
    narrows: the result's dtypes differ from PyTorch's: float32 scales for float64, int32 zero points for int64
    complex_numbers: it takes and returns these, as `ComplexValue`
    """

    convert: Callable[..., Any]
    narrows: bool = False
    complex_numbers: bool = False


CONVERTERS: dict[str, Converter] = {}


def converter(
    *targets: str, narrows: bool = False, complex_numbers: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function for these operators, written as "aten.conv2d.default"."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        for target in targets:
            if target in CONVERTERS:
                raise ValueError(f"two converters for {target}")
            CONVERTERS[target] = Converter(function, narrows, complex_numbers)
        return function

    return register
