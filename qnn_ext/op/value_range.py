"""qnn.value_range: the least and the greatest value of a tensor, for quantization at run time."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    if 0 in data.shape:
        raise ShapeError(f"data must have values, found shape {data.shape}")
    return (2,), data.dtype


def _reference(data: np.ndarray) -> np.ndarray:
    return np.array([data.min(), data.max()], data.dtype)


VALUE_RANGE = define("value_range", "data", _infer, _reference, Traits(Kind.OTHER), "the least and the greatest value")


def value_range(data: relax.Expr) -> relax.Call:
    """(min data, max data): float32 of shape (2,); NaN if one of the values is. Of zeros with both signs it may be
    either.

    data: float32, not empty. Raises ShapeError.
    """
    return VALUE_RANGE.call(data)


export_to_script(value_range=value_range)
