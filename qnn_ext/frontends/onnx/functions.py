"""Functions in place of the nodes that call them: a model's own, and those by which ONNX defines operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ...errors import ModelFormatError, UnsupportedOperatorError
from ...limits import check
from .registry import MICROSOFT

_DEFINITIONS = "ai.onnx.definition"
# Operators of com.microsoft that became ONNX's: the version of its operator set
_ADOPTED = {"CausalConvWithState": 27, "LinearAttention": 27}
# … and attributes that ONNX's do not have, which must then have these values; all others 0
_PLAIN = {"ndim": 1, "dilation": 1}


def inlined(proto: Any) -> Any:
    """The ModelProto without functions. Raises LimitError where that would be too large, ModelFormatError."""
    from onnx import inliner

    if not proto.functions:
        return proto
    _check_size(proto)
    try:
        return inliner.inline_local_functions(_with_defaults(proto))
    except Exception as error:
        raise ModelFormatError(f"the model's own functions cannot be inlined: {error}") from error


def _with_defaults(proto: Any) -> Any:
    """The model with each call giving all attributes of its function: ONNX's inliner leaves out defaults."""
    if not any(function.attribute_proto for function in proto.functions):
        return proto
    copy = type(proto)()
    copy.CopyFrom(proto)
    defaults = {_called(function.domain, function.name, function): function for function in copy.functions}
    for nodes in (copy.graph.node, *(function.node for function in copy.functions)):
        for node in every(nodes):
            function = defaults.get(_called(node.domain, node.op_type, node))
            given = {attribute.name for attribute in node.attribute}
            if function is not None:
                node.attribute.extend(value for value in function.attribute_proto if value.name not in given)
    return copy


def _called(domain: str, name: str, proto: Any) -> tuple[str, str, str]:
    """What tells functions apart."""
    return domain, name, getattr(proto, "overload", "")


def _check_size(proto: Any) -> None:
    """Raises LimitError when inlining nested functions would produce too many nodes or too many bytes: every call
    copies their weights."""
    functions = {(function.domain, function.name): function for function in proto.functions}
    sizes: dict[Any, int] = {}  # nodes of a function including all it calls; 0 while being counted
    weights: dict[Any, int] = {}  # likewise its bytes
    pending: list[Any] = [*functions]
    while pending:
        name = pending[-1]
        nodes = [node for node in every(functions[name].node)]
        calls = [(node.domain, node.op_type) for node in nodes if (node.domain, node.op_type) in functions]
        missing = [called for called in calls if called not in sizes]
        if missing and name not in sizes:
            sizes[name] = 0
            pending += dict.fromkeys(missing)
            continue
        pending.pop()
        sizes[name] = min(len(nodes) + sum(sizes.get(called, 0) for called in calls), 1 << 60)
        weights[name] = min(functions[name].ByteSize() + sum(weights.get(called, 0) for called in calls), 1 << 60)
    main = [(node.domain, node.op_type) for node in every(proto.graph.node)]
    check("expressions", len(main) + sum(sizes.get(called, 0) for called in main), "the model with its functions")
    check("memory", sum(weights.get(called, 0) for called in main), "the model with its functions")


def definition(node: Any, version: int, inputs: Mapping[str, tuple[str, tuple[int, ...]]]) -> tuple[Any, int] | None:
    """The GraphProto by which ONNX defines the operator of a NodeProto, and the version of ONNX's operator set in which
    it is written; None where there is none.

    version: of the operator's set
    inputs:  name of an input -> dtype and shape
    """
    from onnx import FunctionProto, TypeProto, defs, helper

    if node.domain == MICROSOFT:
        version = _ADOPTED.get(node.op_type, 0)
    elif node.domain not in ("", "ai.onnx"):
        return None
    if not version or not defs.has(node.op_type, version, ""):
        return None
    schema: Any = defs.get_schema(node.op_type, version, "")
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if attribute.name not in schema.attributes and value != _PLAIN.get(attribute.name, 0):
            raise UnsupportedOperatorError(f"not supported: the attribute {attribute.name}")
    written_for = max((known for known in schema.all_function_opset_versions if known <= version), default=0)
    if not written_for:
        return None
    types = {
        name: helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
        for name, (dtype, shape) in inputs.items()
    }
    try:
        if schema.has_function:
            content = schema.get_function_with_opset_version(written_for)
        else:
            given = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
            content = schema.get_context_dependent_function_with_opset_version(
                written_for, node.SerializeToString(), given
            )
        function = FunctionProto.FromString(content)
    except Exception as error:
        raise ModelFormatError(f"its definition does not fit its inputs or attributes: {error}") from error
    opsets = [helper.make_opsetid("", written_for), helper.make_opsetid(_DEFINITIONS, 1)]
    function.domain = _DEFINITIONS
    del function.opset_import[:]
    function.opset_import.extend(opsets)
    function.attribute_proto.extend(
        known.default_value for known in schema.attributes.values() if known.default_value.name
    )
    call = type(node).FromString(node.SerializeToString())
    call.domain = _DEFINITIONS
    del call.attribute[:]
    call.attribute.extend(attribute for attribute in node.attribute if attribute.name in schema.attributes)
    graph = helper.make_graph(
        [call],
        node.op_type,
        [helper.make_value_info(name, kind) for name, kind in types.items()],
        [helper.make_empty_tensor_value_info(name) for name in node.output if name],
    )
    return inlined(helper.make_model(graph, opset_imports=opsets, functions=[function])).graph, written_for


def every(nodes: Iterable[Any]) -> Iterator[Any]:
    """The nodes, including those of their subgraphs."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from every(attribute.g.node)
