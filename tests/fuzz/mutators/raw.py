"""Damage to bytes, regardless of what they mean."""

from __future__ import annotations

import random

from .values import word


def flip_bits(data: bytes, chance: random.Random) -> bytes:
    """Flips one to eight bits anywhere."""
    result = bytearray(data)
    for _ in range(chance.randint(1, 8) if data else 0):
        result[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(result)


def overwrite_word(data: bytes, chance: random.Random) -> bytes:
    """Overwrites an integer or a float of 1 to 8 bytes, mostly at an aligned position."""
    width = chance.choice((1, 2, 4, 4, 8))
    if len(data) < width:
        return data
    start = chance.randrange(len(data) - width + 1)
    if chance.random() < 0.8:
        start -= start % width
    return data[:start] + word(chance, data[start : start + width]) + data[start + width :]


def truncate(data: bytes, chance: random.Random) -> bytes:
    """Truncates the file somewhere."""
    return data[: chance.randrange(len(data) + 1)]


def remove(data: bytes, chance: random.Random) -> bytes:
    """Removes a stretch."""
    start, length = chance.randrange(len(data) + 1), chance.choice((1, 2, 4, 8, 16, 64))
    return data[:start] + data[start + length :]


def fill(data: bytes, chance: random.Random) -> bytes:
    """Fills a stretch with zeros or ones."""
    start, length = chance.randrange(len(data) + 1), chance.randint(1, 64)
    return data[:start] + bytes([chance.choice((0, 255))]) * len(data[start : start + length]) + data[start + length :]


def splice(data: bytes, chance: random.Random) -> bytes:
    """Copies a stretch over another of the same length, or inserts it elsewhere."""
    length = chance.choice((1, 4, 8, 16, 32, 64, 256))
    source, target = chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)
    end = target + (length if chance.random() < 0.7 else 0)
    return data[:target] + data[source : source + length] + data[end:]


MUTATORS = (flip_bits, overwrite_word, truncate, remove, fill, splice)


def anything(data: bytes, chance: random.Random) -> bytes:
    """One of the above."""
    return chance.choice(MUTATORS)(data, chance)
