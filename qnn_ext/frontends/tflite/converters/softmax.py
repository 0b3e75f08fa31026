"""SOFTMAX and LOG_SOFTMAX over the last axis."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant
from ..integers import require_dtype, result_qparams, tensor_qparams
from ..node import Node
from ..registry import converter

# input dtype -> output dtypes of LiteRT's quantized kernels
SOFTMAX_DTYPES: dict[str, tuple[str, ...]] = {
    "int8": ("int8", "int16"),
    "uint8": ("uint8", "int16"),
    "int16": ("int16",),
}
LOG_SOFTMAX_DTYPES: dict[str, tuple[str, ...]] = {"int8": ("int8",), "uint8": ("uint8",)}
SMALLEST_SCALE = 2.0**-26  # for LOG_SOFTMAX: the multiplier to Q5.26 must be above one


@converter("SOFTMAX", max_version=3)
def convert_softmax(node: Node) -> relax.Expr:
    """exp(beta·x) over its sum along the last axis."""
    beta = float(node.options["beta"])
    if _is_float(node, SOFTMAX_DTYPES):
        if node.follows_xnnpack:
            return qnn.lane_softmax(node.input(0))
        scaled = node.emit(relax.op.multiply(node.input(0), constant(np.float32(beta))))
        return relax.op.nn.softmax(scaled, axis=-1)
    scale, zero_point, output_scale, output_zero_point = _quantization(node)
    return qnn.softmax(
        node.input(0), scale, zero_point, output_scale, output_zero_point, beta=beta, **_softmax_rounding(node)
    )


@converter("LOG_SOFTMAX", max_version=2)
def convert_log_softmax(node: Node) -> relax.Expr:
    """x − ln Σ exp(x) along the last axis."""
    if _is_float(node, LOG_SOFTMAX_DTYPES):
        return relax.op.nn.log_softmax(node.input(0), axis=-1)
    quantization, rounding = _quantization(node), _rounding(node)
    if rounding["rounding"] == "TFLITE" and quantization[0] <= SMALLEST_SCALE:
        raise node.unsupported(
            f"an input scale of {float(quantization[0]):g}: LiteRT's integer kernel crashes if it is "
            f"{SMALLEST_SCALE:g} or less; import with numerics='float32'"
        )
    return qnn.log_softmax(node.input(0), *quantization, **rounding)


def _is_float(node: Node, quantized: dict[str, tuple[str, ...]]) -> bool:
    """Whether the node computes in float. Raises for scalars and for dtypes without a kernel."""
    dtype = node.dtype()
    if not node.shape(0):
        raise node.malformed("the input has no axis")
    if dtype == "float32":
        return True
    require_dtype(node, dtype, "float32", *quantized)
    if node.output_tensor().dtype not in quantized[dtype]:
        raise node.unsupported(f"output of dtype {node.output_tensor().dtype} for an input of dtype {dtype}")
    return False


def _quantization(node: Node) -> tuple[Any, ...]:
    source, target = tensor_qparams(node), result_qparams(node)
    return source.scale, source.zero_point, target.scale, target.zero_point


def _softmax_rounding(node: Node) -> dict[str, Any]:
    """LiteRT's optimized kernel truncates x + ½ for uint8 results, and calls round() for others."""
    rounding = _rounding(node)
    if rounding["rounding"] == "TONEAREST_EVEN":
        rounding["rounding"] = "UPWARD" if rounding["out_dtype"] == "uint8" else "TONEAREST"
    return rounding


def _rounding(node: Node) -> dict[str, Any]:
    """XNNPACK has no such kernel. TFLite's own round in float where the reference kernels compute in fixed point; for
    16 bits they are the same."""
    rounding = "TFLITE" if node.dtype() == "int16" or node.reference_kernels else "TONEAREST_EVEN"
    return {"rounding": rounding, "out_dtype": node.output_tensor().dtype}
