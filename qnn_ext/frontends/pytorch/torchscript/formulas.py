"""PyTorch's quantized arithmetic, one function per formula and engine, as chains of the dialect's operators.

All of it is float32, rounded as in PyTorch and in PyTorch's order; scales are float64 in the model, and each formula
says where they become float32. Verified bit for bit against torch 2.13 (tests/frontends/pytorch/torchscript).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant, shape_of
from ....qparams import QParams, dtype_range
from .node import Node

f32 = np.float32

# The elements that PyTorch's AVX512 kernels process at once; shorter tensors, and the channels of channels-last images
# behind the last whole vector, go through scalar loops that round midpoints differently
VECTOR_LENGTH = 64
VECTOR_CHANNELS = 16
AVX2_CHANNELS = 8
"""Of kernels that join images, or resize them bilinearly: PyTorch has none of these for AVX512."""


def by_channels(
    node: Node,
    data: relax.Expr,
    lanes: int,
    vector: Callable[[relax.Expr], relax.Expr],
    scalar: Callable[[relax.Expr], relax.Expr],
) -> relax.Expr:
    """A function of a channels-last image (N, C, H, W): of whole vectors of `lanes` channels in one way, of the rest in
    the other one."""
    channels = shape_of(data)[1]
    whole = channels // lanes * lanes
    if whole in (0, channels):
        return (vector if whole else scalar)(data)
    parts = [
        node.emit(function(node.emit(relax.op.strided_slice(data, [1], [begin], [end]))))
        for function, begin, end in ((vector, 0, whole), (scalar, whole, channels))
    ]
    return node.emit(relax.op.concat(parts, 1))


def scalar(value: float | np.floating | np.ndarray) -> relax.Expr:
    """A float32 constant."""
    return constant(np.asarray(value, f32))


def relu_clip(node: Node, value: relax.Expr, qparams: QParams) -> relax.Expr:
    """max(q, z): a fused ReLU."""
    low, high = dtype_range(qparams.dtype)
    zero = int(qparams.zero_point)
    return value if zero <= low else node.emit(relax.op.clip(value, zero, high))


def quantize(node: Node, value: relax.Expr, qparams: QParams) -> relax.Expr:
    """aten::quantize_per_tensor: rint(fma(x, 1/f32(s), f32(z))), the zero point added before the rounding."""
    inverse = f32(1) / qparams.scale.astype(f32)
    moved = node.emit(qnn.fma(value, scalar(inverse), scalar(float(qparams.zero_point))))
    return node.emit(qnn.quantize(moved, 1.0, 0, out_dtype=qparams.dtype))


def quantize_after(node: Node, value: relax.Expr, qparams: QParams) -> relax.Expr:
    """rint(x · (1/f32(s))) + z: as in PyTorch's vectorized kernels, which add the zero point after the rounding."""
    return node.emit(
        qnn.quantize(
            value,
            constant(qparams.scale.astype(f32)),
            qparams.zero_point,
            out_dtype=qparams.dtype,
            reciprocal=True,
        )
    )


def dequantize_fused(node: Node, value: relax.Expr, qparams: QParams) -> relax.Expr:
    """fma(f32(q), f32(s), −z·f32(s)): how vectorized kernels read a quantized operand."""
    scale = qparams.scale.astype(f32)
    real = node.emit(qnn.dequantize(value, 1.0, 0))
    return node.emit(qnn.fma(real, scalar(scale), scalar(scale * f32(-qparams.zero_point))))


# ---- convolution and linear --------------------------------------------------------------------------------------

Vector = np.ndarray


def fbgemm_product(
    node: Node, acc: relax.Expr, bias: Vector | None, data: QParams, weight_scale: Vector, out: QParams, shape: tuple
) -> relax.Expr:
    """rint((f32(acc) + b/(sx·sw)) · (sx·sw/so)) + zo; every scale in float32, the bias in float.

    With one scale for all weights the sum is fma(b, 1/(sx·sw), f32(acc)).
    """
    unit = data.scale.astype(f32) * weight_scale.astype(f32)
    multiplier = unit / out.scale.astype(f32)
    if bias is None or not bias.any():
        return _rescaled(node, acc, multiplier, out, shape)
    real = node.emit(qnn.dequantize(acc, 1.0, 0))
    if unit.ndim:
        real = node.emit(relax.op.add(real, _channels(bias.astype(f32) / unit, shape)))
    else:
        real = node.emit(qnn.fma(_channels(bias.astype(f32), shape), scalar(f32(1) / unit), real))
    real = node.emit(relax.op.multiply(real, _channels(multiplier, shape)))
    return node.emit(qnn.quantize(real, 1.0, out.zero_point, out_dtype=out.dtype))


def qnnpack_product(
    node: Node, acc: relax.Expr, bias: Vector | None, data: QParams, weight_scale: Vector, out: QParams, shape: tuple
) -> relax.Expr:
    """rint(f32(acc + rint(b · (1/f32(sx·sw)))) · (sx·sw·(1/so))) + zo: an int32 bias.

    The bias's scale is computed in float64, the multiplier's in float32.
    """
    if bias is not None and bias.any():
        unit = (data.scale * weight_scale.astype(np.float64)).astype(f32)
        rounded = np.rint(bias.astype(f32) * (f32(1) / unit)).astype(np.int32)
        acc = node.emit(relax.op.add(acc, _channels(np.broadcast_to(rounded, bias.shape), shape)))
    multiplier = data.scale.astype(f32) * weight_scale.astype(f32) * (f32(1) / out.scale.astype(f32))
    return _rescaled(node, acc, multiplier, out, shape)


