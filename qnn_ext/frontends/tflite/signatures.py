"""Signatures: several entry points of a .tflite file, such as a language model's for a prompt and for single tokens.
They share its weights and variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import ModelFormatError, QnnError
from .reader import Model, Signature, Subgraph, Tensor


def with_main(model: Model, signature: str | None) -> Model:
    """The model with a signature's subgraph as the main one, its inputs and outputs named as the signature does. Raises
    QnnError if there is none of this name, ModelFormatError if it names tensors that are neither."""
    if signature is None:
        return model
    known = {entry.signature_key: entry for entry in model.signatures}
    if signature not in known:
        found = ", ".join(map(repr, known)) or "none"
        raise QnnError(f"the model has no signature {signature!r}; it has {found}")
    entry = known[signature]
    check_signature(entry, model.subgraphs[entry.subgraph_index])
    graph = _named(model.subgraphs[entry.subgraph_index], entry.inputs, entry.outputs)
    subgraphs = tuple(graph if one.index == graph.index else one for one in model.subgraphs)
    return replace(model, subgraphs=subgraphs, main=graph.index, variables=_variables(model))


def check_signature(entry: Signature, graph: Subgraph) -> None:
    """Raise ModelFormatError unless it names inputs and outputs of its subgraph."""
    for kind, names, ports in (("inputs", entry.inputs, graph.inputs), ("outputs", entry.outputs, graph.outputs)):
        for name, tensor in names.items():
            if tensor not in ports:
                raise ModelFormatError(
                    f"signature '{entry.signature_key}': '{name}' is tensor {tensor}, which is not one of the "
                    f"subgraph's {kind}; import the subgraph by the names of its tensors, without a signature"
                )


def _named(graph: Subgraph, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Subgraph:
    """The subgraph with other names of its inputs and outputs; a tensor that is both has the name of the input."""
    names = {index: name for ports in (outputs, inputs) for name, index in ports.items()}
    tensors = tuple(
        replace(tensor, name=names[tensor.index]) if tensor.index in names else tensor for tensor in graph.tensors
    )
    return replace(graph, tensors=tensors)


def variable_name(options: Mapping[str, Any]) -> str:
    """The variable that a VAR_HANDLE with these options stands for."""
    return "/".join(part for part in (options["container"], options["shared_name"]) if part) or "variable"


def _variables(model: Model) -> dict[str, Tensor]:
    """The variables that the signatures' own subgraphs assign or read, those of the first signature first."""
    found: dict[str, Tensor] = {}
    for index in dict.fromkeys(entry.subgraph_index for entry in model.signatures):
        graph = model.subgraphs[index]
        handles: dict[int, str] = {}
        for operator in graph.operators:
            if operator.name == "VAR_HANDLE" and operator.outputs:
                handles[operator.outputs[0]] = variable_name(operator.options)
            name = handles.get(operator.inputs[0]) if operator.inputs else None
            value = {"ASSIGN_VARIABLE": operator.inputs[1:], "READ_VARIABLE": operator.outputs}.get(operator.name)
            if name is not None and value:
                found.setdefault(name, graph.tensors[value[0]])
    return found
