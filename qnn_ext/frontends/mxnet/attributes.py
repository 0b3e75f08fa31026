"""Attribute values of a symbol: strings such as "(3, 3)", "True", "1e-05" or "None" as MXNet prints them."""

from __future__ import annotations

import re

from ...errors import ModelFormatError

_INTEGER = re.compile(r"[-+]?\d{1,18}L?")  # a trailing L: written by Python 2


def flag(text: str) -> bool:
    """True, true, 1 or False, false, 0. Raises ModelFormatError."""
    lowered = text.strip().strip('"').lower()
    if lowered in ("true", "1"):
        return True
    if lowered in ("false", "0"):
        return False
    raise ModelFormatError(f"must be True or False, found {text!r}")


def integer(text: str) -> int:
    """A whole number. Raises ModelFormatError."""
    if not _INTEGER.fullmatch(text.strip()):
        raise ModelFormatError(f"must be an integer, found {text[:80]!r}")
    return int(text.strip().rstrip("L"))


def real(text: str) -> float:
    """A finite number. Raises ModelFormatError."""
    try:
        value = float(text)
    except ValueError:
        raise ModelFormatError(f"must be a number, found {text[:80]!r}") from None
    if value != value or value in (float("inf"), float("-inf")):
        raise ModelFormatError(f"must be finite, found {text!r}")
    return value


def integers(text: str) -> tuple[int, ...]:
    """A tuple or list of whole numbers, or a single one. Raises ModelFormatError."""
    values = optional_integers(text)
    if any(value is None for value in values):
        raise ModelFormatError(f"must hold integers only, found {text[:80]!r}")
    return tuple(value for value in values if value is not None)


def optional_integers(text: str) -> tuple[int | None, ...]:
    """The same, where an element may be None. Raises ModelFormatError."""
    inner = text.strip()
    if inner[:1] in ("(", "[") and inner[-1:] in (")", "]"):
        inner = inner[1:-1]
    parts = [part.strip() for part in inner.split(",")]
    if parts and not parts[-1]:  # "(3,)" and "()"
        parts.pop()
    if len(parts) > 64:
        raise ModelFormatError(f"must be a short tuple of integers, found {len(parts)} elements")
    return tuple(None if part == "None" else integer(part) for part in parts)
