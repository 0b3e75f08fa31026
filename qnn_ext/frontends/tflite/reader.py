"""Reads a .tflite file into plain frozen values: subgraphs, tensors with QParams and constant data, operators.

The file is not trusted. What is returned is consistent: indices are in range, constants have as many bytes as their
shape requires, operators come in an executable order. Not here: what an operator computes, or which ones are supported.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import ModelFormatError, QnnError
from ...files.reading import read_bytes
from .compression import DECODE, decoded
from .flatbuffer import FlatFile, numbers, text
from .options import enum_name, read_options, require_schema
from .tensors import Tensor, read_buffer, read_tensor

__all__ = ["Model", "Operator", "Signature", "Subgraph", "Tensor", "read_model"]

_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator. `inputs` and `intermediates` are tensor indices of the subgraph, -1 for an absent optional one.

    options: every field of the schema's options table by its snake_case name, defaults filled in; enums by name
    (padding "SAME"), types as dtype names, vectors as tuples. {} for custom operators: they have `custom_options`.
    """

    index: int
    name: str
    custom: bool
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...]
    options: dict[str, Any]
    custom_options: bytes
    output_name: str = ""

    def label(self) -> str:
        """How messages refer to this operator: CONV_2D #12 (output 'MobilenetV1/Conv2d_0/Relu6')."""
        return f"{self.name} #{self.index} (output '{self.output_name}')"


@dataclass(frozen=True, eq=False)
class Subgraph:
    """Tensors and the operators on them, in an executable order."""

    index: int
    name: str
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Signature:
    """A named entry point: names of some inputs and outputs (tensor indices) of a subgraph. Files exist, of
    ai-edge-quantizer, whose signatures name others of its tensors."""

    signature_key: str
    inputs: dict[str, int]
    outputs: dict[str, int]
    subgraph_index: int


@dataclass(frozen=True, eq=False)
class Model:
    """A whole file.

    main:      the subgraph that a model is made of
    variables: those that all signatures share, by name, as tensors that are assigned to them or read from them
    """

    version: int
    description: str
    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[Signature, ...]
    main: int = 0
    variables: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class _OperatorCode:
    code: int
    custom_code: str
    version: int


def read_model(source: str | os.PathLike | bytes) -> Model:
    """Read a .tflite file given by path, or its bytes. Constants are read-only views of those bytes.

    Raises ModelFormatError when the source is missing, not a TFLite file, truncated or corrupt;
    UnsupportedOperatorError when it needs a newer schema or an unknown dtype; QnnError when the schema package is
    missing; LimitError when a sparse tensor is too big.
    """
    schema = require_schema()
    where = "the model given as bytes" if isinstance(source, (bytes, bytearray, memoryview)) else os.fspath(source)
    data = _load(source)
    try:
        if len(data) < 8 or data[4:8] != _IDENTIFIER:
            found = "it is empty" if not data else f"the identifier {_IDENTIFIER.decode()} is missing"
            raise ModelFormatError(f"not a TFLite model: {found}")
        file = FlatFile(data)
        return _read_model(file, file.root(schema.Model))
    except QnnError as error:
        raise type(error)(f"{where}: {error}") from error


def _load(source: str | os.PathLike | bytes) -> bytes:
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source)
    return read_bytes(source, ModelFormatError)


def _read_model(file: FlatFile, root: Any) -> Model:
    if root.Version() != _SCHEMA_VERSION:
        raise ModelFormatError(f"schema version must be {_SCHEMA_VERSION}, found {root.Version()}")
    codes = [_read_code(table) for table in file.tables(root, "OperatorCodes")]
    buffers = [read_buffer(file, table) for table in file.tables(root, "Buffers")]
    subgraphs = tuple(
        _in(f"subgraph {i}", _read_subgraph, file, i, table, codes, buffers)
        for i, table in enumerate(file.tables(root, "Subgraphs"))
    )
    if not subgraphs:
        raise ModelFormatError("the file holds no subgraph")
    counts = [len(graph.tensors) for graph in subgraphs]
    signatures = tuple(_read_signature(file, table, counts) for table in file.tables(root, "SignatureDefs"))
    return Model(root.Version(), text(root.Description()), subgraphs, signatures)


def _in(place: str, function: Any, *args: Any) -> Any:
    """Call `function`; our errors are prefixed with `place`."""
    try:
        return function(*args)
    except QnnError as error:
        raise type(error)(f"{place}: {error}") from error


def _read_code(table: Any) -> _OperatorCode:
    # Codes above 127 live in the newer field, while the older one holds a placeholder; readers take the larger value.
    # Some tools, such as ai-edge-quantizer, fill the newer field alone; for small codes the schema package's
    # BuiltinCode() ignores it.
    code = max(table.BuiltinCode(), table.DeprecatedBuiltinCode(), _newer_code(table))
    return _OperatorCode(code, text(table.CustomCode()), table.Version())


def _newer_code(table: Any) -> int:
    """The field builtin_code as it is stored, 0 where it is absent."""
    from flatbuffers.number_types import Int32Flags  # installed with the schema package

    offset = table._tab.Offset(10)
    return int(table._tab.Get(Int32Flags, offset + table._tab.Pos)) if offset else 0


