"""L2_NORMALIZATION and LOCAL_RESPONSE_NORMALIZATION, over the last axis."""

from __future__ import annotations

import numpy as np
from tvm import relax

from ....op.base import constant
from ..integers import INT32_MAX, Wide, centered, narrow, quantized_or_plain, require_dtype, result_qparams
from ..node import Node
from ..registry import converter
from .shape import check_elements

EPSILON = np.float32(1e-6)


@converter("L2_NORMALIZATION", max_version=2)
def convert_l2_normalization(node: Node) -> relax.Expr:
    """x / √Σx². Quantized results have the scale 1/128 and a zero point in the middle of the dtype."""
    if node.options["fused_activation_function"] != "NONE":
        raise node.unsupported(f"fused activation {node.options['fused_activation_function']}")
    if not node.shape(0):
        raise node.malformed("the input has no axis")
    if quantized_or_plain(node, 0):
        return _quantized_l2(node)
    require_dtype(node, node.dtype(), "float32")
    x = node.input(0)
    norm = node.emit(relax.op.sqrt(_sum_of_squares(node, x)))
    return relax.op.divide(x, node.emit(relax.op.maximum(norm, constant(EPSILON))))


def _sum_of_squares(node: Node, x: relax.Expr) -> relax.Expr:
    return node.emit(relax.op.sum(node.emit(relax.op.multiply(x, x)), [-1], keepdims=True))


def _quantized_l2(node: Node) -> relax.Expr:
    require_dtype(node, node.dtype(), "int8", "uint8")
    target, middle = result_qparams(node), 128 if node.dtype() == "uint8" else 0
    if float(target.scale) != 1 / 128 or int(target.zero_point) != middle:
        raise node.unsupported(f"an output with {target}; it must have scale 1/128 and zero point {middle}")
    x = centered(node, 0)
    root, right = inverse_sqrt(Wide.of(node, _sum_of_squares(node, x)))
    # 2⁷·x/√Σ: the int8 kernel merges both shifts, the uint8 kernel applies 2⁷ first
    wide, seven = Wide.of(node, x), root.constant(7)
    if node.dtype() == "uint8":
        scaled = (wide << seven).high_multiply(root).divide_by_pot(right)
    else:
        scaled = (wide << (seven - right).at_least(0)).high_multiply(root).divide_by_pot((right - seven).at_least(0))
    return narrow(node, node.emit(relax.op.astype(scaled.expr, "int32")), middle, target.dtype)


def inverse_sqrt(x: Wide) -> tuple[Wide, Wide]:
    """(m, right) with 1/√x = m / 2³¹ · 2^−right for 0 ≤ x < 2³¹: numerics.gemmlowp.inverse_sqrt as expressions."""
    value = x.at_least(2)
    large = value.not_below(1 << 29)
    value = value >> (large + large)
    pairs = value.constant(0)
    for bit in range(3, 28, 2):  # shift left by pairs of bits until 2²⁷ ≤ value < 2²⁹
        pairs = pairs + value.below(1 << bit)
    operand = (value << (pairs + pairs)) >> 1
    half = (operand + 1) >> 1
    root = x.constant(1 << 28)
    for _ in range(5):
        cube = (root.high_multiply(root).high_multiply(root) << 6).saturated()
        step = root.high_multiply(root.constant((1 << 28) + (1 << 27))) - half.high_multiply(cube)
        root = (step << 3).saturated()
    root = root.high_multiply(root.constant(1518500250))  # √½
    right = large - pairs + 11
    root = root << (right.constant(0) - right).at_least(0)
    small = x.below(2)  # 0 and 1: the root is 1
    return small.choose(x.constant(INT32_MAX), root), small.choose(x.constant(0), right.at_least(0))


@converter("LOCAL_RESPONSE_NORMALIZATION", max_version=1)
def convert_local_response_normalization(node: Node) -> relax.Expr:
    """x · (bias + alpha · Σ x²)^−beta, with the sum over `radius` channels on either side."""
    require_dtype(node, node.dtype(), "float32")
    x, channels, options = node.input(0), node.shape(0)[-1], node.options
    if options["radius"] < 0:
        raise node.malformed(f"radius {options['radius']} is negative")
    check_elements(node, (channels, channels), "folded")
    position = np.arange(channels)
    window = np.abs(position[:, None] - position[None, :]) <= options["radius"]
    sums = node.emit(relax.op.matmul(node.emit(relax.op.multiply(x, x)), constant(window.astype(np.float32))))
    alpha, bias, beta = (constant(np.float32(options[key])) for key in ("alpha", "bias", "beta"))
    base = node.emit(relax.op.add(node.emit(relax.op.multiply(sums, alpha)), bias))
    return relax.op.divide(x, node.emit(relax.op.power(base, beta)))
