"""qnn.fma: a·b + c in float32 with a single rounding, for frameworks whose kernels use the fused instruction."""

from __future__ import annotations

from tvm import relax

from ..numerics.reference import fused_multiply_add
from .base import Shape, TensorInfo, broadcast_shape, check_dtype, define, export_to_script
from .traits import Data, Kind, Traits


def _infer(a: TensorInfo, b: TensorInfo, c: TensorInfo) -> tuple[Shape, str]:
    for info in (a, b, c):
        check_dtype(info, "float32")
    product = TensorInfo("a·b", broadcast_shape(a, b), "float32")
    return broadcast_shape(product, c), "float32"


TRAITS = Traits(Kind.POINTWISE, data=(Data("a"), Data("b"), Data("c")))
FMA = define("fma", "a b c", _infer, fused_multiply_add, TRAITS, "fused multiply-add")


def fma(a: relax.Expr, b: relax.Expr, c: relax.Expr) -> relax.Call:
    """round(a·b + c), rounded once to the nearest float32, ties to even; shapes broadcast as in NumPy.

    a, b, c: float32. Raises ShapeError. Source: IEEE 754 fusedMultiplyAdd; x86 VFMADD, C fmaf.
    """
    return FMA.call(a, b, c)


export_to_script(fma=fma)
