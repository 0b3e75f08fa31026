"""prepare: a user's module to one that trains as its integers will compute."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import QuantizationError, QuantizationWarning
from .capture import capture, tensors_of
from .config import QatConfig
from .folding import corrected, folded_bias, moving_scale, scaled, unscaled
from .operators import (
    CONVOLUTIONS,
    TRANSPOSED,
    is_clamp,
    is_float,
    is_product,
    module_of,
    parametric_nodes,
    rank,
    reads_integers,
    source_of,
)
from .schemes import FakeBias, FakeQuantize, Scheme

STATE = "qnn_ext.qat"


@dataclass
class State:
    """What a prepared module knows of its making, in `module.meta`."""

    inputs: tuple[torch.Tensor, ...]
    config: QatConfig
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Remember what stays in float, and warn."""
        if text in self.notes:  # of a layer called before
            return
        self.notes.append(text)
        warnings.warn(text, QuantizationWarning, stacklevel=4)


def state_of(module: Any) -> State:
    """The state of a prepared module; QuantizationError for any other."""
    state = module.meta.get(STATE) if isinstance(module, fx.GraphModule) else None
    if state is None:
        raise QuantizationError(f"expected a module made by qnn_ext.qat.prepare, found {type(module).__name__}")
    return state


def notes(module: fx.GraphModule) -> list[str]:
    """What a prepared module computes in float, and why."""
    return list(state_of(module).notes)


def prepare(
    module: nn.Module, example_inputs: torch.Tensor | Sequence[torch.Tensor], config: QatConfig | None = None
) -> fx.GraphModule:
    """A copy of a float module for quantization-aware training.

    module:         any nn.Module that torch.fx can trace; it is left as it is. Parameters and buffers keep their names
                    in the copy, so state dictionaries go both ways (`strict=False`: the copy also has ranges)
    example_inputs: the tensors that forward takes; only their shapes and dtypes matter
    config:         `QatConfig()` by default

    Every float tensor that an operator with integer arithmetic reads is rounded as its integers will round it, with a
    range observed in training: data of products, sums, concatenations, averages and activation functions. Weights
    are rounded with the range they have just now, after batch normalization behind them is multiplied in, and biases
    to int32 in units of the products. The copy is trained as any module: `.train()`, `.eval()`, `.to(device)`,
    optimizers, autocast. What stays in float is warned of (QuantizationWarning) and listed by `notes`.

    Raises QuantizationError where the module cannot be traced, with the line that prevents it.
    """
    inputs = tensors_of(example_inputs)
    state = State(tuple(value.detach().clone() for value in inputs), config or QatConfig())
    prepared = capture(module, inputs)
    prepared.meta[STATE] = state
    _spell_out(prepared)
    quantizers = _Quantizers(prepared, state)
    constants = parametric_nodes(prepared.graph)
    for node in list(prepared.graph.nodes):
        if is_product(node):
            _quantize_weight(node, bound(node)["weight"] in constants, quantizers)
    _note_float_layers(prepared, state)
    _quantize_activations(prepared, quantizers)
    for node in list(prepared.graph.nodes):
        if is_product(node) and not node.meta.get("float"):
            _round_bias(node, quantizers)
    prepared.graph.lint()
    prepared.recompile()
    return prepared


# ---- products ----------------------------------------------------------------------------------------------------


def _spell_out(module: fx.GraphModule) -> None:
    """Convolution and linear modules as functions of their parameters."""
    graph = module.graph
    for node in list(graph.nodes):
        if node.op != "call_module":
            continue
        layer, name = module_of(node), str(node.target)
        with graph.inserting_before(node):
            call = _call_of(graph, layer, name, node)
        if call is None:
            continue
        call.meta.update(node.meta, layer=name)
        node.replace_all_uses_with(call)
        graph.erase_node(node)


