"""SVDF: a dense layer factored into features and time; float, hybrid, and int8 with an int16 memory.

memory[f] = the last `memory_size` values of Σ x·w_feature[f]
y[u] = activation(Σ over the `rank` filters f of unit u, and over time, of memory[f] · w_time[f] + b[u])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tvm import relax

from .... import op as qnn
from ....op.base import constant
from ..node import Node
from ..registry import converter
from .lstm_float import Matrix
from .shape import block, reshape

_DATA, _FEATURE, _TIME, _BIAS, _STATE = range(5)


@dataclass(frozen=True)
class Sizes:
    """batch × depth inputs, `units` outputs of `rank` filters each, `memory` time steps."""

    batch: int
    depth: int
    units: int
    rank: int
    memory: int

    @property
    def filters(self) -> int:
        return self.units * self.rank


@converter("SVDF", max_version=4)
def convert_svdf(node: Node) -> relax.Expr:
    """The memory is kept in a variable tensor."""
    sizes = _sizes(node)
    features = _integer_features(node) if node.dtype(0) == "int8" else _float_features(node)
    state = node.assembly.read_variable(node.operator.inputs[_STATE], (sizes.batch, sizes.filters * sizes.memory))
    memory = _push(node, state, features, sizes)
    node.assembly.write_variable(node.operator.inputs[_STATE], memory)
    return _integer_output(node, memory, sizes) if node.dtype(0) == "int8" else _float_output(node, memory, sizes)


def _sizes(node: Node) -> Sizes:
    data, feature, time, rank = node.shape(_DATA), node.shape(_FEATURE), node.shape(_TIME), int(node.options["rank"])
    if len(data) != 2 or len(feature) != 2 or len(time) != 2 or data[1] != feature[1] or time[0] != feature[0]:
        raise node.malformed(f"input {data}, feature weights {feature} and time weights {time} do not match")
    if rank < 1 or feature[0] % rank or 0 in (*data, *feature, *time):
        raise node.malformed(f"rank {rank} does not divide {feature[0]} filters")
    sizes = Sizes(data[0], data[1], feature[0] // rank, rank, time[1])
    if node.has_input(_BIAS) and node.shape(_BIAS) != (sizes.units,):
        raise node.malformed(f"the bias must have {sizes.units} elements, found shape {node.shape(_BIAS)}")
    if not node.has_input(_STATE) or not node.tensor(_STATE).is_variable:
        raise node.malformed("the memory must be a variable tensor")
    return sizes


def _push(node: Node, state: relax.Expr, features: relax.Expr, sizes: Sizes) -> relax.Expr:
    """The memory without its oldest values, with the new ones appended."""
    rows = reshape(node, state, [sizes.batch, sizes.filters, sizes.memory])
    kept = block(node, rows, [2], [1], [sizes.memory], [1])
    newest = reshape(node, features, [sizes.batch, sizes.filters, 1])
    parts = [kept, newest] if sizes.memory > 1 else [newest]
    joined = node.emit(relax.op.concat(parts, axis=2)) if len(parts) > 1 else newest
    return reshape(node, joined, [sizes.batch, sizes.filters * sizes.memory])


def _weighted_sum(node: Node, memory: relax.Expr, weights: np.ndarray, sizes: Sizes) -> relax.Expr:
    """Σ memory · weights over each unit's filters and time steps: (batch, units)."""
    span = sizes.rank * sizes.memory
    products = relax.op.multiply(
        reshape(node, memory, [sizes.batch, sizes.units, span]), constant(weights.reshape(sizes.units, span))
    )
    return node.emit(relax.op.sum(node.emit(products), axis=[2]))


# ---- int8 --------------------------------------------------------------------------------------------------------


def _factor(node: Node, data: int, weight: int, out_scale: np.ndarray) -> np.float32:
    """Input scale · weight scale / output scale, each step rounded to float32 as in LiteRT."""
    return np.float32(node.qparams(data).scale) * np.float32(node.qparams(weight).scale) / np.float32(out_scale)


def _rescale(value: relax.Expr, factor: np.float32, zero_point: int, dtype: str) -> relax.Expr:
    """LiteRT has no other kernel, so this rounding serves both numerics."""
    return qnn.requantize(value, np.float64(factor), 0, np.float64(1), zero_point, rounding="TFLITE", out_dtype=dtype)


def _integer_features(node: Node) -> relax.Expr:
    """Σ (x − z)·w at the memory's scale."""
    dtypes = [node.tensor(index).dtype for index in (_FEATURE, _TIME, _STATE)]
    if dtypes != ["int8", "int16", "int16"] or (node.has_input(_BIAS) and node.dtype(_BIAS) != "int32"):
        raise node.unsupported(
            f"weights and memory of {', '.join(dtypes)}; int8 activations need int8 feature weights, int16 time "
            "weights, an int16 memory and an int32 bias"
        )
    if np.any(node.qparams(_STATE).zero_point):
        raise node.unsupported("a memory with a zero point")
    acc = node.emit(qnn.dense(node.input(_DATA), node.input(_FEATURE), node.qparams(_DATA).zero_point, 0, 1.0, 1.0))
    factor = _factor(node, _DATA, _FEATURE, node.qparams(_STATE).scale)
    return node.emit(_rescale(acc, factor, 0, "int16"))


def _integer_output(node: Node, memory: relax.Expr, sizes: Sizes) -> relax.Expr:
    """LiteRT requires the fused activation RELU, which the output's zero point enforces: the kernel does not clip."""
    if node.options["fused_activation_function"] not in ("NONE", "RELU"):
        raise node.unsupported(f"activation {node.options['fused_activation_function']} of int8")
    wide = node.emit(relax.op.astype(memory, "int32"))
    acc = _weighted_sum(node, wide, node.constant(_TIME).astype(np.int32), sizes)
    if node.has_input(_BIAS):
        acc = node.emit(relax.op.add(acc, node.input(_BIAS)))
    target = node.output_qparams()
    factor = _factor(node, _STATE, _TIME, target.scale)
    return _rescale(acc, factor, int(target.zero_point), target.dtype)


# ---- float and hybrid --------------------------------------------------------------------------------------------


def _float_features(node: Node) -> relax.Expr:
    """Σ x·w in float32; with int8 weights the input is quantized at run time."""
    if node.dtype(0) != "float32" or node.tensor(_STATE).dtype != "float32":
        raise node.unsupported(f"{node.dtype(0)} activations with a memory of {node.tensor(_STATE).dtype}")
    return Matrix(node, [_FEATURE]).product(node.input(_DATA))


def _float_output(node: Node, memory: relax.Expr, sizes: Sizes) -> relax.Expr:
    weights = node.constant(_TIME)
    if weights.dtype == np.int8:
        weights = weights * np.float32(node.qparams(_TIME).scale)
    if weights.dtype != np.float32:
        raise node.unsupported(f"time weights of dtype {weights.dtype}")
    result = _weighted_sum(node, memory, weights, sizes)
    if node.has_input(_BIAS):
        result = node.emit(relax.op.add(result, node.input(_BIAS)))
    return node.activate(result)
