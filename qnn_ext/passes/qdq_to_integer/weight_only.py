"""Matrix products of floats with a quantized constant matrix: the weight's integers stay packed, and a kernel makes
floats of them where it reads them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from tvm import relax

from ... import op as qnn
from ...numerics.packed import narrowest, pack
from ...op import compound
from ...op.arguments import factors_of
from ...op.base import constant, constant_value
from ...op.blockwise import LONGEST_GROUP, groups_of
from ..layout.forms import static_shape
from .context import Context
from .tensors import NARROW, Quantized

_REMARK = "its activations are floats: they are multiplied by its quantized weights in float32"


def weight_only(call: relax.Call, context: Context) -> Any:
    """`R.qnn.blockwise_dense` of x (…, K) and a constant w (K, N) with one scale, or one for each column; None if x is
    integers, or the operands are others."""
    x, matrix = factors_of(call)
    shape, w, known = static_shape(x), context.quantized(matrix), context.quantized(x)
    if w is None or not shape or 0 in shape or (known is not None and known.dtype in NARROW):
        return None
    if str(x.ty.dtype) != "float32" or (call.attrs.out_dtype or "float32") != "float32":
        return None
    parts = packed_columns(w)
    if parts is None:
        return None
    dtype, arrays = parts
    group = min(shape[-1], LONGEST_GROUP)
    rows = compound.reshape(context.value(x), (math.prod(shape[:-1]), shape[-1]), context.emit)
    weight, scale, zero_point = map(constant, arrays)
    product = context.emit(qnn.blockwise_dense(rows, weight, scale, zero_point, dtype, group))
    context.remark = _REMARK
    return compound.reshape(product, (*shape[:-1], w.shape[1]), context.emit)


def packed_columns(w: Quantized) -> tuple[str, tuple[np.ndarray, np.ndarray, np.ndarray]] | None:
    """The columns of a constant matrix (K, N) as rows of packed integers: their dtype, the fewest bits that hold them,
    and weight, scale and zero_point as `R.qnn.blockwise_dense` takes them; None for other tensors."""
    values, parameters = constant_value(w.data), w.constants
    if values is None or parameters is None or values.ndim != 2 or not values.size or w.dtype not in ("int8", "uint8"):
        return None
    if w.vectors and w.channel_axis != 1:
        return None
    depth, columns = values.shape
    scale, zeros = (np.broadcast_to(part.reshape(-1), (columns,)) for part in parameters)
    dtype = narrowest(values, zeros, signed=w.dtype == "int8")
    if dtype is None or not np.isfinite(scale).all():
        return None
    groups = groups_of(depth, min(depth, LONGEST_GROUP))

    def by_group(values: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.repeat(values[:, None], groups, axis=1))

    shared = (zeros == zeros[0]).all()
    zero_point = np.asarray(zeros[0], np.int32) if shared else pack(by_group(zeros), dtype)
    return dtype, (pack(values.T, dtype), by_group(scale.astype(np.float32)), zero_point)
