"""qnn.trim: an output of a model, of which the elements up to a size are valid that is only known at run time.

The interpreter returns those. In a compiled model the whole tensor and its size are results of the code
(`passes/sizes.py`), and the engine trims.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..module import trimmed
from .base import Shape, TensorInfo, check_dtype, check_rank, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo, size: TensorInfo, *, axis: int) -> tuple[Shape, str]:
    check_dtype(size, "int64")
    check_rank(size, 0)
    if not 0 <= axis < data.ndim:
        raise ShapeError(f"axis {axis} is out of range for {data.ndim} dimensions")
    return data.shape, data.dtype


def _reference(data: np.ndarray, size: np.ndarray, *, axis: int) -> np.ndarray:
    return trimmed(data, {axis: int(size)})


TRIM = define(
    "trim", "data size", _infer, _reference, Traits(Kind.OTHER, others=("size",)), "the valid part of an output"
)


def trim(data: relax.Expr, size: relax.Expr, axis: int) -> relax.Call:
    """y = data[…, :size, …] along `axis`, in the type of the whole: for outputs, nothing else can read it.

    size: int64 scalar, 0 … the length of the axis. Raises ShapeError.
    """
    return TRIM.call(data, size, axis=int(axis))


export_to_script(trim=trim)
