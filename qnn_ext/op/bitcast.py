"""qnn.bitcast: the bits of numbers read as numbers of another dtype of the same size."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits

DTYPES = (
    "int8", "uint8", "int16", "uint16", "float16", "int32", "uint32", "float32", "int64", "uint64", "float64",
)  # fmt: skip


def _infer(data: TensorInfo, *, out_dtype: str) -> tuple[Shape, str]:
    check_dtype(data, *DTYPES)
    if out_dtype not in DTYPES or np.dtype(out_dtype).itemsize != np.dtype(data.dtype).itemsize:
        raise ShapeError(f"the bits of {data.dtype} cannot be read as {out_dtype}, which has another size")
    return data.shape, out_dtype


def _reference(data: np.ndarray, *, out_dtype: str) -> np.ndarray:
    return np.ascontiguousarray(data).view(out_dtype).reshape(data.shape)


BITCAST = define("bitcast", "data", _infer, _reference, Traits(Kind.POINTWISE), "bits read as another dtype")


def bitcast(data: relax.Expr, out_dtype: str) -> relax.Call:
    """y: the number of `out_dtype` that has the bits of each element of `data`, of any shape.

    out_dtype: an integer or float dtype of the size of data's. Raises ShapeError for another size.
    """
    return BITCAST.call(data, out_dtype=out_dtype)


export_to_script(bitcast=bitcast)
