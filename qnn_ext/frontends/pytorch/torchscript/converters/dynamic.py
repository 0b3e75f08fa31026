"""Dynamically quantized layers: int8 (or float16) weights, float activations."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from .....op.base import constant
from ..dynamic import dynamic_linear
from ..formulas import f32
from ..node import Node
from ..packed import unpack, unpack_linear
from ..registry import converter
from ..values import array_of

HALF_NOTE = "its weights are float16: the layer is not an integer product in PyTorch either"


@converter("quantized::linear_dynamic", "quantized::linear_relu_dynamic")
def _linear_dynamic(node: Node) -> relax.Expr:
    weights = unpack_linear(node["W_prepack"])
    result = dynamic_linear(node, node.expr("X"), weights, bool(node.get("reduce_range", False)))
    return relax.op.nn.relu(result) if "relu" in node.kind else result


@converter("quantized::linear_dynamic_fp16", "quantized::linear_relu_dynamic_fp16")
def _linear_half(node: Node) -> relax.Expr:
    """float16 weights: a float32 product."""
    weight, bias = unpack(node["W_prepack"])
    node.note(HALF_NOTE)
    result = half_linear(node, node.expr("X"), weight, bias)
    return relax.op.nn.relu(result) if "relu" in node.kind else result


def half_linear(node: Node, value: relax.Expr, weight: Any, bias: Any) -> relax.Expr:
    """x · Wᵀ + b in float32, with a weight tensor of float16."""
    matrix = array_of(weight).astype(f32).T
    result = node.emit(relax.op.matmul(value, constant(np.ascontiguousarray(matrix))))
    return result if bias is None else node.emit(relax.op.add(result, constant(array_of(bias).astype(f32))))
