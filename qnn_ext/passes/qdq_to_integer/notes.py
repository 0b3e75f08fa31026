"""Which operators that stay in float are worth a note, and why they stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..rewrite import operands
from .tensors import Mapped, Quantized

# on quantized data these run in registers, in the kernel that made it or that quantizes the result
_ELEMENTWISE = frozenset({
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "negative", "abs", "sqrt", "rsqrt", "sign",
    "square", "exp", "log", "tanh", "sigmoid", "erf", "power", "clip", "floor", "ceil", "round", "astype",
    "where", "nn.relu", "nn.relu6", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.softplus",
    "nn.prelu", "nn.selu", "greater", "greater_equal", "less", "less_equal", "equal", "not_equal",
})  # fmt: skip
# these move values, or do not look at them
_MOVES = frozenset({
    "reshape", "flatten", "permute_dims", "squeeze", "expand_dims", "broadcast_to", "strided_slice", "take",
    "concat", "split", "stack", "tile", "repeat", "flip", "nn.batch_flatten", "shape_of", "zeros", "ones",
    "full", "arange", "gather_elements", "gather_nd", "nn.pad",
    "zeros_like", "ones_like", "full_like",
})  # fmt: skip
# the products whose share of integer work users look at, whatever their operands are
_PRODUCTS = frozenset({
    "matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d", "nn.conv1d_transpose", "nn.conv2d_transpose",
    "nn.conv3d_transpose", "nn.attention", "nn.attention_bias",
})  # fmt: skip

NOT_QUANTIZED = "the model does not quantize both of its operands"


def reason_for(name: str, call: Any, known: Callable[[Any], Quantized | Mapped | None]) -> str | None:
    """Why the operator stays in float, None when nobody would expect integers of it."""
    if name in _PRODUCTS:
        return NOT_QUANTIZED
    if name.startswith("qnn.") or name in _MOVES or name in _ELEMENTWISE:
        return None
    found = [tensor for tensor in map(known, operands(call)) if tensor is not None]
    if not found:
        return None
    if any(isinstance(tensor, Mapped) or tensor.dtype in ("int32", "int64") for tensor in found):
        return "its data is computed from quantized tensors, but not quantized itself"
    return "no integer form of this operator"
