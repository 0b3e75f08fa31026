"""Damage to source code, such as that of TorchScript: tokens of it in other places, other numbers."""

from __future__ import annotations

import random
import re

from . import raw, values

_TOKEN = re.compile(rb"[A-Za-z_][A-Za-z_0-9.]*|-?\d+\.\d*(?:e-?\d+)?|-?\d+|\S")
_NUMBER = re.compile(rb"-?\d")


def change_code(data: bytes, chance: random.Random) -> bytes:
    """A token becomes another one of the text, a number another number, a line is missing or twice there."""
    tokens = [match.span() for match in _TOKEN.finditer(data)]
    action = chance.random()
    if not tokens or action < 0.1:
        return raw.anything(data, chance)
    if action < 0.25:
        lines = data.splitlines(keepends=True)
        place = chance.randrange(len(lines))
        lines[place : place + 1] = [lines[chance.randrange(len(lines))]] * chance.randrange(3)
        return b"".join(lines)
    start, end = chance.choice(tokens)
    old = data[start:end]
    if not _NUMBER.match(old):
        other = chance.choice(tokens)
        new = data[slice(*other)]
    elif b"." in old:
        new = repr(values.real(chance, float(old))).encode()
    else:
        new = str(values.integer(chance, int(old))).encode()
    return data[:start] + new + data[end:]
