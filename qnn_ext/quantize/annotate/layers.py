"""The layers of a model as a configuration names them: mainly products, and whatever else can be quantized."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ...op.arguments import data_of, factors_of
from ...passes.rewrite import bindings_of, is_anonymous, op_name
from ..config import LayerConfig, QConfig
from .clusters import Cluster, Graph
from .divisions import divided_products
from .families import Family, is_constant
from .logarithms import before_logarithms
from .loop_products import loop_layers
from .normalizations import normalizations
from .statistics import statistics

_HELPER = re.compile(r"_part\d*$")


@dataclass(frozen=True)
class Layer:
    """One cluster that computes something a user may want to skip.

    operator: "nn.conv2d", "nn.dense" (matmul with a constant), "nn.batch_matmul" (without), "add", "mean" …
    """

    cluster: Cluster
    name: str
    operator: str
    config: LayerConfig
    family: Family

    @property
    def head(self) -> int:
        """The binding of its main operator."""
        return self.cluster.end if self.cluster.head is None else self.cluster.head

    @property
    def is_product(self) -> bool:
        """Whether it multiplies and accumulates integers."""
        return self.family is Family.PRODUCT

    @property
    def is_join(self) -> bool:
        """Whether it joins tensors."""
        return self.family is Family.JOIN


def layers_of(graph: Graph, config: QConfig) -> list[Layer]:
    """The layers in order of computation. Raises QuantizationError for patterns and indices that match no layer."""
    floats = normalizations(graph) if "layer_norm" in config.float_functions else set()
    spectra = before_logarithms(graph) if "log" in config.float_functions else set()
    exact = spectra | (divided_products(graph) if "layer_norm" in config.float_functions else set())
    in_float = spectra | (statistics(graph) if "layer_norm" in config.float_functions else set())
    floats |= {c for c in graph.clusters if _family(graph, c) is not Family.PRODUCT and in_float & set(c.members)}
    clusters = [c for c in graph.clusters if _family(graph, c) is not Family.FLOAT and c not in floats]
    clusters.sort(key=lambda cluster: cluster.end if cluster.head is None else cluster.head)
    names = _distinct([_name(graph, cluster) for cluster in clusters])
    operators = [_operator(graph, cluster) for cluster in clusters]
    families = [_family(graph, cluster) for cluster in clusters]
    products = [i for i, family in enumerate(families) if family is Family.PRODUCT]
    convolutions = [i for i in products if operators[i].startswith("nn.conv")]
    config.check_patterns(
        [*names, *loop_layers(graph.function), *(lookups(graph.function) if config.embeddings else ())]
    )
    config.check_convolutions(len(convolutions))
    order = {i: position for position, i in enumerate(convolutions)}
    layers = []
    for i, cluster in enumerate(clusters):
        first, last = i in products[:1], i in products[-1:]
        resolved = config.layer(names[i], operators[i], order.get(i), first, last, cluster.head in exact)
        layers.append(Layer(cluster, names[i], operators[i], resolved, families[i]))
    return layers


def _family(graph: Graph, cluster: Cluster) -> Family:
    return Family.POINTWISE if cluster.head is None else graph.families[cluster.head]


def _operator(graph: Graph, cluster: Cluster) -> str:
    index = cluster.end if cluster.head is None else cluster.head
    name = graph.names[index]
    if name != "matmul":
        return name
    constant = any(is_constant(arg) for arg in graph.values[index].args)
    return "nn.dense" if constant else "nn.batch_matmul"


def _name(graph: Graph, cluster: Cluster) -> str:
    """The layer's name in the model: that of the head, or of the first operator after it whose name is not a number."""
    members = [i for i in cluster.members if cluster.head is None or i >= cluster.head]
    if cluster.head is None:
        members = [cluster.end]
    names = [_HELPER.sub("", str(graph.bindings[i].var.name)) for i in members]
    return next((name for name in names if not is_anonymous(name)), names[0])


def _distinct(names: list[str]) -> list[str]:
    """The names, made unique by numbering repeated ones."""
    taken: set[str] = set()
    result = []
    for name in names:
        unique, number = name, 1
        while unique in taken:
            number += 1
            unique = f"{name}_{number}"
        taken.add(unique)
        result.append(unique)
    return result


def lookups(function: relax.Function) -> dict[str, int]:
    """The embeddings of `main`: rows taken from a constant matrix of floats. Name → position of the binding."""
    return {
        str(binding.var.name): index
        for index, binding in enumerate(bindings_of(function))
        if op_name(binding.value) == "take" and _is_table(data_of(binding.value)) and binding.value.attrs.axis == 0
    }


def _is_table(expr: Any) -> bool:
    return is_constant(expr) and len(expr.ty.shape) == 2 and str(expr.ty.dtype) == "float32"


def weight_axis(call: Any, operator: str, position: int) -> int | None:
    """The axis of a product's constant operand with one scale per output channel; None: one scale for all."""
    ndim = len(factors_of(call)[position].ty.shape)
    if operator.startswith("nn.conv"):
        return str(call.attrs.kernel_layout).index("O")
    if ndim < 2:
        return None
    return ndim - 1 if position == 1 else ndim - 2
