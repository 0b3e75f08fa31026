"""aten.quantize_per_tensor and aten.dequantize: programs from convert_to_reference_fx hold PyTorch's quantized tensors.

q = clip(rint(fma(x, f32(1 / scale), zero_point))): the zero point is added before rounding; quantized_decomposed adds
it after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tvm import relax

from ..... import op as qnn
from .....errors import UnsupportedOperatorError
from .....numerics import reference
from .....op.base import OPS, constant, constant_value
from ..registry import converter
from ..values import scalar

_INTEGERS = {torch.quint8: "uint8", torch.qint8: "int8"}


@dataclass(frozen=True)
class QuantizedTensor:
    """A tensor of one of PyTorch's quantized dtypes: integers with their scale and zero point."""

    data: relax.Expr
    scale: float
    zero_point: int


@converter("aten.quantize_per_tensor.default", "aten.quantize_per_tensor.tensor_qparams", narrows=True)
def _quantize(importer: Any, x: relax.Expr, scale: Any, zero_point: Any, dtype: torch.dtype) -> QuantizedTensor:
    if dtype not in _INTEGERS:
        raise UnsupportedOperatorError(f"quantizing to {dtype} is not supported; supported: quint8 and qint8")
    step, offset = _number(scale), int(_number(zero_point))
    factors = scalar(np.float32(1) / np.float32(step), "float32"), scalar(offset, "float32")
    one, zero, name = scalar(1, "float32"), scalar(0, "int32"), _INTEGERS[dtype]
    known = constant_value(x)
    if known is not None:
        shifted = OPS["fma"].reference(known, *map(constant_value, factors))
        return QuantizedTensor(constant(reference.float_to_int(np.rint(shifted), np.int32(0), name)), step, offset)
    shifted = importer.emit(qnn.fma(x, *factors))
    return QuantizedTensor(importer.emit(qnn.quantize(shifted, one, zero, out_dtype=name)), step, offset)


@converter("aten.dequantize.self")
def _dequantize(importer: Any, q: Any) -> relax.Expr:
    if not isinstance(q, QuantizedTensor):
        raise UnsupportedOperatorError("its input is not quantized by an operator of the program")
    return importer.emit(qnn.dequantize(q.data, scalar(q.scale, "float32"), scalar(q.zero_point, "int32")))


def _number(value: Any) -> float:
    if not isinstance(value, relax.Expr):
        return float(value)
    known = constant_value(value)
    if known is None or known.size != 1:
        raise UnsupportedOperatorError("scale and zero point must be constant scalars")
    return float(known.reshape(()))
