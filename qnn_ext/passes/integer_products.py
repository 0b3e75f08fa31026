"""Products in integers that ONNX Runtime computes in float between dequantize and quantize, for targets without kernels
for their float sums: transposed convolutions, and matrix products of two tensors of which one has 16 bits.

qnn_ext computes them in float, too, for ONNX Runtime's bits, where an instruction multiplies and adds floats with one
rounding. Microcontrollers have none: there the integers that the model has stored are smaller and faster to multiply,
and a result is at most a step off.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from tvm import IRModule
from tvm.target import Target

from ..op.arguments import factors_of
from ..targets.features import backend_of
from .blocked_sums import BLOCKED
from .float_weights import TRANSPOSED
from .qdq_to_integer import qdq_to_integer
from .rewrite import bindings_of, op_name

_PRODUCTS = (*TRANSPOSED, "matmul")


class _Others(Container[str]):
    """All Relax operators except these products."""

    def __contains__(self, name: object) -> bool:
        return name not in _PRODUCTS and not str(name).startswith("qnn.")


def integer_products(mod: IRModule, target: Target) -> IRModule:
    """`mod` with these products of dequantized tensors as integer products, where the target has no others."""
    main = mod["main"]
    if not main.attrs.get(BLOCKED) or backend_of(target).float_products:
        return mod
    definitions = {binding.var: binding.value for binding in bindings_of(main)}
    if not any(_is_of_integers(value, definitions) for value in definitions.values()):
        return mod
    return qdq_to_integer(mod, _Others())[0]


def _is_of_integers(value: Any, definitions: dict[Any, Any]) -> bool:
    """Whether it is a transposed convolution, or multiplies two dequantized matrices, one of them of 16 bits."""
    if op_name(value) != "matmul":
        return op_name(value) in TRANSPOSED
    calls = [definitions.get(factor) for factor in factors_of(value)]
    stored = [call.args[0] for call in calls if call is not None and op_name(call) == "qnn.dequantize"]
    return len(stored) == 2 and any(str(data.ty.dtype) in ("int16", "uint16") for data in stored)
