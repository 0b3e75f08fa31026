"""The multiply-accumulates of products."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, tirx

from .relax_table import traits_of
from .traits import Product


def macs_of(call: Any) -> int | None:
    """Multiply-accumulates of a call, None if it is not a product."""
    product = traits_of(call).product
    if product is None:
        return None
    data, weight = traits_of(call).operands(call)
    if product is Product.MATRIX:
        return _size(call) * _dims(data)[-1]
    if product is Product.CONVOLUTION:
        return _size(call) * _size(weight) // _channels(call, call)
    return _size(data) * _size(weight) // _channels(call, data)  # every input value is multiplied by every tap


def _channels(call: relax.Call, data: Any) -> int:
    return _dims(data)[str(call.attrs["data_layout"]).index("C")]


def _dims(expr: Any) -> tuple[int, ...]:
    """The shape, with dynamic dimensions counted as 1."""
    return tuple(int(dim) if isinstance(dim, (int, tirx.IntImm)) else 1 for dim in expr.ty.shape)


def _size(expr: Any) -> int:
    return math.prod(_dims(expr))
