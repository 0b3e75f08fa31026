"""Bounds on the results of operators, from the dtypes and constants they start from.

An accumulator of 8-bit products leaves most of int32 unused; a requantization that knows this need not clip before it
converts. Integers wrap beyond int32, so only smaller bounds are valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from .operands import Operand


def bound_of(name: str, operands: Sequence[Operand], attributes: Mapping[str, Any]) -> float | None:
    """A bound on the operator's absolute results; None if nothing but their dtype is known."""
    bound = _bound(name, operands, attributes)
    return bound if bound is not None and bound < 2.0**31 else None


def _bound(name: str, operands: Sequence[Operand], attributes: Mapping[str, Any]) -> float | None:
    if name.endswith("_accumulate"):
        return None if "float" in operands[0].dtype else _products(*operands)
    sizes = [operand.largest for operand in operands]
    if name in ("add", "subtract"):
        return sum(sizes)
    if name == "multiply":
        return prod(sizes)
    if name in ("astype", "nn.relu", "repeat", "reshape", "permute_dims"):
        return sizes[0]
    if name == "qnn.dequantize":
        return (sizes[0] + sizes[2]) * sizes[1]
    if name == "qnn.piecewise":
        largest = max(sizes[2:4])
        return sum(size * largest**degree for degree, size in enumerate(_rows(operands[1])))
    if name == "qnn.row_sum":
        return operands[0].shape[-1] * sizes[0]
    if name == "qnn.window_sum":
        return prod(attributes["kernel"]) * (operands[0].shape[-1] // attributes["groups"]) * sizes[0]
    return None


def _rows(coefficients: Operand) -> list[float]:
    """The largest absolute value in each row."""
    return [float(np.abs(row).max()) for row in coefficients.constant()]


def _products(data: Operand, weight: Operand) -> float:
    """max over the output channels of Σ |w|, times the largest |x|."""
    if weight.value is None:
        terms = weight.shape[-1] if len(weight.shape) < 4 else prod(weight.shape[1:])
        return terms * weight.largest * data.largest
    per_channel = np.abs(weight.value.astype(np.float64)).sum(axis=tuple(range(1, weight.value.ndim)))
    return float(per_channel.max(initial=0)) * data.largest
