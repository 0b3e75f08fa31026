"""Damaged models on the whole road of the import: each becomes a module or an error of ours, in bounded time.

Deterministic. QNN_FUZZ_CASES raises the number of cases.
"""

import json
import os
import time

import numpy as np
import pytest

from qnn_ext.errors import QnnError
from qnn_ext.frontends.mxnet import from_mxnet

from .goldens import load

CASES = int(os.environ.get("QNN_FUZZ_CASES", "3"))
SLOW_SECONDS = 10
VALUES = (
    "", "0", "1", "-1", "2", "7", "255", "1000000", "99999999999", "(0,)", "(1, 1)", "(-1, 0)", "(3, 3, 3)",
    "(None, 1)", "None", "True", "abc", "1e30", "1e-40", "nan", "-inf", "(" * 500, "(9999999, 9999999)",
    "NHWC", "avg", "uint8",
)  # fmt: skip


def pick(choices, rng):
    return choices[int(rng.integers(len(choices)))]


def all_nodes(tree):
    for node in tree["nodes"]:
        yield node
        for graph in node.get("subgraphs", []):
            yield from all_nodes(graph)


def tamper_attribute(tree, rng):
    """Another value, or none, of an attribute."""
    nodes = [node for node in all_nodes(tree) if node.get("attrs")]
    if nodes:
        attrs = pick(nodes, rng)["attrs"]
        key = pick(sorted(attrs), rng)
        attrs[key] = pick(VALUES, rng)
        if rng.integers(4) == 0:
            del attrs[key]


def tamper_wiring(tree, rng):
    """Another edge as a node's input, one less, or one more."""
    node = pick(list(all_nodes(tree)), rng)
    inputs = node.get("inputs", [])
    place = int(rng.integers(len(inputs) + 1))
    inputs[place : place + int(rng.integers(2))] = [[int(rng.integers(len(tree["nodes"]))), int(rng.integers(3)), 0]]
    node["inputs"] = inputs


def tamper_operator(tree, rng):
    """Another operator of the same model."""
    nodes = list(all_nodes(tree))
    pick(nodes, rng)["op"] = pick(nodes, rng)["op"]


def tamper_structure(tree, rng):
    """A node's field of another type, or without it."""
    node = pick(list(all_nodes(tree)), rng)
    key = pick(sorted(node), rng)
    node[key] = pick([None, [], {}, 3, "x", [[0, 0, 0]], [{"nodes": [], "heads": []}]], rng)


TAMPERERS = (tamper_attribute, tamper_attribute, tamper_attribute, tamper_wiring, tamper_operator, tamper_structure)


def tampered_params(params, rng):
    """Bytes overwritten, or cut off."""
    data = bytearray(params)
    if rng.integers(4) == 0:
        return bytes(data[: int(rng.integers(len(data)))])
    at = int(rng.integers(max(len(data) - 4, 1)))
    word = pick([0, 1, 3, 255, 0x7F800000, 0x7FC00000, 0xFF800000, 0xFFFFFFFF, 1 << 30], rng)
    data[at : at + 4] = word.to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("archive", ["fused", "operators", "float", "uncalibrated"])
def test_damaged_models(archive):
    accepted = refused = 0
    for number, (name, golden) in enumerate(load(archive).items()):
        for case in range(CASES):
            rng = np.random.default_rng([number, case])
            tree, params = json.loads(golden.symbol), golden.params
            if rng.integers(5) == 0:
                params = tampered_params(params, rng)
            else:
                pick(TAMPERERS, rng)(tree, rng)
            begin = time.process_time()
            try:
                from_mxnet(tree, params, golden.shapes)
                accepted += 1
            except QnnError:
                refused += 1
            assert time.process_time() - begin < SLOW_SECONDS, f"{name} case {case}"
    assert accepted > CASES and refused > CASES  # the mutations are neither harmless nor all caught at the door


def test_damaged_text():
    """Garbled and truncated JSON."""
    golden = load("fused")["conv_bn_sum_relu/auto"]
    rng = np.random.default_rng(3)
    text = golden.symbol.encode()
    for _ in range(100 * CASES):
        data = bytearray(text)
        if rng.integers(3) == 0:
            data = data[: int(rng.integers(len(data)))]
        else:
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        try:
            from_mxnet(bytes(data), golden.params, golden.shapes)
        except QnnError:
            continue
