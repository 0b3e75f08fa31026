"""qnn.qlinear_add, qnn.qlinear_mul: ONNX Runtime's sums and products of two quantized tensors, in its own float32.

Its kernels fold all scales and zero points into a few float constants before they touch the data, which rounds
differently from the textbook formula of `qnn.add` and `qnn.mul`. The zero points here are additional integer shifts of
the operands.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ..numerics.reference import float_to_int, fused_multiply_add
from .base import (
    Shape,
    TensorInfo,
    broadcast_shape,
    check_dtype,
    check_out_dtype,
    check_rank,
    define,
    export_to_script,
)
from .traits import Data, Kind, Output, Traits

OPERAND_DTYPES = ("int8", "uint8", "int16", "uint16")


def _infer(
    lhs: TensorInfo,
    rhs: TensorInfo,
    zero_points: tuple[TensorInfo, ...],
    factors: tuple[TensorInfo, ...],
    out_dtype: str,
) -> tuple[Shape, str]:
    for info in (lhs, rhs):
        check_dtype(info, *OPERAND_DTYPES)
    for info in zero_points:
        check_dtype(info, "int32")
        check_rank(info, 0)
    for info in factors:
        check_dtype(info, "float32")
        check_rank(info, 0)
    check_out_dtype(out_dtype, *OPERAND_DTYPES)
    return broadcast_shape(lhs, rhs), out_dtype


def adds_lhs_first(lhs: tuple[int, ...], rhs: tuple[int, ...]) -> bool:
    """Whether ONNX Runtime adds a left operand of this shape before the right one.

    It does so if its loop over the innermost dimensions sees a single value of the left operand.
    """
    rank = max(len(lhs), len(rhs))
    lhs, rhs = (1,) * (rank - len(lhs)) + lhs, (1,) * (rank - len(rhs)) + rhs
    for one, two in zip(reversed(lhs), reversed(rhs), strict=True):
        if one != two:
            return one == 1
        if one != 1:
            return False
    return True


# ---- qlinear_add -------------------------------------------------------------------------------------------------


def _infer_add(
    lhs: TensorInfo,
    rhs: TensorInfo,
    lhs_zero_point: TensorInfo,
    rhs_zero_point: TensorInfo,
    lhs_factor: TensorInfo,
    rhs_factor: TensorInfo,
    offset: TensorInfo,
    output_zero_point: TensorInfo,
    *,
    out_dtype: str,
) -> tuple[Shape, str]:
    zero_points = (lhs_zero_point, rhs_zero_point, output_zero_point)
    return _infer(lhs, rhs, zero_points, (lhs_factor, rhs_factor, offset), out_dtype)


def _reference_add(
    lhs: np.ndarray,
    rhs: np.ndarray,
    lhs_zero_point: np.ndarray,
    rhs_zero_point: np.ndarray,
    lhs_factor: np.ndarray,
    rhs_factor: np.ndarray,
    offset: np.ndarray,
    output_zero_point: np.ndarray,
    *,
    out_dtype: str,
) -> np.ndarray:
    left, right = _real(lhs, lhs_zero_point), _real(rhs, rhs_zero_point)
    total = fused_multiply_add(left, lhs_factor, fused_multiply_add(right, rhs_factor, offset))
    return float_to_int(np.rint(total), output_zero_point, out_dtype)


def _real(data: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    return (data.astype(np.int32) - zero_point).astype(np.float32)


QLINEAR_ADD = define(
    "qlinear_add",
    "lhs rhs lhs_zero_point rhs_zero_point lhs_factor rhs_factor offset output_zero_point",
    _infer_add,
    _reference_add,
    Traits(
        Kind.POINTWISE,
        data=(Data("lhs", "lhs_factor", "lhs_zero_point"), Data("rhs", "rhs_factor", "rhs_zero_point")),
        output=Output(None, "output_zero_point", offset=True),
        others=("offset",),
        shift_invariant=True,
    ),
    "quantized sum in ONNX Runtime's float32",
)


def qlinear_add(
    lhs: relax.Expr,
    rhs: relax.Expr,
    lhs_zero_point: relax.Expr,
    rhs_zero_point: relax.Expr,
    lhs_factor: relax.Expr,
    rhs_factor: relax.Expr,
    offset: relax.Expr,
    output_zero_point: relax.Expr,
    out_dtype: str = "int8",
) -> relax.Call:
    """q = saturate(rint(fma(f32(lhs − z_l), m_l, fma(f32(rhs − z_r), m_r, offset))) + z_o); shapes broadcast.

    lhs, rhs: int8, uint8, int16 or uint16; zero points int32 scalars; factors and offset float32 scalars
    out_dtype: int8, uint8, int16 or uint16

    ONNX Runtime's zero points are in `offset`: its kernel takes zero points of 0 here, m_l = s_l/s_o, m_r = s_r/s_o and
    offset = z_o − fma(m_l, z_l, m_r·z_r). Raises ShapeError. Source: com.microsoft QLinearAdd, MLAS on x86 with FMA.
    """
    return QLINEAR_ADD.call(
        lhs,
        rhs,
        lhs_zero_point,
        rhs_zero_point,
        lhs_factor,
        rhs_factor,
        offset,
        output_zero_point,
        out_dtype=out_dtype,
    )


# ---- qlinear_mul -------------------------------------------------------------------------------------------------


def _infer_mul(
    lhs: TensorInfo,
    rhs: TensorInfo,
    lhs_zero_point: TensorInfo,
    rhs_zero_point: TensorInfo,
    factor: TensorInfo,
    offset: TensorInfo,
    output_zero_point: TensorInfo,
    *,
    out_dtype: str,
) -> tuple[Shape, str]:
    return _infer(lhs, rhs, (lhs_zero_point, rhs_zero_point, output_zero_point), (factor, offset), out_dtype)


def _reference_mul(
    lhs: np.ndarray,
    rhs: np.ndarray,
    lhs_zero_point: np.ndarray,
    rhs_zero_point: np.ndarray,
    factor: np.ndarray,
    offset: np.ndarray,
    output_zero_point: np.ndarray,
    *,
    out_dtype: str,
) -> np.ndarray:
    product = (lhs.astype(np.int32) - lhs_zero_point) * (rhs.astype(np.int32) - rhs_zero_point)
    return float_to_int(np.rint(product.astype(np.float32) * factor + offset), output_zero_point, out_dtype)


QLINEAR_MUL = define(
    "qlinear_mul",
    "lhs rhs lhs_zero_point rhs_zero_point factor offset output_zero_point",
    _infer_mul,
    _reference_mul,
    Traits(
        Kind.POINTWISE,
        data=(Data("lhs", None, "lhs_zero_point"), Data("rhs", None, "rhs_zero_point")),
        output=Output(None, "output_zero_point", offset=True),
        others=(
            "factor",
            "offset",
        ),
        shift_invariant=True,
    ),
    "quantized product in ONNX Runtime's float32",
)


def qlinear_mul(
    lhs: relax.Expr,
    rhs: relax.Expr,
    lhs_zero_point: relax.Expr,
    rhs_zero_point: relax.Expr,
    factor: relax.Expr,
    offset: relax.Expr,
    output_zero_point: relax.Expr,
    out_dtype: str = "int8",
) -> relax.Call:
    """q = saturate(rint(f32((lhs − z_l)·(rhs − z_r))·factor + offset) + z_o), product and sum rounded separately.

    lhs, rhs: int8, uint8, int16 or uint16, their product exact in int32; zero points int32 scalars; factor and offset
    float32 scalars; out_dtype: int8, uint8, int16 or uint16

    ONNX Runtime adds its output zero point before it rounds: offset = z_o, output_zero_point = 0, and
    factor = (s_l·s_r)/s_o. Raises ShapeError. Source: com.microsoft QLinearMul, MLAS.
    """
    return QLINEAR_MUL.call(
        lhs, rhs, lhs_zero_point, rhs_zero_point, factor, offset, output_zero_point, out_dtype=out_dtype
    )


export_to_script(qlinear_add=qlinear_add, qlinear_mul=qlinear_mul)