def onednn_product(
    node: Node, acc: relax.Expr, bias: Vector | None, data: QParams, weight_scale: Vector, out: QParams, shape: tuple
) -> relax.Expr:
    """rint((f32(acc)·sx'·sw + b) · (1/so') + zo), the zero point added before the rounding.

    oneDNN takes the reciprocals of PyTorch's scales and inverts them again: s' = 1/f32(1/s). Every product is rounded.
    """
    factor = _twice_inverted(data.scale)
    real = node.emit(qnn.dequantize(acc, constant(factor), 0))
    real = rounded_product(node, real, _channels(weight_scale.astype(f32), shape))
    if bias is not None and bias.any():
        real = node.emit(relax.op.add(real, _channels(bias.astype(f32), shape)))
    real = rounded_product(node, real, scalar(f32(1) / _twice_inverted(out.scale)))
    if int(out.zero_point):
        real = node.emit(relax.op.add(real, scalar(float(out.zero_point))))
    return node.emit(qnn.quantize(real, 1.0, 0, out_dtype=out.dtype))


def product_formula(engine: str, uses_onednn: bool) -> Callable[..., relax.Expr]:
    """The formula that requantizes an accumulator to the output's QParams. x86 uses oneDNN's kernel or fbgemm's."""
    if engine == "qnnpack":
        return qnnpack_product
    return onednn_product if engine == "onednn" or (engine == "x86" and uses_onednn) else fbgemm_product


def rounded_product(node: Node, value: relax.Expr, factor: relax.Expr) -> relax.Expr:
    """A product that is rounded before anything is added to it.

    LLVM contracts a product and a following sum into a fused multiply-add; a maximum with the lowest number, which
    changes no finite value, keeps them apart, as in numerics.tir.fence. LLVM turns an fma with −0 back into a product.
    """
    product = node.emit(relax.op.multiply(value, factor))
    return node.emit(relax.op.maximum(product, scalar(np.finfo(f32).min)))


def _twice_inverted(scale: np.ndarray) -> np.ndarray:
    return f32(1) / (1 / scale.astype(np.float64)).astype(f32)


def _channels(vector: Vector, shape: tuple) -> relax.Expr:
    """A scalar or per-channel vector that broadcasts along `shape`, which is −1 at the channels and 1 after them."""
    return constant(vector.reshape(()) if vector.size == 1 else vector.reshape(shape))


def _rescaled(node: Node, acc: relax.Expr, multiplier: Vector, out: QParams, shape: tuple) -> relax.Expr:
    scale = constant(multiplier.reshape(()) if multiplier.size == 1 else multiplier.reshape(-1))
    axis = len(shape_of(acc)) - len(shape)
    return node.emit(qnn.requantize(acc, scale, 0, 1.0, out.zero_point, axis=axis, out_dtype=out.dtype))


# ---- sums --------------------------------------------------------------------------------------------------------


def vector_sum(
    node: Node, lhs: relax.Expr, rhs: relax.Expr, lhs_q: QParams, rhs_q: QParams, out: QParams
) -> relax.Expr:
    """fbgemm, x86, onednn: rint((a + b) · (1/f32(so))) + zo with a and b dequantized by a fused multiply-add.

    This is the kernel's vectorized body; the last elements of a tensor whose size is not a multiple of 64 go through
    the scalar loop.
    """
    total = node.emit(relax.op.add(dequantize_fused(node, lhs, lhs_q), dequantize_fused(node, rhs, rhs_q)))
    return quantize_after(node, total, out)


def scalar_sum(
    node: Node, lhs: relax.Expr, rhs: relax.Expr, lhs_q: QParams, rhs_q: QParams, out: QParams
) -> relax.Expr:
    """rint(fma(f32(b − zb), sb, (a − za)·sa) · (1/f32(so)) + zo): the scalar loop, also used for broadcasting."""
    left = node.emit(qnn.dequantize(lhs, constant(lhs_q.scale.astype(f32)), lhs_q.zero_point))
    right = node.emit(qnn.dequantize(rhs, 1.0, rhs_q.zero_point))
    total = node.emit(qnn.fma(right, scalar(rhs_q.scale.astype(f32)), left))
    scaled = rounded_product(node, total, scalar(f32(1) / out.scale.astype(f32)))
    moved = node.emit(relax.op.add(scaled, scalar(float(out.zero_point))))
    return node.emit(qnn.quantize(moved, 1.0, 0, out_dtype=out.dtype))


def qnnpack_sum(
    node: Node, lhs: relax.Expr, rhs: relax.Expr, lhs_q: QParams, rhs_q: QParams, out: QParams
) -> relax.Expr:
    """QNNPACK's addition in integers: ((a − za)·ma + (b − zb)·mb) / 2^shift, midpoints away from zero, + zo.

    Multipliers of 22 bits: m = rint(s/so · 2^shift), shift = 21 − ⌊log2 of the larger quotient⌋. The sum fits into
    int32; float64 represents it and its division by a power of two exactly.
    """
    quotients = [q.scale.astype(f32) / out.scale.astype(f32) for q in (lhs_q, rhs_q)]
    shift = 21 - (int(np.frexp(max(quotients))[1]) - 1)
    parts = []
    for value, qparams, quotient in ((lhs, lhs_q, quotients[0]), (rhs, rhs_q, quotients[1])):
        multiplier = np.rint(quotient * f32(2.0**shift)).astype(np.int32)
        wide = node.emit(relax.op.astype(value, "int32"))
        centered = node.emit(relax.op.subtract(wide, constant(qparams.zero_point.astype(np.int32))))
        parts.append(node.emit(relax.op.multiply(centered, constant(multiplier))))
    total = node.emit(relax.op.astype(node.emit(relax.op.add(*parts)), "float64"))
    step = constant(np.float64(2.0**shift))
    return node.emit(qnn.quantize(total, step, out.zero_point, out_dtype=out.dtype, rounding="TONEAREST"))
