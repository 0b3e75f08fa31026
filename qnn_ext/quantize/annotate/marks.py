"""Which tensors are quantized: what each layer requests, and the resulting marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm import IRModule, relax

from ...module import QnnModule
from ...op.arguments import data_of, factors_of
from ...op.observe import observe
from ...op.relax_table import traits_of
from ...passes.low_precision import HALVES, in_precision
from ...passes.rewrite import Rebuild, substitute
from ..config import LayerConfig, QConfig
from .clusters import Cluster, Graph
from .families import Family, is_constant, is_integer_resize
from .layers import Layer, layers_of, weight_axis
from .logarithms import filters_of_spectra
from .statistics import statistics


def annotate_main(module: QnnModule, config: QConfig) -> QnnModule:
    """`annotate` without what is in loops."""
    graph = _graph(module, config)
    layers = layers_of(graph, config)
    products = {layer.head: layer.config for layer in layers if layer.is_product}
    half = {head: config.precision for head, config in products.items() if config.precision in HALVES}
    exact = {layer.head for layer in layers if not layer.config.quantized and layer.is_product}
    exact |= statistics(graph) if "layer_norm" in config.float_functions else set()
    wishes = _Wishes(graph, layers, config)
    return replace(module, ir=_marked(graph, wishes.weights(), wishes.activations(), half, exact))


def float_filters(module: QnnModule, config: QConfig) -> list[str]:
    """The layers that find the spectrum which a logarithm reads, and are in float only for that reason: those for which
    8 bits are most likely to do."""
    if "log" not in config.float_functions:
        return []
    graph = _graph(module, config)
    others = replace(config, float_functions=[name for name in config.float_functions if name != "log"])
    quantized = {layer.head for layer in layers_of(graph, others) if layer.config.quantized}
    found = filters_of_spectra(graph) & quantized
    return [layer.name for layer in layers_of(graph, config) if layer.head in found and not layer.config.quantized]


def _graph(module: QnnModule, config: QConfig) -> Graph:
    integral = config.partition_conversions == "fully_integral"
    return Graph(module.ir, config.float_functions, config.nbit_activation <= 8, integral, config.dynamic)


@dataclass(frozen=True)
class _Mark:
    """The attributes of one `observe`; range: fixed by the user for the layer whose data input this is."""

    layer: Layer
    role: str
    range: tuple[float, float] | None = None

    def of(self, name: str, expr: Any, axis: int | None = None) -> relax.Call:
        layer = self.layer
        return observed(expr, name, layer.name, layer.operator, layer.config, self.role, axis, self.range)


def observed(
    expr: Any,
    name: str,
    layer: str,
    operator: str,
    config: LayerConfig,
    role: str,
    axis: int | None,
    fixed: tuple[float, float] | None,
) -> relax.Call:
    """The `observe` of a tensor, as the configuration of the layer that requests it says. fixed: its range, if known"""
    dtype, bits, symmetric = _format(config, role)
    low, high = (None, None) if fixed is None else fixed
    return observe(
        expr,
        site=name,
        layer=layer,
        operator=operator,
        role=role,
        dtype=dtype,
        bits=bits,
        symmetric=symmetric,
        axis=axis,
        calibrate_mode=config.weight_scale if role == "weight" else config.calibrate_mode,
        percentile=config.percentile,
        low=low,
        high=high,
    )


def _format(config: LayerConfig, role: str) -> tuple[str, int, bool]:
    """dtype, bits and symmetry of a tensor in this role."""
    if role == "weight":
        return config.dtype_weight, config.nbit_weight, True
    if config.precision == "int16":
        return "int16", 16, True  # no zero point: int16 − zero point would not fit into int16
    if role == "activation" and config.nbit_activation <= 8:
        return config.dtype_activation, config.nbit_activation, config.symmetric
    return config.dtype_input, config.nbit_input, config.symmetric


def _is_wide(layer: Layer) -> bool:
    return layer.config.precision == "int16"


class _Wishes:
    """What the layers request, root by root: a tensor requested by several is quantized as the first of them says, but
    with 16 bits if any of them requests so."""

    def __init__(self, graph: Graph, layers: list[Layer], config: QConfig) -> None:
        self._graph = graph
        self._config = config
        self._by_cluster = {layer.cluster: layer for layer in layers}
        self._marks: dict[Any, _Mark] = {}
        self._weights: dict[tuple[int, int], tuple[str, _Mark, int | None]] = {}
        self._on_integers: set[int] = set()  # bindings computed from integers
        self._before_products = graph.before_products()
        known = -1
        while known < (known := len(self._marks) + len(self._on_integers)):  # a mark may make others worthwhile
            self._visit_all()

    def _visit_all(self) -> None:
        graph = self._graph
        for index, family in enumerate(graph.families):
            if graph.in_cluster(index):
                if graph.cluster_of(index).end == index:
                    self._visit(graph.cluster_of(index))
            elif family is Family.MOVE and self._is_integer(data_of(graph.values[index])):
                self._on_integers.add(index)

    def activations(self) -> dict[Any, _Mark]:
        """Variable -> its mark."""
        return self._marks

    def weights(self) -> dict[tuple[int, int], tuple[str, _Mark, int | None]]:
        """(binding, argument) -> name, mark and channel axis."""
        return self._weights

    def _is_integer(self, expr: Any) -> bool:
        """Whether an operand is computed by operators on integers, or quantized for another reader."""
        root = self._graph.root(expr)
        return root is not None and (root in self._marks or self._graph.index.get(root) in self._on_integers)

    def _want(self, expr: Any, layer: Layer, role: str, data: bool = False) -> None:
        """Request that a tensor be quantized; data: whether it is the layer's data input, whose range may be fixed."""
        root = self._graph.root(expr)
        if root is None:
            return
        mark = self._marks.get(root, _Mark(layer, role))
        if role == "input" and mark.role != "input":
            mark = _Mark(layer, role, mark.range)
        if _is_wide(layer) and not _is_wide(mark.layer):
            mark = replace(mark, layer=layer)
        if data and mark.range is None:
            mark = replace(mark, range=layer.config.range)
        self._marks[root] = mark

    def _visit(self, cluster: Cluster) -> None:
        graph, layer = self._graph, self._by_cluster.get(cluster)
        if layer is None or not layer.config.quantized:
            return
        external = graph.external(cluster)
        if layer.is_product:
            self._product(layer)
        elif layer.family is Family.ANNOTATED:
            self._annotated(layer)
        elif not any(map(self._is_integer, _data(graph, cluster) or [operand for _, operand in external])):
            return
        if not self._stays_integer(cluster):
            return
        self._on_integers.add(cluster.end)
        for operand in _data(graph, cluster):
            if not layer.is_join or self._is_shared(operand):
                self._want(operand, layer, "activation", data=True)
        for member, operand in external:
            if self._config.enabled(graph.names[member]) and not self._is_float_stream(operand):
                self._want(operand, layer, "activation")

    def _stays_integer(self, cluster: Cluster) -> bool:
        """Whether a cluster's result is read as integers further on. What only leads to the model's outputs gains
        nothing from 8 bits: detection heads are joined and decoded as the accumulators they come from."""
        config = self._config
        everywhere = config.nbit_activation <= 8 or config.partition_conversions == "fully_integral"
        return everywhere or cluster.end in self._before_products

    def _is_float_stream(self, expr: Any) -> bool:
        """Whether a float function also reads the tensor: it then stays float unless 8 bits are requested everywhere.

        A transformer's residual stream, read only by layer normalizations and sums, accumulates the rounding errors of
        all layers and has outliers: ViT-B/32 reaches 12 dB with 8 bits there, 30 dB without.
        """
        config, graph = self._config, self._graph
        if config.nbit_activation <= 8 or config.partition_conversions == "fully_integral":
            return False
        readers = graph.readers_of.get(graph.root(expr), set())
        return any(index < len(graph.families) and graph.families[index] is Family.FLOAT for index in readers)

    def _is_shared(self, expr: Any) -> bool:
        """Whether a join's field is quantized by itself: because others read it too, or operators on the way compute on
        its integers. If not, it gets the scale of the join's result."""
        root = self._graph.root(expr)
        while isinstance(expr, relax.Var):
            if len(self._graph.readers_of[expr]) > 1:
                return True
            if root is None or expr.same_as(root):
                return False
            value = self._graph.values[self._graph.index[expr]]
            if is_integer_resize(value):
                return True
            expr = data_of(value)
        return False

    def _annotated(self, layer: Layer) -> None:
        """An operator whose traits name the arguments to quantize."""
        call = self._graph.values[layer.head]
        traits = traits_of(call)
        assert traits.annotate is not None
        for name, axis in traits.annotate(call).items():
            operand = traits.argument(call, name)
            if is_constant(operand):
                mark = _Mark(layer, "weight")
                self._weights[layer.head, traits.index(name)] = f"{layer.name}.{name}", mark, axis
            else:
                self._want(operand, layer, "activation", data=name == traits.data[0].name)

    def _product(self, layer: Layer) -> None:
        index = layer.head
        call = self._graph.values[index]
        for position, operand in enumerate(factors_of(call)):
            if not is_constant(operand):
                self._want(operand, layer, "input", data=position == 0)
                continue
            axis = weight_axis(call, layer.operator, position) if layer.config.per_channel else None
            self._weights[index, position] = (f"{layer.name}.weight", _Mark(layer, "weight"), axis)


