"""Reads an ONNX model into plain frozen values: inputs, outputs, operators in order, constants in their own dtypes.

The file is not trusted. Not here: what an operator computes, or which ones are supported.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ModelFormatError, QnnError, UnsupportedOperatorError
from ...files.reading import read_bytes
from .external import ExternalData
from .functions import inlined
from .tensors import DTYPES, HELD_AS, dtype_name, read_sparse, read_tensor

_LOWEST_IR_VERSION = 3
_FIRST_WITH_OVERRIDABLE = 4  # before, initializers had to be inputs

Shape = tuple[int | str | None, ...]


@dataclass(frozen=True, eq=False)
class Operator:
    """One node. Inputs and outputs are value names, "" for an absent optional one; attributes are plain Python."""

    index: int
    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    proto: Any

    def label(self) -> str:
        """How messages refer to this node: QLinearConv 'conv1' (output 'conv1_out')."""
        kind = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        output = next(filter(None, self.outputs), "")
        return f"{kind} {self.name!r} (output {output!r})" if self.name else f"{kind} #{self.index} (output {output!r})"


@dataclass(frozen=True)
class Value:
    """A graph input or output as declared: dimensions are ints, names, or None; `shape` None when not declared."""

    name: str
    dtype: str
    shape: Shape | None


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Constants and nodes of a graph, in file order, and the names of its inputs and outputs."""

    operators: tuple[Operator, ...]
    constants: dict[str, np.ndarray]
    narrow_dtypes: dict[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """A whole model; constants: name -> array, of another dtype where NumPy does not have theirs: `narrow_dtypes`.

    overridable: constants that are also inputs, with their values as the default. To ONNX Runtime they are not constant
    declared: the shapes that the file gives for inputs and for values in between
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    operators: tuple[Operator, ...]
    constants: dict[str, np.ndarray]
    narrow_dtypes: dict[str, str]
    opsets: dict[str, int]
    external: ExternalData | None
    overridable: frozenset[str] = frozenset()
    declared: dict[str, Shape] = field(default_factory=dict)

    def opset(self, domain: str) -> int:
        """Version of a domain's operator set that the model imports; 1 when it imports none."""
        return self.opsets.get(domain, 1)

    def declared_shape(self, name: str) -> Shape:
        """The shape that the file gives for a value, () for none."""
        return self.constants[name].shape if name in self.constants else self.declared.get(name, ())

    def equal_numbers(self, number: np.ndarray) -> list[str]:
        """The names of constant scalars with the bits of this one."""
        return self._numbers.get((number.dtype, number.tobytes()), [])

    @cached_property
    def _numbers(self) -> dict[tuple[np.dtype, bytes], list[str]]:
        found = defaultdict[tuple[np.dtype, bytes], list[str]](list)
        for name, array in self.constants.items():
            if array.ndim == 0:
                found[array.dtype, array.tobytes()].append(name)
        return found


def require_onnx() -> Any:
    """The onnx package. Raises QnnError with the pip command when it is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise QnnError("reading ONNX models needs the onnx package: pip install 'qnn-ext[onnx]'") from error
    return onnx


def read_model(source: str | os.PathLike | bytes | Any) -> Model:
    """The model from a file, from bytes, or from an onnx.ModelProto.

    Raises ModelFormatError when it is not a model or contradicts itself, QnnError when the onnx package is missing.
    """
    onnx = require_onnx()
    external = None
    if isinstance(source, onnx.ModelProto):
        proto = source
    elif isinstance(source, (bytes, bytearray, memoryview)):
        proto = _parse(onnx, bytes(source), "the model")
    else:
        path = Path(source)
        proto = _parse(onnx, read_bytes(path, ModelFormatError), str(path))
        external = ExternalData(path)
    return _read(onnx, proto, external)


def _parse(onnx: Any, content: bytes, where: str) -> Any:
    from google.protobuf.message import DecodeError

    if not content:
        raise ModelFormatError(f"{where} is empty")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except (DecodeError, ValueError, RuntimeError) as error:
        raise ModelFormatError(f"{where} is not an ONNX model, or is damaged: {error}") from error
    return proto


def _read(onnx: Any, proto: Any, external: ExternalData | None) -> Model:
    if proto.ir_version < _LOWEST_IR_VERSION or not proto.opset_import:
        raise ModelFormatError(
            f"this is not an ONNX model, or is older than ONNX 1.1: IR version {proto.ir_version}, "
            f"{len(proto.opset_import)} operator sets"
        )
    opsets = {domain_name(entry.domain): int(entry.version) for entry in proto.opset_import}
    for domain, version in opsets.items():
        if version < 1:  # there are no operator schemas for these versions to check inputs against
            raise ModelFormatError(
                f"the operator set of domain {domain or 'ai.onnx'} has the invalid version {version}"
            )
    graph = inlined(proto).graph
    _check_names([value.name for value in (*graph.input, *graph.output)])
    body = read_subgraph(graph, external)
    overridable = body.constants.keys() & body.inputs if proto.ir_version >= _FIRST_WITH_OVERRIDABLE else ()
    return Model(
        inputs=tuple(_read_value(value) for value in graph.input if value.name not in body.constants),
        outputs=tuple(_read_value(value) for value in graph.output),
        operators=body.operators,
        constants=body.constants,
        narrow_dtypes=body.narrow_dtypes,
        opsets=opsets,
        external=external,
        overridable=frozenset(overridable),
        declared={
            value.name: _shape(value.type.tensor_type)
            for value in (*graph.input, *graph.value_info)
            if value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
        },
    )


def read_subgraph(graph: Any, external: ExternalData | None) -> Subgraph:
    """Constants and nodes of a GraphProto."""
    _check_names([tensor.name for tensor in (*graph.initializer, *(s.values for s in graph.sparse_initializer))])
    constants = {tensor.name: read_tensor(tensor, external) for tensor in graph.initializer}
    constants |= {sparse.values.name: read_sparse(sparse, external) for sparse in graph.sparse_initializer}
    return Subgraph(
        operators=tuple(_read_operator(node, index, external) for index, node in enumerate(graph.node)),
        constants=constants,
        narrow_dtypes={t.name: name for t in graph.initializer if (name := dtype_name(t.data_type)) in HELD_AS},
        inputs=tuple(value.name for value in graph.input),
        outputs=tuple(value.name for value in graph.output),
    )


def domain_name(domain: str) -> str:
    """A domain's name, "" for ONNX's own, which goes by two names."""
    return "" if domain == "ai.onnx" else domain


def _check_names(names: Iterable[Any]) -> None:
    """Protobuf returns names that are not valid UTF-8 as bytes."""
    for name in names:
        if not isinstance(name, str):
            raise ModelFormatError(f"the name {name!r} is not valid UTF-8: the file is damaged")


def _read_operator(node: Any, index: int, external: ExternalData | None) -> Operator:
    names = [node.name, node.op_type, node.domain, *node.input, *node.output]
    _check_names([*names, *(attribute.name for attribute in node.attribute)])
    operator = Operator(
        index=index,
        name=node.name,
        op_type=node.op_type,
        domain=domain_name(node.domain),
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        attributes={},
        proto=node,
    )
    for attribute in node.attribute:
        try:
            operator.attributes[attribute.name] = _read_attribute(attribute, external)
        except QnnError as error:
            raise type(error)(f"{operator.label()}: attribute {attribute.name!r}: {error}") from error
    return operator


def _read_attribute(attribute: Any, external: ExternalData | None) -> Any:
    """Plain Python values; a graph stays a GraphProto."""
    kind = attribute.type
    readers = {
        1: lambda: float(attribute.f),
        2: lambda: int(attribute.i),
        3: lambda: _text(attribute.s),
        4: lambda: read_tensor(attribute.t, external),
        5: lambda: attribute.g,
        6: lambda: [float(value) for value in attribute.floats],
        7: lambda: [int(value) for value in attribute.ints],
        8: lambda: [_text(value) for value in attribute.strings],
        9: lambda: [read_tensor(value, external) for value in attribute.tensors],
        11: lambda: read_sparse(attribute.sparse_tensor, external),
    }
    if kind not in readers:
        raise UnsupportedOperatorError(f"attributes of kind {kind} are not supported")
    return readers[kind]()


def _text(value: bytes) -> str:
    return value.decode("utf-8", errors="replace")


def _read_value(value: Any) -> Value:
    """An output may have no type: whoever looks into a model adds the names of its values to its outputs."""
    if value.type.WhichOneof("value") is None:
        return Value(value.name, "", None)
    if not value.type.HasField("tensor_type"):
        raise UnsupportedOperatorError(
            f"'{value.name}' is not a tensor; sequences, maps and optionals are not supported: export the model "
            "without, as with zipmap=False by skl2onnx"
        )
    tensor = value.type.tensor_type
    if tensor.elem_type not in DTYPES:
        try:
            dtype_name(tensor.elem_type)
        except UnsupportedOperatorError as error:
            raise UnsupportedOperatorError(f"'{value.name}': {error}") from None
    return Value(value.name, dtype_name(tensor.elem_type), _shape(tensor) if tensor.HasField("shape") else None)


def _shape(tensor: Any) -> Shape:
    return tuple(_dimension(dim) for dim in tensor.shape.dim)


def _dimension(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    _check_names([dim.dim_param])
    return dim.dim_param or None


def check_inputs(operator: Operator, version: int) -> None:
    """Raise ModelFormatError unless the node has the inputs that its operator's schema requires. Operators without a
    schema in the onnx package pass."""
    from onnx import defs

    try:
        schema = defs.get_schema(operator.op_type, version, operator.domain)
    except defs.SchemaError:
        return
    kinds = defs.OpSchema.FormalParameterOption
    for index, parameter in enumerate(schema.inputs):
        given = operator.inputs[index : index + 1]
        if parameter.option == kinds.Variadic:
            given = operator.inputs[index:] or ("",) * (schema.min_input > index)
        elif parameter.option == kinds.Single:
            given = given or ("",)
        else:
            continue
        if "" in given:
            raise ModelFormatError(f"input {index} ('{parameter.name}') is missing")
    if len(operator.inputs) > schema.max_input:
        raise ModelFormatError(
            f"has {len(operator.inputs)} inputs, but {operator.op_type} takes at most {schema.max_input}"
        )


def check_kinds(operator: Operator, dtypes: Sequence[str]) -> None:
    """Raise ModelFormatError where an input is boolean, integer or float and the operator accepts no dtype of that
    kind, at any width and in any version.

    dtypes: dtypes of the inputs, "" for an absent one
    """
    taken = _kinds_taken(operator.op_type, operator.domain)
    for index, (dtype, (name, kinds)) in enumerate(zip(dtypes, taken, strict=False)):
        if dtype and kinds and _kind(dtype) not in kinds:
            raise ModelFormatError(
                f"input {index} ('{name}') is {dtype}, but {operator.op_type} takes {' or '.join(kinds)} there"
            )


@lru_cache(maxsize=1024)
def _kinds_taken(op_type: str, domain: str) -> list[tuple[str, list[str]]]:
    """For each input, from the operator's newest schema: its name and the kinds of tensor it may be."""
    from onnx import defs

    if not defs.has(op_type, domain):
        return []
    return [
        (parameter.name, sorted({_kind(found.group(1)) for found in map(_TENSOR.fullmatch, parameter.types) if found}))
        for parameter in defs.get_schema(op_type, domain).inputs
    ]


_TENSOR = re.compile(r"tensor\((\w+)\)")


def _kind(dtype: str) -> str:
    """The kind of a dtype, by its name in NumPy or ONNX."""
    if dtype == "bool":
        return "bool"
    if dtype.startswith(("int", "uint")):
        return "integers"
    return "floats" if dtype.startswith(("float", "bfloat", "double")) else dtype


def copies(operator: Operator, dtype: str) -> bool:
    """Whether an operator leaves tensors of a dtype as they are."""
    target = operator.attributes.get("to") if operator.op_type == "Cast" else None
    casts = isinstance(target, int) and target in DTYPES and np.dtype(DTYPES[target]).name == dtype
    return not operator.domain and (casts or operator.op_type == "Identity")


def values_written(operator: Operator) -> Iterator[str]:
    """The values that an operator computes."""
    return filter(None, operator.outputs)


def values_read(operator: Operator) -> Iterator[str]:
    """The values that an operator reads, and those from outside that graphs of its own do."""
    yield from operator.inputs
    for value in operator.attributes.values():
        if hasattr(value, "node"):
            yield from _values_from_outside(value)


def _values_from_outside(graph: Any) -> set[str]:
    """The values that a graph reads and does not define."""
    read = {output.name for output in graph.output}
    for node in graph.node:
        read.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                read |= _values_from_outside(attribute.g)
    own = {value.name for value in (*graph.input, *graph.initializer)}
    return read - own.union(*(node.output for node in graph.node))
