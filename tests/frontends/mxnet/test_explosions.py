"""Small symbols and parameters that ask for huge tensors are refused by computing sizes."""

import json
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from qnn_ext import QnnError, from_mxnet

MAGIC = 0x112


def symbol(*operators: tuple[str, Sequence[int], dict[str, Any]]) -> str:
    """Operators in a row; node 0 is the input."""
    nodes: list[dict[str, Any]] = [{"op": "null", "name": "data", "inputs": []}]
    for index, (name, inputs, attributes) in enumerate(operators, 1):
        attrs = {key: str(value) for key, value in attributes.items()}
        nodes.append({"op": name, "name": f"n{index}", "attrs": attrs, "inputs": [[i, 0, 0] for i in inputs]})
    heads = [[len(operators), 0, 0]]
    return json.dumps({"nodes": nodes, "arg_nodes": [0], "heads": heads, "attrs": {"mxnet_version": ["int", 10900]}})


def repeated(name: str, **attributes: Any) -> str:
    """Each operator takes the one before twice."""
    return symbol(*((name, [index, index], {"num_args": 2, **attributes}) for index in range(40)))


EMPTY = struct.pack("<QQQQ", MAGIC, 0, 0, 0)
RELU = symbol(("relu", [0], {}))
SYMBOLS = {
    "pad": (
        symbol(("Pad", [0], {"mode": "constant", "pad_width": (0, 0, 0, 0, *[1 << 30] * 4)})),
        "cannot be computed",
    ),
    "broadcast": (symbol(("broadcast_to", [0], {"shape": (1 << 14, 1 << 14, 4, 4)})), "cannot be computed"),
    "doubled": (repeated("Concat", dim=0), "cannot be computed"),
    "stacks of stacks": (repeated("stack", axis=0), "cannot be computed"),
    "joined": (symbol(("Concat", [0] * 5000, {"dim": 0, "num_args": 5000})), "--limit operands=5000"),
    "added": (symbol(("add_n", [0] * 5000, {"num_args": 5000})), "--limit operands=5000"),
    "parts": (symbol(("SliceChannel", [0], {"num_outputs": 1 << 30, "axis": 3})), "cannot be split"),
    "pooled": (
        symbol(("_contrib_AdaptiveAvgPooling2D", [0], {"output_size": (1 << 20, 1 << 20)})),
        "cannot be computed",
    ),
    "window": (symbol(("Pooling", [0], {"kernel": (1 << 30, 1 << 30), "pool_type": "max"})), "does not fit"),
    "dimensions": (symbol(("Reshape", [0], {"shape": (1,) * 5000})), "short tuple"),
    "nested": ('{"nodes":' + "[" * 100_000 + "]" * 100_000 + "}", "recursion"),
}


@pytest.mark.parametrize("name", SYMBOLS)
def test_symbols(name):
    content, expected = SYMBOLS[name]
    with pytest.raises(QnnError, match=expected):
        from_mxnet(content.encode(), EMPTY, {"data": (1, 1, 4, 4)})


def test_sizes_that_the_file_only_declares():
    for params, expected in (
        (struct.pack("<QQQ", MAGIC, 0, 1 << 60), "declares"),
        (struct.pack("<QQQIii4q", MAGIC, 0, 1, 0xF993FAC9, 0, 4, *[1 << 40] * 4), "cannot be computed"),
    ):
        with pytest.raises(QnnError, match=expected):
            from_mxnet(RELU.encode(), params, {"data": (1, 1, 4, 4)})
    with pytest.raises(QnnError, match="cannot be computed"):
        from_mxnet(RELU.encode(), EMPTY, {"data": (1 << 20,) * 4})
