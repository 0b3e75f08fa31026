"""qnn.float_function: functions of floats with the bits of ONNX Runtime, XNNPACK or LiteRT."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..errors import ShapeError
from ..numerics import elementary
from ..numerics.float_functions import FUNCTIONS
from .base import Shape, TensorInfo, check_dtype, define, export_to_script
from .traits import Kind, Traits


def _infer(data: TensorInfo, *, function: str) -> tuple[Shape, str]:
    check_dtype(data, "float32")
    if function not in FUNCTIONS:
        raise ShapeError(f"function must be one of {', '.join(FUNCTIONS)}, found {function!r}")
    return data.shape, "float32"


def _reference(data: np.ndarray, *, function: str) -> np.ndarray:
    return elementary.on_arrays(FUNCTIONS[function], data)


TRAITS = Traits(Kind.POINTWISE, cheap=False, quantizable=True)
FLOAT_FUNCTION = define("float_function", "data", _infer, _reference, TRAITS, "function of floats")


def float_function(data: relax.Expr, function: str) -> relax.Call:
    """A function of each value, by the polynomials of `mlas`, `eigen`, `xnnpack` and `litert` in `numerics`, each step
    rounded to float32.

    data:     float32
    function: "exp", "erf", "tanh", "logistic", 1 / (1 + e^−x), "gelu", ½·x · (erf(x / √2) + 1), "gelu_tanh",
              "gru_tanh" and "gru_logistic", those of GRU's gates, "softplus", "log", "vector_exp", e^x by Eigen, "sin"
              or "cos", for |x| below `numerics.eigen.LARGEST`, or "xnnpack_" with "sigmoid", "tanh", "gelu",
              "gelu_tanh", "exp", "log", "sin", "cos" or "elu", or "litert_" with "tanh",
              "logistic" or "vector_logistic"

    The absolute error of logistic is below 2⁻²³; that of relax.sigmoid is relative. Raises ShapeError. Source: ONNX
    Runtime's MLAS, on CPUs with fused multiply-add; Eigen; XNNPACK; LiteRT's recurrent layers.
    """
    return FLOAT_FUNCTION.call(data, function=function)


export_to_script(float_function=float_function)