def _data(graph: Graph, cluster: Cluster) -> list[Any]:
    """The data of a pool or a join; empty for products, whose operands differ in role, for pointwise operators, and for
    those that name theirs."""
    if cluster.head is None or graph.families[cluster.head] in (Family.PRODUCT, Family.ANNOTATED):
        return []
    first = data_of(graph.values[cluster.head])
    return list(first.fields) if isinstance(first, relax.Tuple) else [first]


def _marked(
    graph: Graph,
    weights: dict[tuple[int, int], tuple[str, _Mark, int | None]],
    activations: dict[Any, _Mark],
    half: Mapping[int, str],
    exact: set[int],
) -> IRModule:
    """The module with its marks, each right after the variable it is for, weights before their product; the products in
    `half` are in the precision given there. What is in `exact`, of products those with a constant, reads tensors before
    they are quantized."""
    new = Rebuild(graph.function)
    unmarked: dict[Any, Any] = {}

    def mark(var: Any, value: Any) -> None:
        new.environment[var] = unmarked[var] = value
        if var in activations:
            name = str(var.name)
            new.environment[var] = new.builder.emit(activations[var].of(name, value), name_hint=f"{name}_site")

    def marked_weight(index: int, position: int, operand: Any) -> Any:
        if (index, position) not in weights:
            return operand
        name, weight, axis = weights[index, position]
        return new.builder.emit(weight.of(name, operand, axis), name_hint=name.replace(".", "_"))

    with new.main():
        for param in graph.function.params:
            mark(param, param)
        for index, binding in enumerate(graph.bindings):
            product = graph.families[index] in (Family.PRODUCT, Family.ANNOTATED)
            reads_unmarked = index in exact and (not product or any(map(is_constant, binding.value.args)))
            value = substitute(binding.value, unmarked) if reads_unmarked else new.substituted(binding.value)
            if product:
                args = [marked_weight(index, position, arg) for position, arg in enumerate(value.args)]
                value = relax.Call(value.op, args, value.attrs, value.ty_args)
                value = in_precision(value, new.builder.emit, half[index]) if index in half else value
            mark(binding.var, new.bind(binding.var, value))
    return new.module()
