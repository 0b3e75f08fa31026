"""Packed sequences: what PyTorch packs stays padded here, with the lengths beside it.

The number of packed rows depends on the lengths. A padded tensor has one shape for all lengths, and recurrent layers
compute with a mask.
"""

from __future__ import annotations

import numpy as np
from tvm import relax

from .....op import check_bounds, compound
from .....op.base import constant, constant_value, shape_of
from ....recurrent import valid_steps
from ..node import Node
from ..registry import converter
from ..values import BatchSizes, PackedData


@converter("aten::_pack_padded_sequence")
def _pack(node: Node) -> list[PackedData | BatchSizes]:
    """Lengths known only at run time may be any: there are as many steps as the padded tensor has, and where PyTorch
    ends with the longest sequence, padding follows."""
    padded, lengths = node.expr("input"), node.expr("lengths")
    if node["batch_first"]:
        padded = compound.permute(padded, [1, 0, *range(2, len(shape_of(padded)))], node.emit)
    steps, longest = shape_of(padded)[0], len(node.examples[1])
    if constant_value(lengths) is not None:
        padded = node.emit(relax.op.strided_slice(padded, [0], [0], [longest]))
    elif longest < steps:
        raise node.unsupported(
            f"an example whose longest sequence has {longest} of {steps} steps, while lengths are only known at run "
            f"time; give example_inputs with a length of {steps}, or bind the lengths: constants={{...}}"
        )
    else:
        lengths = node.emit(check_bounds(lengths, 1, steps, node.label))
    lengths = node.emit(relax.op.astype(lengths, "int32"))
    valid = node.emit(valid_steps(node.emit, lengths, longest))
    counts = node.emit(relax.op.sum(node.emit(relax.op.astype(valid, "int64")), axis=[1, 2]))
    data, sizes = node.examples
    return [PackedData(data, padded, lengths=lengths), BatchSizes(sizes, counts, lengths=lengths)]


@converter("aten::_pad_packed_sequence")
def _pad(node: Node) -> list[relax.Expr]:
    data = packed_data(node)
    value = padded_with(node, data.expr, data.lengths, node["padding_value"])
    steps, *rest = shape_of(value)
    more = int(node["total_length"]) - steps
    if more > 0:
        filling = constant(np.full((more, *rest), node["padding_value"], str(value.ty.dtype)))
        value = node.emit(relax.op.concat([value, filling], 0))
    if node["batch_first"]:
        value = compound.permute(value, [1, 0, *range(2, len(rest) + 1)], node.emit)
    return [value, relax.op.astype(data.lengths, "int64")]


def packed_data(node: Node) -> PackedData:
    """The data of packed sequences that an operator takes with their batch sizes."""
    data, sizes = node.raw("data"), node.raw("batch_sizes")
    if isinstance(data, PackedData) and isinstance(sizes, BatchSizes) and data.lengths is sizes.lengths:
        return data
    raise node.unsupported(
        "packed sequences that pack_padded_sequence did not make; pack them in the model, from a padded tensor"
    )


def padded_with(node: Node, value: relax.Expr, lengths: relax.Expr | None, padding: float) -> relax.Expr:
    """(steps, batch, …) with `padding` beyond the end of each sequence."""
    steps, batch, *rest = shape_of(value)
    valid = node.emit(valid_steps(node.emit, lengths, steps))
    mask = compound.reshape(valid, (steps, batch, *(1 for _ in rest)), node.emit)
    return node.emit(relax.op.where(mask, value, constant(np.asarray(padding, str(value.ty.dtype)))))