def _call_of(graph: fx.Graph, layer: Any, name: str, node: fx.Node) -> fx.Node | None:
    base: Any = next((b for b in (*CONVOLUTIONS, *TRANSPOSED, nn.Linear) if isinstance(layer, b)), None)
    if base is None or type(layer).forward is not base.forward or len(node.all_input_nodes) != 1 or len(node.args) != 1:
        return None
    x: Any = node.args[0]
    weight = graph.get_attr(f"{name}.weight")
    bias = None if layer.bias is None else graph.get_attr(f"{name}.bias")
    if base is nn.Linear:
        return graph.call_function(F.linear, (x, weight, bias))
    if base in TRANSPOSED:
        steps = (layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation)
        return graph.call_function(TRANSPOSED[base], (x, weight, bias, *steps))
    padding = layer.padding
    if layer.padding_mode != "zeros":
        pads = list(layer._reversed_padding_repeated_twice)
        shape = x.meta["tensor_meta"]
        x = graph.call_function(F.pad, (x, pads), {"mode": layer.padding_mode})
        x.meta["tensor_meta"], padding = shape, 0
    return graph.call_function(
        CONVOLUTIONS[base], (x, weight, bias, layer.stride, padding, layer.dilation, layer.groups)
    )


def bound(node: fx.Node) -> dict[str, Any]:
    """The arguments of a product by name, those left out with their defaults."""
    is_linear = node.target is F.linear
    names = ["input", "weight", "bias", *([] if is_linear else _STEPS_TRANSPOSED if is_transposed(node) else _STEPS)]
    return {"bias": None, "groups": 1, **dict(zip(names, node.args, strict=False)), **node.kwargs}


_STEPS = ("stride", "padding", "dilation", "groups")
_STEPS_TRANSPOSED = ("stride", "padding", "output_padding", "groups", "dilation")


def is_transposed(node: fx.Node) -> bool:
    """Whether a product is a transposed convolution, whose weight has its input channels first."""
    return node.target in TRANSPOSED.values()


def set_arguments(node: fx.Node, **values: Any) -> None:
    """Replace arguments of a product."""
    node.args, node.kwargs = (), {**bound(node), **values}
    if node.target is F.linear:
        node.kwargs = {name: value for name, value in node.kwargs.items() if name != "groups"}


def layer_of(node: fx.Node) -> str:
    """The name of a product's layer: its module, or the module that has its weight."""
    if "layer" in node.meta:
        return node.meta["layer"]
    weight = bound(node)["weight"]
    return str(weight.target).rpartition(".")[0] if weight.op == "get_attr" else node.name


class _Quantizers:
    """Makes the FakeQuantize modules of a graph and the nodes that call them."""

    def __init__(self, module: fx.GraphModule, state: State) -> None:
        self._module, self.state, self._prefix = module, state, "quantizers"
        while hasattr(module, self._prefix):
            self._prefix += "_"

    def config_of(self, layer: str) -> QatConfig | None:
        """The configuration of a layer."""
        return self.state.config.for_layer(layer)

    def weight(self, node: fx.Node, config: QatConfig, axis: int | None, channels: int, name: str) -> fx.Node:
        """The rounded value of a weight."""
        scheme = _scheme(config, config.weight_bits, config.weight_scheme, unsigned=False)
        return self._insert(node, FakeQuantize(scheme, axis, channels, current=True), name)

    def activation(self, node: fx.Node, bits: int, is_constant: bool) -> fx.Node:
        """The rounded value of an activation, or of a parameter that is an operand as activations are."""
        config = self.state.config
        scheme = _scheme(config, bits, config.activation_scheme, unsigned=True)
        constant = config.averaging_constant if config.observer == "moving_average" else None
        return self._insert(node, FakeQuantize(scheme, averaging_constant=constant, current=is_constant), node.name)

    def bias(self, node: fx.Node, data: FakeQuantize, weight: FakeQuantize, name: str) -> fx.Node:
        """The rounded value of a bias."""
        return self._insert(node, FakeBias(data, weight), name)

    def _insert(self, node: fx.Node, quantizer: FakeQuantize | FakeBias, name: str) -> fx.Node:
        target = f"{self._prefix}.{name.replace('.', '_')}"
        while any(target == path for path, _ in self._module.named_modules()):
            target += "_"
        device = next((p.device for p in self._module.parameters()), self.state.inputs[0].device)
        self._module.add_submodule(target, quantizer.to(device).train(self._module.training))
        call = node.graph.call_module(target, (node,))
        call.meta.update({key: node.meta[key] for key in ("tensor_meta",) if key in node.meta})
        return call


