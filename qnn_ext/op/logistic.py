"""qnn.logistic: 1 / (1 + e^−x) of floats, as ONNX Runtime approximates it."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..numerics import elementary
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    return data.shape, "float32"


def _reference(data: np.ndarray) -> np.ndarray:
    return elementary.on_arrays(elementary.logistic, data)


TRAITS = Traits(Kind.POINTWISE, quantizable=True)
LOGISTIC = define("logistic", "data", _infer, _reference, TRAITS, "logistic function")


def logistic(data: relax.Expr) -> relax.Call:
    """1 / (1 + e^−x) as ½ + x·P(x²) / Q(x²), the polynomials by fused multiply-adds; 0 and 1 beyond ±18, NaN for NaN.

    data: float32. The absolute error is below 2⁻²³; that of relax.sigmoid is relative. Raises ShapeError. Source:
    MlasComputeLogistic of ONNX Runtime, on CPUs with fused multiply-add.
    """
    return LOGISTIC.call(data)


export_to_script(logistic=logistic)
