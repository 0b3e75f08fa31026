"""Packed sequences: what PyTorch packs stays padded here, with the lengths beside it.

The number of packed rows depends on the lengths. A padded tensor has one shape for all lengths, and recurrent layers
compute with a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax

from .....op import check_bounds, compound
from .....op.base import constant, constant_value, shape_of
from ....recurrent import valid_steps
from ....run_time import checked_indices
from ..node import Node
from ..registry import converter
from ..values import BatchSizes, PackedData, dtype_name

_MOST_COMPARED = 1024
"""Elements of a vector of which each is compared with each."""


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


# ---- the order of the lengths --------------------------------------------------------------------------------------
#
# Vectors of integers, each compared with each in ordinary kernels. That suits lengths and permutations of them, of
# which there is one for each sample of a batch. Other tensors take the operators that sort and scatter.


def _is_short(tensor: Any) -> bool:
    """Whether a tensor is such a vector."""
    integers = not tensor.is_quantized and dtype_name(tensor).startswith(("int", "uint"))
    return integers and tensor.dim() == 1 and 0 < tensor.numel() <= _MOST_COMPARED


def _scatters_lengths(arguments: Mapping[str, Any]) -> bool:
    source, index = arguments.get("src"), arguments["index"]
    if source is None or "reduce" in arguments or source.shape != index.shape:
        return False
    return _is_short(arguments["self"]) and _is_short(index)


@converter("aten::sort", takes=lambda arguments: _is_short(arguments["self"]))
def _sort(node: Node) -> list[relax.Expr]:
    """The values in order, and the place of each before; equal ones stay in order."""
    value = node.expr("self")
    (count,) = shape_of(value)
    column, row = _column(node, value), _row(node, value)
    first = relax.op.greater if node["descending"] else relax.op.less
    earlier = constant(np.tri(count, k=-1, dtype=bool))  # [column, row]: whether the row's value stands before
    tie = node.emit(relax.op.logical_and(node.emit(relax.op.equal(row, column)), earlier))
    before = node.emit(relax.op.logical_or(node.emit(first(row, column)), tie))
    rank = node.emit(relax.op.sum(node.emit(relax.op.astype(before, "int64")), axis=[1]))
    indices = _places(node, rank, count)
    return [relax.op.take(value, indices, axis=0, mode="clip"), indices]


@converter("aten::scatter", "aten::scatter_", takes=_scatters_lengths)
def _scatter(node: Node) -> relax.Expr:
    """y = self, then y[index[k]] = src[k] for each k."""
    (count,) = node.shape_of("self")
    last = _places(node, checked_indices(node.emit, node.expr("index"), count, node.label), count)
    found = relax.op.take(node.expr("src"), node.emit(relax.op.maximum(last, constant(np.int64(0)))), 0, mode="clip")
    missing = node.emit(relax.op.less(last, constant(np.int64(0))))
    return relax.op.where(missing, node.expr("self"), node.emit(found))


def _places(node: Node, values: relax.Expr, count: int) -> relax.Expr:
    """For each number below `count`, the last place where a vector of int64 has it; −1 if it has it nowhere."""
    here = node.emit(relax.op.equal(_column(node, values), constant(np.arange(count).reshape(1, count))))
    places = constant(np.arange(shape_of(values)[0]).reshape(-1, 1))
    return node.emit(relax.op.max(node.emit(relax.op.where(here, places, constant(np.int64(-1)))), axis=[0]))


def _column(node: Node, vector: relax.Expr) -> relax.Expr:
    return compound.reshape(vector, (shape_of(vector)[0], 1), node.emit)


def _row(node: Node, vector: relax.Expr) -> relax.Expr:
    return compound.reshape(vector, (1, shape_of(vector)[0]), node.emit)
