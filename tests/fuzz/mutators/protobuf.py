"""Damage to ONNX models through onnx's own message classes: the result is a valid protobuf that makes no sense."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from . import values
from .flatbuffer import changed_constant

_INTEGERS = {
    "int32": 32, "int64": 64, "uint32": 32, "uint64": 64, "enum": 31,
}  # fmt: skip
_KINDS = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 11: "message",
          12: "bytes", 13: "uint32", 14: "enum"}  # fmt: skip


@cache
def _operators() -> list[tuple[str, str]]:
    """(domain, name) of all operators that qnn_ext or onnx knows."""
    from qnn_ext.frontends.onnx import registry

    return sorted({(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas()} | set(registry.CONVERTERS))


def change_message(data: bytes, chance: random.Random) -> bytes:
    """Another value for a field, present or not, of some message; or messages removed, duplicated, swapped."""
    model = _parsed(data)
    if model is None:
        return data
    messages: dict[str, list[Any]] = {}
    for message in _messages(model):
        messages.setdefault(message.DESCRIPTOR.name, []).append(message)
    for _ in range(chance.choice((1, 1, 1, 2))):
        kind = chance.choice(sorted(messages))
        _change(chance.choice(messages[kind]), messages, chance)
    return _packed(model, data)


def change_constant(data: bytes, chance: random.Random) -> bytes:
    """Changes an element of a tensor, a dimension, or its dtype."""
    model = _parsed(data)
    tensors = [message for message in _messages(model) if message.DESCRIPTOR.name == "TensorProto"] if model else []
    if not tensors:
        return data
    tensor = chance.choice(tensors)
    action = chance.random()
    if action < 0.15:
        tensor.data_type = chance.randrange(26)
    elif action < 0.3 and tensor.dims:
        place = chance.randrange(len(tensor.dims))
        tensor.dims[place] = _within(values.integer(chance, tensor.dims[place]), 64, signed=True)
    elif tensor.raw_data:
        tensor.raw_data = changed_constant(tensor.raw_data, chance)
    else:
        fields = [field for field, _ in tensor.ListFields() if field.name.endswith("_data") and field.is_repeated]
        if fields:
            _change_element(getattr(tensor, (field := chance.choice(fields)).name), field, {}, chance)
    return _packed(model, data)


def change_operator(data: bytes, chance: random.Random) -> bytes:
    """Another operator with the same inputs and attributes, or another input."""
    model = _parsed(data)
    nodes = [message for message in _messages(model) if message.DESCRIPTOR.name == "NodeProto"] if model else []
    if not nodes:
        return data
    node = chance.choice(nodes)
    if chance.random() < 0.5:
        node.domain, node.op_type = chance.choice(_operators())
        if node.domain and node.domain not in {entry.domain for entry in model.opset_import}:
            model.opset_import.add(domain=node.domain, version=1)
    else:
        names = [*(name for other in nodes for name in (*other.input, *other.output)), ""]
        names += [tensor.name for tensor in model.graph.initializer]
        names = sorted({name for name in names if isinstance(name, str)})  # invalid UTF-8 comes back as bytes
        place = chance.randrange(len(node.input) + 1)
        inputs = [name for name in node.input if isinstance(name, str)]
        inputs[place : place + chance.randrange(2)] = [chance.choice(names)][: chance.choice((0, 1, 1))]
        del node.input[:]
        node.input.extend(inputs)
    return _packed(model, data)


def change_opset(data: bytes, chance: random.Random) -> bytes:
    """Changes the operator set's version."""
    model = _parsed(data)
    if model is None or not model.opset_import:
        return data
    chance.choice(model.opset_import).version = chance.choice((0, 1, 6, 7, 9, 10, 11, 12, 13, 18, 21, 23, 1 << 40, -1))
    return _packed(model, data)


def _parsed(data: bytes) -> Any:
    """None where earlier mutations left no valid protobuf."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, ValueError, RuntimeError):
        return None
    return model


def _packed(model: Any, data: bytes) -> bytes:
    try:
        return model.SerializeToString()
    except (ValueError, RuntimeError):  # nested too deeply
        return data


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from _messages(inner)


def _change(message: Any, messages: dict[str, list[Any]], chance: random.Random) -> None:
    fields = sorted(message.DESCRIPTOR.fields, key=lambda field: field.number)
    present = [field for field, _ in message.ListFields()]
    field = chance.choice(present if present and chance.random() < 0.7 else fields)
    if field.is_repeated:
        _change_element(getattr(message, field.name), field, messages, chance)
    elif _KINDS[field.type] == "message":
        same = messages.get(field.message_type.name)
        if chance.random() < 0.4 or not same:
            message.ClearField(field.name)
        else:
            replacement = type(same[0])()
            replacement.CopyFrom(chance.choice(same))
            getattr(message, field.name).CopyFrom(replacement)
    elif chance.random() < 0.1:
        message.ClearField(field.name)
    else:
        _set(message, field, getattr(message, field.name), chance, messages)


def _set(message: Any, field: Any, old: Any, chance: random.Random, messages: dict[str, list[Any]]) -> None:
    try:
        setattr(message, field.name, _value(field, old, chance, messages))
    except (ValueError, UnicodeEncodeError):  # not a value of a closed enum, or invalid UTF-8
        message.ClearField(field.name)


def _change_element(items: Any, field: Any, messages: dict[str, list[Any]], chance: random.Random) -> None:
    action = chance.choice(("change", "change", "remove", "double", "swap"))
    is_message = _KINDS[field.type] == "message"
    if not len(items):
        if not is_message:
            items.append(_value(field, _zero(field), chance, messages))
        return
    place, other = chance.randrange(len(items)), chance.randrange(len(items))
    no_text = _KINDS[field.type] == "string" and bytes in (type(items[place]), type(items[other]))
    if action == "remove" or no_text:  # invalid UTF-8 comes back as bytes, and cannot be set again
        del items[place]
    elif action == "double":
        items.append(items[place])
    elif is_message:
        replacement = type(items[place])()
        replacement.CopyFrom(items[place])
        items[place].CopyFrom(items[other])
        items[other].CopyFrom(replacement)
    elif action == "swap":
        items[place], items[other] = items[other], items[place]
    else:
        items[place] = _value(field, items[place], chance, messages)


def _zero(field: Any) -> Any:
    return {"string": "", "bytes": b"", "float": 0.0, "double": 0.0}.get(_KINDS[field.type], 0)


def _value(field: Any, old: Any, chance: random.Random, messages: dict[str, list[Any]]) -> Any:
    kind = _KINDS[field.type]
    if kind in _INTEGERS:
        number = chance.randrange(26) if kind == "enum" or chance.random() < 0.3 else values.integer(chance, old)
        return _within(number, _INTEGERS[kind], signed=kind.startswith("int"))
    if kind in ("float", "double"):
        return values.real(chance, old)
    if kind == "bool":
        return not old
    if kind == "bytes":
        if chance.random() < 0.3 or not old:
            return values.text(chance, []).encode("utf-8", "replace")
        return changed_constant(old, chance)
    names = [other.name for kind in ("NodeProto", "TensorProto", "AttributeProto") for other in messages.get(kind, ())]
    names = [name for name in names if isinstance(name, str)]
    return values.text(chance, names).encode("utf-8", "replace").decode()


def _within(value: int, bits: int, signed: bool) -> int:
    """The value modulo 2^bits."""
    value %= 1 << bits
    return value - (1 << bits) if signed and value >> (bits - 1) else value


MUTATORS = (change_message, change_message, change_message, change_constant, change_constant, change_operator,
            change_opset)  # fmt: skip
