"""float8 in ONNX: values rounded to it, held as float32."""

from __future__ import annotations

from tvm import relax

from .... import op as qnn
from ..node import Node
from ..tensors import FLOAT8, dtype_name, element_type


def to_float8(node: Node) -> str | None:
    """The kind of float8 that Cast or CastLike converts to; None for any other dtype."""
    if node.op_type == "CastLike":
        target = node.onnx_dtype(1)
    else:
        code = node.attribute("to", 0)
        target = dtype_name(element_type(code) if isinstance(code, str) else code)
    return target if target in FLOAT8.values() else None


def rounded_to_float8(node: Node, data: relax.Expr, dtype: str) -> relax.Expr:
    """data, of any dtype, as the first output of the node: of float8, nearest, ties to even, saturating."""
    if not node.attribute("saturate", 1):
        raise node.unsupported("float8 that does not saturate; set saturate to 1")
    node.assembly.narrow_dtypes[node.outputs[0]] = dtype
    if str(data.ty.dtype) != "float32":
        data = node.emit(relax.op.astype(data, "float32"))
    return qnn.float8(data, dtype)


def check_zero_point(node: Node) -> None:
    """Raise ModelFormatError unless the zero point, input 2, is absent or 0: float8 has no other."""
    if node.has_input(2) and node.constant(2).any():
        raise node.malformed("the zero point of float8 must be 0")