def _scheme(config: QatConfig, bits: int, scheme: str, unsigned: bool) -> Scheme:
    return Scheme(bits, scheme == "symmetric", config.formula == "cambricon", unsigned)


def _quantize_weight(node: fx.Node, is_constant: bool, quantizers: _Quantizers) -> None:
    """Round a product's weight, with the scale of the batch normalization behind it."""
    config, graph = quantizers.config_of(layer_of(node)), node.graph
    arguments = bound(node)
    weight, groups, transposed = arguments["weight"], arguments["groups"], is_transposed(node)
    if config is None or not is_constant:
        node.meta["float"] = True
        return
    name = layer_of(node)
    axis = 0 if not transposed else 1 if groups == 1 else None
    with graph.inserting_before(node):
        norm = _normalization(node)
        if norm is not None:
            layer, target = module_of(norm), str(norm.target)
            gamma = graph.get_attr(f"{target}.weight") if layer.affine else None
            s = graph.call_function(moving_scale, (gamma, graph.get_attr(f"{target}.running_var"), layer.eps))
            weight = graph.call_function(scaled, (weight, s, groups, transposed))
        if axis is None and config.per_channel:
            quantizers.state.note(f"{name}: a transposed convolution in groups has one scale for all output channels")
        axis = axis if config.per_channel else None
        channels = _channels(node)
        rounded = quantizers.weight(weight, config, axis, channels, f"{name}_weight")
        set_arguments(node, weight=rounded, bias=None if norm is not None else arguments["bias"])
    if norm is not None:
        with graph.inserting_before(norm):
            y = graph.call_function(unscaled, (node, s, arguments["bias"]))
        y.meta["tensor_meta"] = node.meta["tensor_meta"]
        norm.args, norm.kwargs = (y,), {}


def _channels(node: fx.Node) -> int:
    """Number of output channels."""
    shape = node.meta["tensor_meta"].shape
    return shape[-1] if node.target is F.linear else shape[-(rank_of_window(node) + 1)]


def rank_of_window(node: fx.Node) -> int:
    """Number of spatial dimensions of a convolution."""
    functions: list[Any] = list(TRANSPOSED.values() if is_transposed(node) else CONVOLUTIONS.values())
    return functions.index(node.target) + 1


def _normalization(node: fx.Node) -> fx.Node | None:
    """The batch normalization that can be folded into a product: its only reader, along its output channels."""
    users = list(node.users)
    if len(users) != 1 or users[0].op != "call_module" or users[0].args != (node,):
        return None
    layer = module_of(users[0])
    if not isinstance(layer, _BatchNorm) or layer.running_var is None:
        return None
    along = 2 if node.target is F.linear else rank_of_window(node) + 2
    return users[0] if rank(node) == along else None


def _note_float_layers(module: fx.GraphModule, state: State) -> None:
    """Say which layers have parameters that stay in float."""
    for node in module.graph.nodes:
        if node.meta.get("float"):
            chosen = state.config.for_layer(layer_of(node)) is None
            reason = "as configured" if chosen else "its weight is computed from the data"
            state.note(f"{layer_of(node)}: in float, {reason}")
        elif node.op == "call_module" and not isinstance(module_of(node), (FakeQuantize, FakeBias)):
            layer = module_of(node)
            if isinstance(layer, _BatchNorm):
                if not (isinstance(node.args[0], fx.Node) and node.args[0].target is unscaled):
                    state.note(f"{node.target}: in float, no convolution or linear layer alone is before it")
            elif next(layer.parameters(), None) is not None:
                state.note(f"{node.target}: {type(layer).__name__} stays in float")


