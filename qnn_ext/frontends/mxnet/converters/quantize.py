"""_contrib_quantize_v2, _contrib_requantize, _contrib_dequantize."""

from __future__ import annotations

from tvm import relax

from ....op.base import constant
from ..node import Node
from ..registry import converter
from ..scales import F32, INT_MAX, LEVELS, Range, as_real, out_dtype, rescaled, round_saturate, scale_of
from . import uncalibrated


@converter("_contrib_quantize_v2")
def convert_quantize_v2(node: Node) -> list[relax.Expr]:
    """q = saturate(rint(x · S / max(|min|, |max|)))."""
    span = node.calibrated()
    if span is not None and node.dtype(0) in ("int8", "uint8"):  # already quantized
        return node.with_range(node.input(0), span)
    if node.dtype(0) != "float32":
        raise node.unsupported(f"quantizing {node.dtype(0)}; only float32 is supported")
    if span is None:
        return uncalibrated.quantize(node)
    dtype = out_dtype(node.text("out_type", "int8"), span)
    steps = node.emit(relax.op.multiply(node.input(0), constant(scale_of(dtype, span))))
    return node.with_range(round_saturate(steps, dtype), span if dtype == "uint8" else span.symmetric())


@converter("_contrib_requantize")
def convert_requantize(node: Node) -> list[relax.Expr]:
    """int32 → int8 or uint8: q' = saturate(rint(f32(q) · f32((r / 2³¹) · (127 / r')))); 255 for uint8."""
    if node.dtype(0) != "int32":
        raise node.malformed(f"it only requantizes int32, found {node.dtype(0)}")
    target = node.calibrated()
    if target is None:
        return uncalibrated.requantize(node)
    span = node.range(1)
    dtype = out_dtype(node.text("out_type", "int8"), target)
    levels, largest = F32(127 if dtype == "int8" else 255), target.largest
    factor = F32(F32(span.largest / INT_MAX) * F32(levels / largest))
    result = Range(F32(-largest if dtype == "int8" else 0), largest)
    return node.with_range(rescaled(node.input(0), factor, dtype), result)


@converter("_contrib_dequantize")
def convert_dequantize(node: Node) -> relax.Expr:
    """x = f32(q) · f32(max(|min|, |max|) / S)."""
    dtype = node.dtype(0)
    if dtype not in LEVELS:
        raise node.malformed(f"it only dequantizes int8, uint8 and int32, found {dtype}")
    if not node.range_is_known(1):
        return uncalibrated.dequantize(node)
    return as_real(node.input(0), node.range(1).largest / LEVELS[dtype])
