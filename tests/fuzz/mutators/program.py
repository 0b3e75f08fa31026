"""Damage to the graph of a torch.export program, `models/model.json`: other operators, operands, numbers and shapes."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from . import tree, values

_NUMBERS = ("as_int", "as_float", "as_bool", "as_ints", "as_floats", "as_scalar_type", "as_bools")


@cache
def _targets() -> list[str]:
    """Operators that qnn_ext converts, by their names in programs."""
    from qnn_ext.frontends.pytorch.exported import from_exported_program  # noqa: F401  (fills the registry)
    from qnn_ext.frontends.pytorch.exported.registry import CONVERTERS

    return [f"torch.ops.{name}" for name in sorted(CONVERTERS) if name.count(".") == 2] or ["torch.ops.aten.add.Tensor"]


def change_program(data: bytes, chance: random.Random) -> bytes:
    """Changes one of these in the graph; one time in three, anything in the tree."""
    if chance.random() < 0.35:
        return tree.change_text(data, chance)
    try:
        program = json.loads(data)
        graph = program["graph_module"]["graph"]
        nodes = [node for node in graph["nodes"] if isinstance(node, dict)]
    except (ValueError, RecursionError, KeyError, TypeError):
        return tree.change_text(data, chance)  # damaged by earlier mutations
    action = chance.choice((_change_argument, _change_argument, _change_target, _change_operand, _change_shape))
    action(graph, nodes, chance)
    return json.dumps(program).encode("utf-8", "surrogatepass")


def _arguments(value: Any) -> Iterator[dict[str, Any]]:
    """All {"as_…": value} of a tree."""
    if isinstance(value, dict):
        if len(value) == 1 and next(iter(value)).startswith("as_"):
            yield value
        for item in value.values():
            yield from _arguments(item)
    elif isinstance(value, list):
        for item in value:
            yield from _arguments(item)


def _change_target(graph: Any, nodes: list[Any], chance: random.Random) -> None:
    if nodes:
        chance.choice(nodes)["target"] = chance.choice(_targets())


def _change_argument(graph: Any, nodes: list[Any], chance: random.Random) -> None:
    """A number, list of numbers or dtype."""
    places = [item for item in _arguments(nodes) if next(iter(item)) in _NUMBERS]
    if not places:
        return
    place = chance.choice(places)
    ((kind, old),) = place.items()
    if isinstance(old, list):
        place[kind] = [_number(item, chance) for item in old] if chance.random() < 0.5 else _resized(old, chance)
    else:
        place[kind] = chance.randrange(16) if kind == "as_scalar_type" else _number(old, chance)


def _number(old: Any, chance: random.Random) -> Any:
    if isinstance(old, bool):
        return not old
    return values.integer(chance, old) if isinstance(old, int) else values.real(chance, old if old else 0.0)


def _resized(old: list[Any], chance: random.Random) -> list[Any]:
    return chance.choice((old[:-1], old + old, [*old, 1], [], old[::-1]))


def _change_operand(graph: Any, nodes: list[Any], chance: random.Random) -> None:
    """Puts another tensor in as an operand or output."""
    places = [item for item in _arguments([nodes, graph.get("outputs")]) if "as_tensor" in item]
    if places:
        place, other = chance.choice(places), chance.choice(places)
        place["as_tensor"] = copy.deepcopy(other["as_tensor"])  # which may contain `place`


def _change_shape(graph: Any, nodes: list[Any], chance: random.Random) -> None:
    """Changes a tensor's metadata in the program: sizes, strides, offset, dtype."""
    tensors = graph.get("tensor_values")
    described = [item for item in tensors.values() if isinstance(item, dict)] if isinstance(tensors, dict) else []
    if not described:
        return
    tensor = chance.choice(described)
    field = chance.choice(sorted(tensor))
    places = [item for item in _arguments(tensor[field]) if "as_int" in item]
    if places:
        place = chance.choice(places)
        place["as_int"] = _number(place["as_int"] if isinstance(place["as_int"], int) else 1, chance)
    elif isinstance(tensor[field], int):
        tensor[field] = chance.randrange(16) if field == "dtype" else values.integer(chance, tensor[field])


MUTATORS = (change_program,)
