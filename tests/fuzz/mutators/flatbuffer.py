"""Damage to FlatBuffers: their tables, vectors and offsets as laid out in the file; and TFLite models as trees of
values, which stay valid files that make no sense."""

from __future__ import annotations

import copy
import random
import struct
from collections.abc import Iterator
from typing import Any

import ai_edge_litert.schema_py_generated as schema
import flatbuffers
import numpy as np

from . import values

IDENTIFIER = b"TFL3"
_MOST_SITES = 20_000
_OPERATORS = sorted(value for name, value in vars(schema.BuiltinOperator).items() if name.isupper())


# ---- the file as tables, vectors and offsets -----------------------------------------------------------------------


def sites(data: bytes) -> dict[str, list[int]]:
    """Positions by kind: "slot" (16 bits of a vtable), "field" (32 bits of a table), "offset" (a field or element that
    points to another table, vector or string) and "length" (of a vector or string). Without a schema to say which
    fields are offsets, whatever could be one is followed."""
    found: dict[str, list[int]] = {"slot": [], "field": [], "offset": [], "length": []}
    if len(data) < 8:
        return found
    waiting = [struct.unpack_from("<I", data)[0]]
    seen: set[int] = set()
    found["offset"].append(0)
    while waiting and len(seen) < _MOST_SITES:
        position = waiting.pop()
        if position in seen:
            continue
        seen.add(position)
        for kind, place in _table_sites(data, position) or _vector_sites(data, position):
            found[kind].append(place)
            if kind == "offset":
                waiting.append(place + struct.unpack_from("<I", data, place)[0])
    return found


def _leads_somewhere(data: bytes, place: int) -> bool:
    distance = struct.unpack_from("<I", data, place)[0]
    return distance >= 4 and place + distance + 4 <= len(data)


def _table_sites(data: bytes, position: int) -> list[tuple[str, int]]:
    """The positions in a table; [] where there is none."""
    if position + 4 > len(data):
        return []
    vtable = position - struct.unpack_from("<i", data, position)[0]
    if not 0 <= vtable <= len(data) - 4:
        return []
    size, length = struct.unpack_from("<HH", data, vtable)
    if size < 4 or size % 2 or size > 256 or vtable + size > len(data) or length < 4 or position + length > len(data):
        return []
    result = [("slot", vtable), ("slot", vtable + 2)]
    for slot in range(vtable + 4, vtable + size, 2):
        offset = struct.unpack_from("<H", data, slot)[0]
        result.append(("slot", slot))
        if 4 <= offset <= length - 4:
            place = position + offset
            result.append(("offset" if _leads_somewhere(data, place) else "field", place))
    return result


def _vector_sites(data: bytes, position: int) -> list[tuple[str, int]]:
    """The positions in a vector or string; [] where there is none."""
    if position + 4 > len(data):
        return []
    count = struct.unpack_from("<I", data, position)[0]
    if position + 4 + count > len(data):
        return []
    places = range(position + 4, min(position + 4 + 4 * count, len(data) - 3), 4)
    holds_tables = places and all(
        _leads_somewhere(data, place) and _table_sites(data, place + struct.unpack_from("<I", data, place)[0])
        for place in places[:4]
    )
    return [("length", position), *([("offset", place) for place in places] if holds_tables else [])]


def bend_offset(data: bytes, chance: random.Random) -> bytes:
    """An offset points where another one does, or near or far from where it did."""
    places = sites(data)["offset"]
    if not places:
        return data
    place = chance.choice(places)
    old = struct.unpack_from("<I", data, place)[0]
    other = chance.choice(places)
    target = other + struct.unpack_from("<I", data, other)[0]
    value = chance.choice((target - place, target - place, old + 4, old - 4, 0, len(data) - place, 1 << 31, 0xFFFFFFFF))
    return _with_number(data, place, "<I", value)


def change_length(data: bytes, chance: random.Random) -> bytes:
    """A vector or string claims another length."""
    places = sites(data)["length"]
    if not places:
        return data
    place = chance.choice(places)
    return _with_number(data, place, "<I", values.integer(chance, struct.unpack_from("<I", data, place)[0]))


def change_field(data: bytes, chance: random.Random) -> bytes:
    """Changes a scalar of a table."""
    places = sites(data)["field"]
    if not places:
        return data
    place = chance.choice(places)
    return data[:place] + values.word(chance, data[place : place + 4]) + data[place + 4 :]


def change_slot(data: bytes, chance: random.Random) -> bytes:
    """In a vtable, a field becomes absent, or lies where another one does, or outside."""
    places = sites(data)["slot"]
    if not places:
        return data
    place, other = chance.choice(places), chance.choice(places)
    old = struct.unpack_from("<H", data, place)[0]
    value = chance.choice((0, 4, old + 2, old + 4, old - 4, struct.unpack_from("<H", data, other)[0], 0xFFFF))
    return _with_number(data, place, "<H", value)


def _with_number(data: bytes, place: int, code: str, value: int) -> bytes:
    size = struct.calcsize(code)
    return data[:place] + struct.pack(code, value % (1 << 8 * size)) + data[place + size :]


# ---- TFLite's models as trees --------------------------------------------------------------------------------------


