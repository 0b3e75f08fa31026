"""What the graph of an exported program says of its nodes: the operator, its arguments, the layer it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from ....errors import UnsupportedOperatorError
from ...building import identifier

_NORMALIZATIONS = ("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional")
_MEAN, _TRAINING = 3, 5  # arguments of all of them: what is learnt, and whether it is


def target_name(node: fx.Node) -> str:
    """ "aten.conv2d.default"; the plain name for Python's own functions and higher-order operators."""
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return getattr(node.target, "__name__", str(node.target))


def bound_arguments(node: fx.Node) -> list[Any]:
    """The arguments of a node in the order of the operator's schema, defaults filled in."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return list(node.args)
    bound = []
    for position, argument in enumerate(node.target._schema.arguments):
        if position < len(node.args):
            bound.append(node.args[position])
        else:
            bound.append(node.kwargs.get(argument.name, argument.default_value))
    return bound


def layer_name(node: fx.Node) -> str:
    """The name of the layer a node belongs to, or its own where the layer is a container."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path, kind = stack[-1] if stack else ("", "")
    kind = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    is_layer = bool(path) and kind.startswith("torch.nn.modules.") and ".container." not in kind
    name = path if is_layer and not node.name.startswith(("quantize", "dequantize")) else node.name
    return identifier(name)


def live_nodes(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that an output depends on: folded batch norms leave unused parameters behind."""
    pending = [node for node in graph.nodes if node.op == "output"]
    live: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node not in live:
            live.add(node)
            pending.extend(node.all_input_nodes)
    return live


def user_inputs(program: torch.export.ExportedProgram) -> list[str]:
    """The names of the inputs that are neither parameters nor buffers."""
    placeholders = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    specs = program.graph_signature.input_specs
    return [name for name, spec in zip(placeholders, specs, strict=False) if spec.kind == InputKind.USER_INPUT]


def attribute(module: fx.GraphModule, path: str) -> Any:
    value: Any = module
    for name in path.split("."):
        value = getattr(value, name)
    return value


def short_name(node: fx.Node, known: Mapping[str, Any]) -> str:
    """The name by which TVM knows an operator: "conv2d.default"."""
    name = getattr(node.target, "__name__", "")
    return name if name in known else out_of_place(name)


def out_of_place(name: str) -> str:
    """The out-of-place form of an operator: "aten.relu.default" for "aten.relu_.default"."""
    return name.replace("_.", ".")


def with_effects(graph: fx.Graph) -> str:
    """The operators that PyTorch keeps in order by tokens, by name."""
    nodes = [node for node in graph.nodes if getattr(node.target, "__name__", "") == "with_effects"]
    return ", ".join(dict.fromkeys(str(node.args[1]) for node in nodes))


def refuse_training(program: Any, source: str) -> None:
    """Raises UnsupportedOperatorError for batch normalizations that learn from the statistics of each batch."""
    for node in program.graph.nodes:
        name = target_name(node).removeprefix("aten.").split(".")[0]
        if node.op != "call_function" or name not in _NORMALIZATIONS or "no_stats" in str(node.target):
            continue
        arguments = bound_arguments(node)
        if arguments[_TRAINING] is True and arguments[_MEAN] is not None:
            raise UnsupportedOperatorError(
                f"{source}: node '{node.name}' ({node.target}) is in training mode and would go on learning from each "
                "input; export the model in eval mode"
            )
