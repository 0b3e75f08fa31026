"""The cost of computing a call of constants, estimated from shapes and attributes before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax

from .base import definition_of, plain
from .relax_table import traits_of
from .traits import Kind, Product

_MOST_WORK = 2**31  # multiply-adds: a few seconds in NumPy
_MOST_PATCHES = 2**27  # elements of a convolution's windows, which its reference lays out


def is_quick(call: relax.Call, size: int, operands: Sequence[np.ndarray]) -> bool:
    """Whether a call on these arrays, whose result has `size` elements, takes only seconds and no large intermediate
    arrays."""
    terms = _terms(call, operands)
    channels = operands[1].shape[0] if len(operands) > 1 and operands[1].ndim > 2 else 1
    return (size * terms <= _MOST_WORK and size * terms // max(channels, 1) <= _MOST_PATCHES) or terms == 1


def attribute(call: relax.Call, name: str) -> Any:
    """An attribute of one of our operators or of Relax's, None if it has none of this name."""
    if definition_of(call) is not None:
        return None if call.attrs is None else plain(call.attrs.get(name))
    return getattr(call.attrs, name, None)


def _terms(call: relax.Call, operands: Sequence[np.ndarray]) -> int:
    """The largest number of terms added up for one element of the result; 1 for anything but products and windows."""
    traits = traits_of(call)
    window = attribute(call, "pool_size")
    if window is not None:
        return math.prod(int(dim) for dim in window)
    if traits.product in (Product.CONVOLUTION, Product.TRANSPOSED) and len(operands) > 1:
        return math.prod(operands[1].shape[1:])
    if traits.product is Product.MATRIX:
        return max(operands[0].shape[-1:], default=1)
    return math.prod(operand.size for operand in operands) if traits.kind is Kind.PRODUCT else 1
