"""Reduces a program to operators that have converters, and to values that are never changed in place.

Operators that neither this frontend nor TVM converts are decomposed by PyTorch into ones they do, and no others: linear
layers and attention stay whole. In-place operators are harmless where nothing else sees the memory they write to:
tracing passes their result to every later use of the variable, so `relu_` is `relu`. Where a view of the same memory is
read later, the program is made functional.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from ....errors import ModelFormatError, QnnError, UnsupportedOperatorError
from .decompositions import OWN

_FAILED = re.compile(r"While executing %(?P<name>\S+) : .*?call_function\[target=(?:torch\.ops\.)?(?P<target>[^\]]+)\]")
_ROUNDS = 4  # a decomposition may itself contain operators that must be decomposed


def prepared(
    program: torch.export.ExportedProgram, source: str, is_supported: Callable[[fx.Node], bool]
) -> torch.export.ExportedProgram:
    """The program itself wherever possible, else its functional form with what is not supported decomposed."""
    for _ in range(_ROUNDS):
        table = _decompositions(program.graph_module, is_supported)
        if not table and not _has_visible_mutation(program.graph):
            return program
        try:
            program = program.run_decompositions(table)
        except Exception as error:
            raise _refusal(source, table, error) from error
    return program


def _refusal(source: str, table: Mapping[Any, Any], error: Exception) -> QnnError:
    """PyTorch runs the whole program to decompose a part of it, and so also finds damaged operands of other nodes."""
    text = Exception.__str__(error)  # QnnError has no lines
    reason = (text.strip().splitlines() or [type(error).__name__])[0]
    what = ", ".join(map(str, table)) or "operators that write to memory read through a view"
    failed = _FAILED.search(text)
    if isinstance(error, UnsupportedOperatorError):
        node = f"node '{failed['name']}' ({failed['target']}): " if failed is not None else ""
        return UnsupportedOperatorError(f"{source}: {node}{reason}")
    if failed is not None and failed["target"] not in what:
        return ModelFormatError(
            f"{source}: node '{failed['name']}' ({failed['target']}): PyTorch cannot run it: {reason}; its operands "
            "are damaged: export the model again"
        )
    return UnsupportedOperatorError(
        f"{source}: PyTorch cannot decompose {what} ({reason}); export the model without them"
    )


def _decompositions(module: fx.GraphModule, is_supported: Callable[[fx.Node], bool]) -> dict[Any, Any]:
    """Operator -> PyTorch's decomposition, for those without a converter, in the graphs of branches and loops too."""
    nodes = [node for part in module.modules() if isinstance(part, fx.GraphModule) for node in part.graph.nodes]
    missing = {node.target for node in nodes if node.op == "call_function" and not is_supported(node)}
    operators = [target for target in missing if isinstance(target, torch._ops.OpOverload)]
    if not operators:
        return {}
    known = {**torch.export.default_decompositions(), **OWN}
    composite = {target: target.decompose for target in operators if target._can_decompose()}
    return {**composite, **{target: known[target] for target in operators if target in known}}


def is_mutable(node: fx.Node) -> bool:
    """Whether the operator writes to an argument."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _has_visible_mutation(graph: fx.Graph) -> bool:
    position = {node: index for index, node in enumerate(graph.nodes)}
    owner: dict[fx.Node, fx.Node] = {}  # node -> the node whose memory it shares
    sharing: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        base = _aliased(node)
        owner[node] = owner[base] if base is not None else node
        sharing.setdefault(owner[node], []).append(node)
    for node in graph.nodes:
        if node.op != "call_function" or not is_mutable(node):
            continue
        root = owner[node.args[0]] if isinstance(node.args[0], fx.Node) else node
        if root.op == "placeholder":
            return True
        if any(
            position[user] > position[node]
            for alias in sharing[root]
            if position[alias] < position[node]
            for user in alias.users
            if user is not node
        ):
            return True
    return False


def _aliased(node: fx.Node) -> Any:
    """The argument whose memory the result may share, None for a new one."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if not isinstance(node.target, torch._ops.OpOverload):
        return node.args[0] if getattr(node.target, "__name__", "") == "getitem" else None
    shares = any(result.alias_info is not None for result in node.target._schema.returns)
    maybe = node.target.__name__.split(".")[0] in (
        "reshape",
        "contiguous",
        "flatten",
        "to",
        "dropout",
        "chunk",
        "split",
    )
    return node.args[0] if shares or maybe else None
