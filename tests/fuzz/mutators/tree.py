"""Damage to JSON: other values, keys and structures, and texts that are no longer JSON."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from . import raw, values

_DEEP = "@deep@"
_STRUCTURES: tuple[Any, ...] = (None, [], {}, 3, -1, 0.5, True, "x", [[0, 0, 0]], [0, 0, 0], {"x": 1}, [None], _DEEP)


def change_tree(data: bytes, chance: random.Random) -> bytes:
    """One or two places of the tree changed; text that is already broken is left alone."""
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return raw.anything(data, chance)
    try:
        for _ in range(chance.choice((1, 1, 1, 2))):
            _change(tree, chance)
        text = json.dumps(tree, separators=(",", ":"))
    except (ValueError, RecursionError):  # too deep to be copied or written
        return data
    if _DEEP in text:
        depth = chance.choice((100, 1000, 100_000))
        text = text.replace(f'"{_DEEP}"', "[" * depth + "]" * depth, 1)
    return text.encode("utf-8", "surrogatepass")


def change_text(data: bytes, chance: random.Random) -> bytes:
    """Damages mostly the tree, rarely its bytes."""
    return change_tree(data, chance) if chance.random() < 0.9 else raw.anything(data, chance)


def _sites(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key or index) of everything in the tree except the root."""
    waiting = [value]
    while waiting:
        container = waiting.pop()
        for key, item in container.items() if isinstance(container, dict) else enumerate(container):
            yield container, key
            if isinstance(item, (dict, list)):
                waiting.append(item)


def _change(tree: Any, chance: random.Random) -> None:
    if not isinstance(tree, (dict, list)):
        return
    named: dict[str, list[tuple[Any, Any]]] = {}
    for container, key in _sites(tree):
        named.setdefault(key if isinstance(key, str) else "", []).append((container, key))
    if not named:
        return
    group = named[chance.choice(sorted(named))]
    container, key = chance.choice(group)
    old, action = container[key], chance.random()
    if action < 0.08:
        del container[key]
    elif action < 0.16:
        container[key] = json.loads(json.dumps(chance.choice(_STRUCTURES)))
    elif action < 0.24:
        other, place = chance.choice(group)
        container[key], other[place] = copy.deepcopy(other[place]), copy.deepcopy(old)  # one may contain the other
    elif action < 0.3 and isinstance(container, list):
        container.insert(key, json.loads(json.dumps(old)))
    elif action < 0.36 and isinstance(container, dict):
        container[chance.choice(sorted(named)) or "x"] = container.pop(key)
    else:
        container[key] = _value(old, [c[k] for c, k in group if isinstance(c[k], str)], chance)


def _value(old: Any, texts: list[str], chance: random.Random) -> Any:
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return values.integer(chance, old)
    if isinstance(old, float):
        return values.real(chance, old)
    if isinstance(old, str):
        return _digits_changed(old, chance) if chance.random() < 0.4 else values.text(chance, texts)
    return chance.choice(_STRUCTURES)


def _digits_changed(text: str, chance: random.Random) -> str:
    """Replaces a number within the text: "(3, 3)" → "(3, -1)"."""
    places = [place for place, char in enumerate(text) if char.isdigit()]
    if not places:
        return text[: chance.randrange(len(text) + 1)]
    place = chance.choice(places)
    return text[:place] + str(values.integer(chance, int(text[place]))) + text[place + 1 :]


MUTATORS = (change_text,)
