"""The layers whose weights are quantized in groups: matrix products with a constant matrix, also in loops, embeddings,
and what `matrices` makes such products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ...module import FloatNote, QnnModule
from ...op.arguments import data_of, factors_of
from ...op.base import constant_value, shape_of
from ...op.loop import Loop
from ...op.relax_table import traits_of
from ...op.traits import Product
from ...passes.layout.forms import static_shape
from ...passes.rewrite import bindings_of, op_name
from ..annotate.clusters import Graph
from ..annotate.layers import layers_of, lookups
from ..annotate.loop_products import weight_position
from ..config import LayerConfig, QConfig
from .grid import GroupFormat

DENSE, EMBEDDING = "nn.dense", "take"


@dataclass(frozen=True)
class GroupedLayer:
    """A layer to quantize.

    variable: the name of the product's result; in loops, behind the loop's and a point
    data:     the name of the tensor that is multiplied by the weight; None in loops and for embeddings
    """

    variable: str
    data: str | None
    config: LayerConfig

    @property
    def is_embedding(self) -> bool:
        """Whether rows are taken from the weight, instead of multiplied by it."""
        return self.config.operator == EMBEDDING

    def form(self, config: QConfig) -> GroupFormat:
        """How its weight is stored."""
        size = self.config.group_size
        return GroupFormat(
            bits=self.config.nbit_weight,
            group_size=2**31 if size is None else size,
            symmetric=self.config.weight_symmetric,
            scale_dtype=config.group_scales,
            real_zeros=not config.dynamic,
        )


def grouped_layers(module: QnnModule, config: QConfig) -> tuple[dict[str, GroupedLayer], list[FloatNote]]:
    """The layers by variable, and why other products with weights stay float.

    Raises QuantizationError for patterns that match no layer.
    """
    graph = Graph(module.ir, config.float_functions)
    found, notes = [], []
    for layer in layers_of(graph, config):
        if not layer.is_product:
            continue
        call = graph.values[layer.head]
        if not layer.config.quantized:
            notes.append(FloatNote(layer.name, layer.operator, "the qconfig keeps this layer in float"))
        elif weight_of(call) is not None:
            found.append(GroupedLayer(_name(graph.bindings[layer.head]), _variable(data_of(call)), layer.config))
        elif _has_weight(call, graph):
            reason = _obstacle(call, graph)
            if reason:
                notes.append(FloatNote(layer.name, layer.operator, reason))
            else:
                found.append(GroupedLayer(_name(graph.bindings[layer.head]), None, layer.config))
                if config.dynamic and constant_value(factors_of(call)[1]) is None:
                    reason = "its weights, chosen at run time, are packed, what they multiply is not"
                    notes.append(FloatNote(layer.name, layer.operator, reason))
    for name in lookups(graph.function) if config.embeddings else ():
        found.append(GroupedLayer(name, None, config.layer(name, EMBEDDING)))
    found += [GroupedLayer(name, None, config.layer(name, DENSE)) for name in _in_loops(graph.function)]
    return {layer.variable: layer for layer in found if layer.config.quantized}, notes


def weight_of(call: Any) -> np.ndarray | None:
    """The matrix (N, K) that a layer multiplies by, or takes rows from, with groups along its rows; None for other
    operators."""
    name = op_name(call)
    if name == EMBEDDING:
        table = constant_value(data_of(call))
        return table if _is_matrix(table) else None
    if name != "matmul":
        return None
    matrix = constant_value(factors_of(call)[1])
    return matrix.T if matrix is not None and _is_matrix(matrix) else None


def is_convolution(call: Any) -> bool:
    """Whether it is a convolution of any rank, and not a transposed one."""
    return traits_of(call).product is Product.CONVOLUTION


def _has_weight(call: Any, graph: Graph) -> bool:
    """Whether one of its factors is constant, or taken from a constant."""
    factors = factors_of(call)
    return any(constant_value(factor) is not None for factor in factors) or _experts(factors[1], graph) is not None


def _experts(factor: Any, graph: Graph) -> np.ndarray | None:
    """The matrices (E, K, N) some of which a factor is."""
    index = graph.index.get(factor)
    value: Any = None if index is None else graph.values[index]
    if op_name(value) != "take" or value.attrs.axis is None or int(value.attrs.axis) != 0:
        return None
    table = constant_value(data_of(value))
    return table if table is not None and table.ndim == 3 else None


def _obstacle(call: Any, graph: Graph) -> str | None:
    """Why a product's weights cannot have groups; None for those that `matrices` knows."""
    data, weight = factors_of(call)
    value, chosen = constant_value(weight), _experts(weight, graph)
    shape = static_shape(data)
    if shape is None or static_shape(call) is None:
        return "a size is known only at run time: only products of known sizes have weights in groups"
    if value is None and chosen is None:
        return "its weight is the left factor: only those on the right are quantized in groups"
    dtype = str(weight.ty.dtype)
    if dtype != "float32" or 0 in shape or 0 in shape_of(weight):
        return f"its weight is {dtype} {shape_of(weight)}: only those of float32 with values are quantized in groups"
    if traits_of(call).product is Product.TRANSPOSED:
        return "transposed convolutions have no rows of weights: they spread each value"
    if is_convolution(call):
        few = int(call.attrs.groups) > 1
        return "convolutions in groups have short rows of weights: a scale would be shared by few" if few else None
    if chosen is None and (
        len(shape_of(weight)) != 3 or len(shape) > 3 or shape_of(data)[:-2] not in ((), (1,), shape_of(weight)[:1])
    ):
        return f"{shape} times {shape_of(weight)}: only matrices and batches of them are quantized in groups"
    return None


def _is_matrix(value: np.ndarray | None) -> bool:
    return value is not None and value.ndim == 2 and value.dtype == np.float32 and value.size > 0


def _in_loops(function: relax.Function, prefix: str = "") -> Iterator[str]:
    for binding in bindings_of(function):
        loop = Loop.of(binding.value)
        if loop is not None:
            yield from _in_loops(loop.body, f"{prefix}{_name(binding)}.")
        elif prefix and op_name(binding.value) == "matmul" and weight_position(binding.value) == 1:
            yield f"{prefix}{_name(binding)}"


def _name(binding: relax.VarBinding) -> str:
    return str(binding.var.name)


def _variable(expr: Any) -> str:
    return str(expr.name)
