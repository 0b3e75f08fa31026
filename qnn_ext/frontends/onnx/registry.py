"""The one registry of the ONNX frontend: (domain, operator, first version of its operator set) -> converter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Converter:
    """How one operator becomes Relax expressions.

    convert: (Node) -> expression, or a list with one expression per output
    since:   first version of the operator set whose meaning `convert` implements
    """

    convert: Callable[[Any], Any | Sequence[Any]]
    since: int


CONVERTERS: dict[tuple[str, str], list[Converter]] = {}


def converter(*names: str, domain: str = "", since: int = 1) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Register the decorated function for these operators, from version `since` of their domain's operator set on."""

    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        for name in names:
            entries = CONVERTERS.setdefault((domain, name), [])
            if any(entry.since == since for entry in entries):
                raise ValueError(f"two converters for {domain or 'ai.onnx'} {name} since version {since}")
            entries.append(Converter(function, since))
        return function

    return register


def find_converter(domain: str, name: str, version: int) -> Converter | None:
    """The newest converter of an operator that is no newer than the model's version of the operator set."""
    known = [entry for entry in CONVERTERS.get((domain, name), ()) if entry.since <= version]
    return max(known, key=lambda entry: entry.since, default=None)
