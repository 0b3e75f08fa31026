"""ConvInteger, MatMulInteger, DynamicQuantizeLinear: integer products without scales, and scales found at run time."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import relax

from .... import op as qnn
from ....op import compound
from ..node import Node
from ..registry import MICROSOFT, converter
from .arithmetic import cast, matmul, number
from .qlinear import convolve


@converter("ConvInteger", since=10)
def conv_integer(node: Node) -> relax.Expr:
    """acc = Σ (pad(x) − z_x)(w − z_w[o]) in int32."""
    return convolve(node, node.input(0), node.input(1), node.zero_point(2), node.zero_point(3))


@converter("MatMulInteger", since=10)
def matmul_integer(node: Node) -> relax.Expr:
    """acc = Σ_k (a − z_a)(b − z_b) in int32; zero points per tensor, per row of a, per column of b."""
    return matmul(node, node.input(0), node.input(1), node.zero_point(2), node.zero_point(3))


@converter("MatMulInteger16", domain=MICROSOFT)
def matmul_integer16(node: Node) -> relax.Expr:
    """acc = Σ_k a·b of int16 in int32."""
    for index in (0, 1):
        if node.dtype(index) != "int16":
            raise node.unsupported(f"input {index} of dtype {node.dtype(index)}; only int16 is supported")
    return matmul(node, node.input(0), node.input(1), number(0, "int32"), number(0, "int32"))


# ---- dynamic quantization ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dynamic:
    """A tensor quantized with the smallest scale that covers its range: uint8 data, float32 scale, int32 zero point."""

    data: relax.Expr
    scale: relax.Expr
    zero_point: relax.Expr


def quantize_dynamically(node: Node, x: relax.Expr) -> Dynamic:
    """s = (max(x, 0) − min(x, 0)) / 255, z = rint(saturate(−min(x, 0) / s)), q = saturate(rint(x / s) + z).

    A tensor of zeros has s = 1, as in ONNX Runtime; the ONNX specification leaves it open.
    """
    ends = compound.value_ends(x, node.emit)
    scale = node.emit(qnn.range_scale(ends, 255))
    zero_point = node.emit(qnn.range_zero_point(ends, scale, 0, "uint8"))
    data = node.emit(qnn.quantize(x, scale, zero_point, out_dtype="uint8"))
    return Dynamic(data, scale, zero_point)


@converter("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(node: Node) -> list[relax.Expr]:
    """Data, scale and zero point of a whole tensor quantized to uint8."""
    found = quantize_dynamically(node, node.input(0))
    return [found.data, found.scale, cast(node, found.zero_point, "uint8")]
