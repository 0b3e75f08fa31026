"""Transposed convolutions of quantized ONNX models in integers, for targets without kernels for their float sums.

ONNX Runtime computes what stands between dequantize and quantize there in float, and so does qnn_ext for its bits
(`plain_convolutions`), where an instruction multiplies and adds floats with one rounding. Microcontrollers have none:
there the integers that the model has stored are a quarter as large and far faster, and a result is at most a step off.
"""

from __future__ import annotations

from collections.abc import Container

from tvm import IRModule
from tvm.target import Target

from ..targets.features import backend_of
from .blocked_sums import BLOCKED
from .float_weights import TRANSPOSED
from .qdq_to_integer import qdq_to_integer
from .rewrite import bindings_of, op_name


class _Others(Container[str]):
    """All Relax operators except transposed convolutions."""

    def __contains__(self, name: object) -> bool:
        return name not in TRANSPOSED and not str(name).startswith("qnn.")


def integer_transposed(mod: IRModule, target: Target) -> IRModule:
    """`mod` with transposed convolutions of dequantized tensors as integer products, where the target has no others."""
    main = mod["main"]
    if not main.attrs.get(BLOCKED) or backend_of(target).float_products:
        return mod
    if not any(op_name(binding.value) in TRANSPOSED for binding in bindings_of(main)):
        return mod
    return qdq_to_integer(mod, _Others())[0]
