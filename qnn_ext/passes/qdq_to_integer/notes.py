"""Which operators that stay in float are worth a note, and why they stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...op.relax_table import traits_of
from ...op.traits import Kind
from ..rewrite import operands
from .tensors import Mapped, Quantized

# Operators that nobody expects to run on integers: they move values, do not read them, or run in registers, in the
# kernel that computes their data or that quantizes their result.
_SILENT = (Kind.MOVE, Kind.JOIN, Kind.POINTWISE, Kind.CREATION)

NOT_QUANTIZED = "the model does not quantize both of its operands"


def reason_for(name: str, call: Any, known: Callable[[Any], Quantized | Mapped | None]) -> str | None:
    """Why the operator stays in float, None if nobody would expect it to run on integers."""
    if name.startswith("qnn."):
        return None
    kind = traits_of(call).kind
    if kind is Kind.PRODUCT:  # it counts in the integer coverage that users see, whatever its operands are
        return NOT_QUANTIZED
    if kind in _SILENT:
        return None
    found = [tensor for tensor in map(known, operands(call)) if tensor is not None]
    if not found:
        return None
    if any(isinstance(tensor, Mapped) or tensor.dtype in ("int32", "int64") for tensor in found):
        return "its data is computed from quantized tensors, but not quantized itself"
    return "no integer form of this operator"
