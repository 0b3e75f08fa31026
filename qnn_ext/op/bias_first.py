"""qnn.bias_first: a product of floats plus a bias from which its sums start, as in XNNPACK."""

from __future__ import annotations

import numpy as np
from tvm import relax

from .base import Shape, TensorInfo, broadcast_shape, check_dtype, define, export_to_script
from .traits import Data, Kind, Traits


def _infer(data: TensorInfo, bias: TensorInfo) -> tuple[Shape, str]:
    for info in (data, bias):
        check_dtype(info, "float32")
    return broadcast_shape(data, bias), "float32"


def _reference(data: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return np.asarray(data + bias, np.float32)


TRAITS = Traits(Kind.POINTWISE, data=(Data("data"), Data("bias")))
BIAS_FIRST = define("bias_first", "data bias", _infer, _reference, TRAITS, "product and bias")


def bias_first(data: relax.Expr, bias: relax.Expr) -> relax.Call:
    """data + bias in float32. Where `data` is a convolution or a product of matrices by constant weights that nothing
    else reads, compiled code adds the products to the bias, one by one; those of a depthwise convolution column by
    column, unless it has a channel multiplier or more than 25 taps. Elsewhere, and in the interpreter, the bias is
    added last.

    data, bias: float32; shapes broadcast as in NumPy. Raises ShapeError. Source: XNNPACK's GEMM, IGEMM and DWCONV.
    """
    return BIAS_FIRST.call(data, bias)


export_to_script(bias_first=bias_first)
