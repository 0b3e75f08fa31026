"""Integer rules for the two boundaries of every island: where a tensor becomes real and where it stops being real."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from ... import op as qnn
from ...op.arguments import data_of
from ...op.base import call_attributes, constant, constant_value
from .context import Context, dequantized
from .hoist import Quantize
from .registry import integer_rule
from .tensors import NARROW, Mapped, Quantized


@integer_rule("qnn.dequantize")
def _dequantize(call: relax.Call, context: Context) -> Any:
    attributes = call_attributes(call)
    if attributes["out_dtype"] != "float32":
        return None
    data, scale, zero_point = (context.value(arg) for arg in call.args[:])
    return Quantized(data, scale, zero_point, attributes["axis"])


@integer_rule("qnn.quantize")
def _quantize(call: relax.Call, context: Context) -> Any:
    """quantize of a value known as integers: nothing at all, a requantize, or a table."""
    quantize, tensor = Quantize(call), context.known(data_of(call))
    if not quantize.per_tensor or tensor is None:
        return None
    if isinstance(tensor, Mapped):
        return qnn.table(tensor.data, constant(quantize.value(tensor.values)))
    if tensor.constants is None:
        return None
    scale, zero_point = tensor.constants
    array = constant_value(tensor.data)
    if array is not None:
        return constant(quantize.value(dequantized(array, scale, zero_point, tensor.axis)))
    same_scale, same_zero_point = _compare(quantize, tensor)
    if same_scale and same_zero_point and tensor.dtype == quantize.out_dtype:
        return tensor.data
    # ONNX Runtime folds an accumulator's scales into one multiplier; PyTorch, which multiplies by 1 / scale, rounds
    # after each multiplication. With equal scales both are exact.
    wide = tensor.dtype in ("int32", "int64") and not quantize.attributes["reciprocal"]
    if (wide or same_scale) and quantize.attributes["rounding"] == "TONEAREST_EVEN":
        target = (quantize.scale, quantize.zero_point)
        return qnn.requantize(tensor.data, scale, zero_point, *target, axis=tensor.axis, out_dtype=quantize.out_dtype)
    return None


def _compare(quantize: Quantize, tensor: Quantized) -> tuple[bool, bool]:
    """Whether the tensor's scale and zero point equal those it is quantized to, so that float32 keeps every integer."""
    if not tensor.per_tensor or tensor.constants is None or quantize.out_dtype not in NARROW:
        return False, False
    wanted = constant_value(quantize.scale), constant_value(quantize.zero_point)
    pairs = zip(tensor.constants, wanted, strict=True)
    same = [bool(mine.item() == theirs.item()) for mine, theirs in pairs if theirs is not None]
    return same[0], same[1]


def constants_of(quantize: Quantize) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point of a per-tensor quantize as scalars."""
    scale, zero_point = constant_value(quantize.scale), constant_value(quantize.zero_point)
    assert scale is not None and zero_point is not None, "a per-tensor quantize has constant parameters"
    return scale.reshape(()), zero_point.reshape(())
