"""qnn.true_positions: where a mask is true. With qnn.trim it makes tensors whose size depends on data, which are
computed at the largest size they can have."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .base import Shape, TensorInfo, check_dtype, check_rank, define, export_to_script
from .traits import Kind, Traits


def _infer(mask: TensorInfo) -> tuple[Shape, str]:
    check_dtype(mask, "bool")
    check_rank(mask, 1)
    return mask.shape, "int32"


def _reference(mask: np.ndarray) -> np.ndarray:
    found = np.flatnonzero(mask)
    result = np.zeros(mask.shape, np.int32)
    result[: found.size] = found
    return result


TRUE_POSITIONS = define("true_positions", "mask", _infer, _reference, Traits(Kind.SEARCH), "where a mask is true")


def true_positions(mask: relax.Expr) -> relax.Call:
    """positions[k]: index of the k-th true element, 0 if there are no more; (N,) int32.

    mask: (N,) bool. Raises ShapeError.
    """
    return TRUE_POSITIONS.call(mask)


export_to_script(true_positions=true_positions)
