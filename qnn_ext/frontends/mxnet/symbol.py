"""Reads `-symbol.json` (an nnvm graph, from any MXNet 1.x or older) into nodes, checked for consistency."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...errors import ModelFormatError
from ...files.reading import read_bytes
from ..unread import needed

MAX_DEPTH = 8  # levels of nested subgraphs
Edge = tuple[int, int]  # node, output


@dataclass(frozen=True)
class Operator:
    """One node. Attribute values are strings, as MXNet writes them; a node of op "null" is a variable."""

    index: int
    op: str
    name: str
    attrs: Mapping[str, str]
    inputs: tuple[Edge, ...]
    subgraphs: tuple[Graph, ...]

    @property
    def is_variable(self) -> bool:
        return self.op == "null"

    def label(self) -> str:
        """How messages refer to this node."""
        return f"node '{self.name}' ({self.op})"


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order, and the edges that are its outputs."""

    nodes: tuple[Operator, ...]
    heads: tuple[Edge, ...]

    @cached_property
    def needed(self) -> list[Operator]:
        """The nodes that the outputs depend on: the others are no part of MXNet's symbol either."""
        wanted = [node for node, _ in self.heads]
        return needed(self.nodes, wanted, lambda node: [read for read, _ in node.inputs], lambda node: [node.index])

    def operator(self, *names: str) -> Operator | None:
        """The first node with one of these operators."""
        return next((node for node in self.nodes if node.op in names), None)


def read_symbol(source: str | os.PathLike | bytes | Mapping[str, Any]) -> Graph:
    """The graph of a `-symbol.json`: a path, the JSON text itself, or its content as a dict.

    Raises ModelFormatError when it is missing, not JSON, or not a consistent graph.
    """
    if isinstance(source, Mapping):
        return _graph(source, "symbol", 0)
    if isinstance(source, (bytes, bytearray)):
        return _graph(_parse(bytes(source), "symbol"), "symbol", 0)
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return _graph(_parse(source, "symbol"), "symbol", 0)
    path = Path(source)
    return _graph(_parse(read_bytes(path, ModelFormatError), str(path)), str(path), 0)


def _parse(text: str | bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(f"{where} is not the JSON of an MXNet symbol: {error or 'nested too deeply'}") from error


def _graph(tree: Any, where: str, depth: int) -> Graph:
    if not isinstance(tree, Mapping) or not isinstance(tree.get("nodes"), list):
        raise ModelFormatError(f"{where} is not an MXNet symbol: it has no list 'nodes'")
    if depth > MAX_DEPTH:
        raise ModelFormatError(f"{where}: subgraphs nest deeper than {MAX_DEPTH}")
    nodes = tuple(_operator(entry, index, where, depth) for index, entry in enumerate(tree["nodes"]))
    heads = tree.get("heads")
    if not isinstance(heads, list) or not heads:
        raise ModelFormatError(f"{where}: the symbol has no outputs ('heads')")
    return Graph(nodes, tuple(_edge(head, len(nodes), f"{where}: head") for head in heads))


def _operator(entry: Any, index: int, where: str, depth: int) -> Operator:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("op"), str) or not isinstance(entry.get("name"), str):
        raise ModelFormatError(f"{where}: node {index} lacks its op or name")
    what = f"{where}: node '{entry['name']}' ({entry['op']})"
    attrs: dict[str, str] = {}
    for key in ("param", "attr", "attrs"):  # the first two: MXNet before 1.0
        part = entry.get(key)
        if part is None:
            continue
        if not isinstance(part, Mapping):
            raise ModelFormatError(f"{what}: '{key}' must be an object, found {type(part).__name__}")
        attrs.update(
            {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in part.items()}
        )
    inputs, subgraphs = entry.get("inputs") or [], entry.get("subgraphs") or []
    if not isinstance(inputs, list) or not isinstance(subgraphs, list):
        raise ModelFormatError(f"{what}: 'inputs' and 'subgraphs' must be lists")
    edges = tuple(_edge(edge, index, what) for edge in inputs)
    return Operator(
        index, entry["op"], entry["name"], attrs, edges, tuple(_graph(part, what, depth + 1) for part in subgraphs)
    )


def _edge(edge: Any, limit: int, what: str) -> Edge:
    """[node, output, version]; the node must come before `limit`."""
    numbers = edge if isinstance(edge, list) else []
    if len(numbers) not in (2, 3) or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
        raise ModelFormatError(f"{what}: an input must be [node, output, version], found {edge!r}")
    node, output = numbers[:2]
    if not 0 <= node < limit or output < 0:
        raise ModelFormatError(f"{what}: input {edge} does not refer to an earlier node")
    return node, output