def change_model(data: bytes, chance: random.Random) -> bytes:
    """Another value in a field of the model, including fields left at their default. The file stays valid."""
    try:
        tree = schema.ModelT.InitFromPackedBuf(bytearray(data), 0)
    except Exception:
        return data  # damaged by earlier mutations in a way that the schema's own code does not survive
    objects: dict[str, list[Any]] = {}
    for found in _objects(tree):
        objects.setdefault(type(found).__name__, []).append(found)
    for _ in range(chance.choice((1, 1, 1, 2))):
        kind = chance.choice(sorted(objects))
        _change(chance.choice(objects[kind]), objects, chance)
    builder = flatbuffers.Builder(len(data) + 1024)
    try:
        builder.Finish(tree.Pack(builder), IDENTIFIER)
    except Exception:
        return data  # the field cannot hold the value
    return bytes(builder.Output())


def _objects(value: Any) -> Iterator[Any]:
    """All tables of a tree."""
    if isinstance(value, list):
        for item in value:
            yield from _objects(item)
    elif type(value).__module__ == schema.__name__:
        yield value
        for field in vars(value).values():
            yield from _objects(field)


def _change(owner: Any, objects: dict[str, list[Any]], chance: random.Random) -> None:
    if not vars(owner):
        return  # options without fields
    field = chance.choice(sorted(vars(owner)))
    old = getattr(owner, field)
    if isinstance(owner, schema.OperatorCodeT) and field.lower().endswith("builtincode"):
        owner.builtinCode = chance.choice(_OPERATORS)
        owner.deprecatedBuiltinCode = min(owner.builtinCode, 127)
    elif isinstance(old, bool):
        setattr(owner, field, not old)
    elif isinstance(old, (int, np.integer)):
        setattr(owner, field, _fitting(owner, field, chance, int(old)))
    elif isinstance(old, float):
        setattr(owner, field, values.real(chance, old))
    elif isinstance(old, (bytes, str)):
        setattr(owner, field, values.text(chance, []).encode("utf-8", "surrogatepass"))
    elif isinstance(old, (list, np.ndarray)):
        setattr(owner, field, _changed_vector(old, chance))
    elif old is not None:
        same = objects[type(old).__name__]
        setattr(owner, field, None if chance.random() < 0.4 else chance.choice(same))
    elif field in ("shape", "shapeSignature", "inputs", "outputs", "zeroPoint"):
        setattr(owner, field, [values.integer(chance, 1) % 100 for _ in range(chance.randrange(4))])


def _fitting(owner: Any, field: str, chance: random.Random, old: int) -> int:
    """An integer; a small one where the field is an enum or an index, as most are."""
    small = chance.random() < 0.5 or field in ("type", "builtinOptionsType", "fusedActivationFunction", "padding")
    return chance.randrange(24) if small else values.integer(chance, old)


def _changed_vector(old: Any, chance: random.Random) -> Any:
    """A vector of numbers or tables with an element changed, removed, duplicated or swapped."""
    items = old.tolist() if isinstance(old, np.ndarray) else list(old)
    if chance.random() < 0.1:
        return None
    if not items:
        return [chance.choice((0, 1, -1, 7))]
    place, action = chance.randrange(len(items)), chance.choice(("change", "change", "remove", "double", "swap"))
    if action == "remove":
        del items[place]
    elif action == "double":
        items.insert(place, copy.copy(items[place]))
    elif action == "swap":
        other = chance.randrange(len(items))
        items[place], items[other] = items[other], items[place]
    elif isinstance(items[place], int):
        byte = isinstance(old, np.ndarray) and old.dtype == np.uint8
        items[place] = chance.choice((0, 1, 127, 128, 255)) if byte else values.integer(chance, items[place])
    elif isinstance(items[place], float):
        items[place] = values.real(chance, items[place])
    return (
        items
        if not isinstance(old, np.ndarray)
        else np.asarray(items, np.int64 if not items else None).astype(old.dtype, copy=False)
    )


def change_buffer(data: bytes, chance: random.Random) -> bytes:
    """Replaces a number of 1 to 8 bytes within a constant, or all of it."""
    try:
        tree = schema.ModelT.InitFromPackedBuf(bytearray(data), 0)
    except Exception:
        return data
    buffers = [buffer for buffer in tree.buffers or [] if buffer.data is not None and len(buffer.data)]
    if not buffers:
        return data
    buffer = chance.choice(buffers)
    content = bytes(np.asarray(buffer.data, np.uint8))
    buffer.data = np.frombuffer(changed_constant(content, chance), np.uint8)
    builder = flatbuffers.Builder(len(data) + 1024)
    builder.Finish(tree.Pack(builder), IDENTIFIER)
    return bytes(builder.Output())


def changed_constant(content: bytes, chance: random.Random) -> bytes:
    """A constant of the same size with one number replaced, or rarely all of them."""
    width = chance.choice([width for width in (1, 2, 4, 4, 8) if len(content) >= width])
    start = width * chance.randrange(len(content) // width)
    new = values.word(chance, content[start : start + width])
    if chance.random() < 0.1:
        return (new * (len(content) // width + 1))[: len(content)]
    return content[:start] + new + content[start + width :]


MUTATORS = (
    change_model, change_model, change_model, change_model, change_buffer, change_buffer, bend_offset, change_length,
    change_field, change_slot,
)  # fmt: skip