def _read_subgraph(file: FlatFile, index: int, table: Any, codes: list[_OperatorCode], buffers: list) -> Subgraph:
    inputs, outputs = numbers(file, table, "Inputs"), numbers(file, table, "Outputs")
    raw_operators = list(file.tables(table, "Operators"))
    written = {i for operator in raw_operators for i in numbers(file, operator, "Outputs")}
    readers = [operator for operator in raw_operators if not _decodes(operator, codes)]
    used = {*inputs, *outputs, *written} | {i for op in readers for i in numbers(file, op, "Inputs")}
    computed = {*inputs, *written}
    tensors = tuple(
        read_tensor(file, raw, i, buffers, used=i in used, computed=i in computed)
        for i, raw in enumerate(file.tables(table, "Tensors"))
    )
    _check_indices("graph inputs", inputs, tensors)
    _check_indices("graph outputs", outputs, tensors)
    operators = tuple(_read_operator(file, raw, i, codes, tensors) for i, raw in enumerate(raw_operators))
    tensors, operators = decoded(tensors, operators)
    subgraph = Subgraph(index, text(table.Name()), tensors, operators, inputs, outputs)
    _check_order(subgraph)
    return subgraph


def _decodes(table: Any, codes: list[_OperatorCode]) -> bool:
    """Whether an operator decodes constants, whose quantization in the file is that of their values."""
    return 0 <= table.OpcodeIndex() < len(codes) and codes[table.OpcodeIndex()].custom_code == DECODE


def _read_operator(
    file: FlatFile, table: Any, index: int, codes: list[_OperatorCode], tensors: tuple[Tensor, ...]
) -> Operator:
    if not 0 <= table.OpcodeIndex() < len(codes):
        raise ModelFormatError(
            f"operator {index} has code index {table.OpcodeIndex()}, but there are {len(codes)} codes"
        )
    code = codes[table.OpcodeIndex()]
    name = _in(f"operator {index}", enum_name, "BuiltinOperator", code.code)
    custom = name == "CUSTOM"
    inputs, outputs, intermediates = (numbers(file, table, f) for f in ("Inputs", "Outputs", "Intermediates"))
    place = f"{name} #{index}"
    _check_indices(f"{place} inputs", inputs, tensors, optional=True)
    _check_indices(f"{place} outputs", outputs, tensors)
    _check_indices(f"{place} intermediates", intermediates, tensors, optional=True)
    if code.version < 0 or (custom and not code.custom_code):
        raise ModelFormatError(
            f"{place}: invalid operator code: version {code.version}, custom name '{code.custom_code}'"
        )
    return Operator(
        index=index,
        name=code.custom_code if custom else name,
        custom=custom,
        version=code.version,
        inputs=inputs,
        outputs=outputs,
        intermediates=intermediates,
        options={} if custom else _in(place, read_options, file, table, name),
        custom_options=_custom_options(file, table),
        output_name=tensors[outputs[0]].name if outputs else "",
    )


def _custom_options(file: FlatFile, table: Any) -> bytes:
    # Files over 2 GB store the data after the end of the flatbuffer; offsets 0 and 1 mean "none".
    start, size = table.LargeCustomOptionsOffset(), table.LargeCustomOptionsSize()
    if start > 1:
        file.check(start, size)
        file.charge(size)
        return file.data[start : start + size]
    size = table.CustomOptionsLength()
    file.charge(size)
    return table.CustomOptionsAsNumpy().tobytes() if size else b""


def _check_indices(what: str, indices: Iterable[int], tensors: tuple[Tensor, ...], optional: bool = False) -> None:
    for index in indices:
        if not (0 <= index < len(tensors) or (optional and index == -1)):
            raise ModelFormatError(f"{what}: tensor index {index} is out of range: there are {len(tensors)} tensors")


def _check_order(subgraph: Subgraph) -> None:
    """Each tensor must be assigned exactly once, before it is read. A variable has a value from the start; it may be
    that of a float16 constant."""
    ready = {t.index for t in subgraph.tensors if t.is_constant or t.is_variable}
    started = {index for operator in subgraph.operators for index in _started_variables(operator, subgraph.tensors)}
    ready -= started

    def define(indices: tuple[int, ...], what: str) -> None:
        for index in indices:
            if index in ready:
                raise ModelFormatError(f"{what} writes {subgraph.tensors[index].label()}, which already has a value")
            ready.add(index)

    def demand(indices: tuple[int, ...], what: str) -> None:
        for index in indices:
            if index >= 0 and index not in ready:
                raise ModelFormatError(f"{what} reads {subgraph.tensors[index].label()} before it has a value")

    define(subgraph.inputs, "the graph input")
    for operator in subgraph.operators:
        demand(operator.inputs, operator.label())
        define(operator.outputs, operator.label())
    demand(subgraph.outputs, "the graph output")


def _started_variables(operator: Operator, tensors: tuple[Tensor, ...]) -> list[int]:
    """The variables that an operator gives their first values, which a model with float16 weights stores as such."""
    constants = all(index >= 0 and tensors[index].is_constant for index in operator.inputs)
    if operator.name != "DEQUANTIZE" or not constants:
        return []
    return [index for index in operator.outputs if tensors[index].is_variable]


def _read_signature(file: FlatFile, table: Any, counts: list[int]) -> Signature:
    """counts: the number of tensors of each subgraph."""
    key, index = text(table.SignatureKey()), table.SubgraphIndex()
    if not 0 <= index < len(counts):
        raise ModelFormatError(f"signature '{key}' refers to subgraph {index}, but there are {len(counts)}")
    inputs, outputs = (_signature_names(file, table, field, key, counts[index]) for field in ("Inputs", "Outputs"))
    return Signature(key, inputs, outputs, index)


def _signature_names(file: FlatFile, table: Any, field: str, key: str, count: int) -> dict[str, int]:
    names = {text(entry.Name()): entry.TensorIndex() for entry in file.tables(table, field)}
    for name, tensor in names.items():
        if not 0 <= tensor < count:
            raise ModelFormatError(f"signature '{key}': '{name}' is tensor {tensor}, but there are {count}")
    return names
