"""Damage to the numbers and strings in pickles, so that the unpickler still reaches whatever uses them."""

from __future__ import annotations

import pickletools
import random
import struct

from . import raw, values

_INTEGERS = {"BININT1": "<B", "BININT2": "<H", "BININT": "<i"}
_MEMORY = ("BINGET", "LONG_BINGET")


def change_pickle(data: bytes, chance: random.Random) -> bytes:
    """Changes an integer, a float, a boolean, or a reference to an earlier value; sometimes bytes anywhere."""
    places = [] if chance.random() < 0.15 else _places(data)
    if not places:
        return raw.anything(data, chance)
    name, argument, place = chance.choice(places)
    body, size = place + 1, struct.calcsize(_INTEGERS.get(name, "<B"))
    if name in _INTEGERS:  # as a 32- or 64-bit integer
        new = values.integer(chance, argument)
        if chance.random() < 0.8:
            encoded = b"J" + (new % (1 << 32)).to_bytes(4, "little")
        else:
            encoded = b"\x8a\x08" + (new % (1 << 64)).to_bytes(8, "little")
        return data[:place] + encoded + data[body + size :]
    if name == "BINFLOAT":
        return data[:body] + struct.pack(">d", values.real(chance, argument)) + data[body + 8 :]
    if name in _MEMORY:
        return data[:body] + bytes([chance.randrange(32)]) + data[body + 1 :]
    if name in ("NEWTRUE", "NEWFALSE", "NONE"):
        return data[:place] + chance.choice((b"\x88", b"\x89", b"N", b"]", b")", b"K\x00")) + data[body:]
    text = values.text(chance, [other for kind, other, _ in places if kind == "BINUNICODE"])
    encoded = text.encode("utf-8", "surrogatepass")
    length = len(str(argument).encode("utf-8", "surrogatepass"))
    return data[:body] + struct.pack("<I", len(encoded)) + encoded + data[body + 4 + length :]


def _places(data: bytes) -> list[tuple[str, object, int]]:
    """(opcode, argument, position) of everything that can be changed, up to where the pickle is already damaged."""
    known = (*_INTEGERS, *_MEMORY, "BINFLOAT", "NEWTRUE", "NEWFALSE", "NONE", "BINUNICODE")
    found: list[tuple[str, object, int]] = []
    try:
        for opcode, argument, place in pickletools.genops(data):
            if opcode.name in known and place is not None:
                found.append((opcode.name, argument, place))
    except Exception:  # pickletools raises a dozen types on damaged pickles
        return found
    return found
