"""Group and instance normalization as normalized rows, scaled and shifted for each channel.

Of floats too: TVM takes the variance from the sum of squares, which cancels where it is small beside the mean.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from ... import op as qnn
from ...op import compound
from ...op.base import call_attributes, constant, shape_of
from ...op.group_norm import channels_second
from ...op.relax_numpy import float_groups
from ..rewrite import Emit
from .registry import canonical


@canonical("qnn.group_norm", "qnn.instance_norm")
def canonicalize_group_norm(call: relax.Call, emit: Emit) -> relax.Expr:
    """quantize(normalize(rows) · γ + β), a row being a group of channels."""
    data, gamma, beta, scale, zero_point, output_scale, output_zero_point = call.args
    attributes = call_attributes(call)
    order = channels_second(attributes["axis"], len(shape_of(data)))
    data = compound.permute(data, order, emit)
    batch, channels, *rest = shape_of(data)
    rows = (batch, attributes.get("num_groups", channels))
    real = compound.normalized_rows(data, scale, zero_point, rows, attributes["epsilon"], True, emit)
    real = compound.affine(real, gamma, beta, (channels, *(1 for _ in rest)), emit)
    result = qnn.quantize(
        real,
        output_scale,
        output_zero_point,
        out_dtype=attributes["out_dtype"],
        reciprocal=attributes["reciprocal"],
    )
    back = [int(axis) for axis in np.argsort(order)]
    return result if back == sorted(back) else relax.op.permute_dims(emit(result), back)


@canonical("nn.group_norm", "nn.instance_norm")
def canonicalize_float_group_norm(call: relax.Call, emit: Emit) -> relax.Expr | None:
    """fma(n, γ, β), n being the layer normalization of rows without parameters; other dtypes and axes keep TVM's."""
    groups = float_groups(call)
    if groups is None:
        return None
    data, gamma, beta = call.args
    batch, channels, *rest = shape_of(data)
    row = channels // groups * int(np.prod(rest, dtype=np.int64))
    rows = compound.reshape(data, (batch, groups, row), emit)
    ones, zeros = (constant(np.full(row, value, np.float32)) for value in (1, 0))
    unit = emit(relax.op.nn.layer_norm(rows, ones, zeros, [-1], float(call.attrs.epsilon)))
    gamma = gamma if call.attrs.scale else constant(np.ones(channels, np.float32))
    beta = beta if call.attrs.center else constant(np.zeros(channels, np.float32))
    column = (channels, *(1 for _ in rest))
    parameters = [compound.reshape(vector, column, emit) for vector in (gamma, beta)]
    return qnn.fma(compound.reshape(unit, (batch, channels, *rest), emit), *parameters)