# ---- activations -------------------------------------------------------------------------------------------------


def _quantize_activations(module: fx.GraphModule, quantizers: _Quantizers) -> None:
    """Round what integer operators read, and the outputs that they write."""
    graph, config = module.graph, quantizers.state.config
    constants = parametric_nodes(graph)
    sites: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if not reads_integers(node) or node.meta.get("float"):
            continue
        reader = (quantizers.config_of(layer_of(node)) if is_product(node) else None) or config
        for site in map(source_of, [bound(node)["input"]] if is_product(node) else node.all_input_nodes):
            if is_float(site):
                is_input = site.op == "placeholder" and config.io_bits is not None
                bits = (config.io_bits if is_input else None) or reader.activation_bits
                sites[site] = max(bits, sites.get(site, 0))
    if config.io_bits is not None:
        (output,) = [node for node in graph.nodes if node.op == "output"]
        for site in map(source_of, output.all_input_nodes):
            if is_float(site) and _is_computed_in_integers(site):
                sites.setdefault(site, config.io_bits)
    for site, bits in sites.items():
        places = [node for node in graph.nodes if node.op == "placeholder"]
        with graph.inserting_after(places[-1] if site.op == "placeholder" else site):
            rounded = quantizers.activation(site, bits, site in constants)
        _replace_for_others(site, rounded)


def _round_bias(node: fx.Node, quantizers: _Quantizers) -> None:
    """Round a product's bias; that of a folded normalization behind it."""
    arguments, graph = bound(node), node.graph
    data, weight = quantizer_of(arguments["input"]), quantizer_of(arguments["weight"])
    norm = next((user for user in node.users if user.target is unscaled), None)
    name = f"{layer_of(node)}_bias"
    if data is None or weight is None or (norm is None and arguments["bias"] is None):
        return
    with graph.inserting_before(node):
        if norm is None:
            set_arguments(node, bias=quantizers.bias(arguments["bias"], data, weight, name))
            return
        (call,) = norm.users
        layer, target = module_of(call), str(call.target)
        shift = graph.get_attr(f"{target}.bias") if layer.affine else None
        own: Any = norm.args[2]
        bias = None if own is None else graph.get_attr(own.target)
        mean = graph.get_attr(f"{target}.running_mean")
        folded = graph.call_function(folded_bias, (bias, mean, shift, norm.args[1]))
        rounded = quantizers.bias(folded, data, weight, name)
    with graph.inserting_after(call):
        result = graph.call_function(corrected, (call, folded, rounded))
    result.meta.update(call.meta)
    _replace_for_others(call, result)


def _replace_for_others(node: fx.Node, new: fx.Node) -> None:
    """Whatever reads a node reads the new one, but for that itself."""
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)


def quantizer_of(node: fx.Node) -> FakeQuantize | None:
    """The quantizer whose values a node has, moved perhaps."""
    node = source_of(node)
    quantizer = module_of(node) if node.op == "call_module" else None
    return quantizer if isinstance(quantizer, FakeQuantize) else None


def _is_computed_in_integers(node: fx.Node) -> bool:
    """Whether a node's value comes from an integer operator, perhaps through clamps and a folded normalization."""
    while is_clamp(node) or node.target is unscaled or _is_folded(node):
        node = node.all_input_nodes[0]
    return reads_integers(node) and not node.meta.get("float")


def _is_folded(node: fx.Node) -> bool:
    operand = node.args[0] if node.op == "call_module" and node.args else None
    return isinstance(operand, fx.Node) and operand.target is unscaled
