"""Tiny ONNX files that demand excessive resources: name -> (file, limit that refuses it or part of another message).

Run as a program it imports them all, see `tests.frontends.explosions`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

from tests.frontends.explosions import attack

FLOAT = TensorProto.FLOAT


def const(name: str, value: Any, dtype: Any = np.int64) -> Any:
    return numpy_helper.from_array(np.asarray(value, dtype), name)


def model(
    nodes: Sequence[Any], constants: Sequence[Any] = (), shape: Sequence[int] = (1, 8), functions: Any = ()
) -> bytes:
    """A model of x: float32 → y."""
    x = helper.make_tensor_value_info("x", FLOAT, list(shape))
    y = helper.make_tensor_value_info("y", FLOAT, None)
    graph = helper.make_graph(list(nodes), "g", [x], [y], initializer=list(constants))
    opsets = [helper.make_opsetid(domain, 17 if not domain else 1) for domain in ("", "com.microsoft", "own")]
    return helper.make_model(graph, functions=list(functions), opset_imports=opsets).SerializeToString()


def added(*nodes: Any, constants: Sequence[Any], shape: Sequence[int] = (1, 8)) -> bytes:
    """y = x + Σ k, where the nodes compute k from constants."""
    return model(
        [*nodes, node("ReduceSum", ["k"], ["z"], keepdims=0), node("Add", ["x", "z"], ["y"])], constants, shape
    )


def doubled(name: str, times: int) -> list[Any]:
    """k: a tensor concatenated with itself, repeatedly."""
    values = [name, *(f"t{i}" for i in range(times - 1)), "k"]
    return [node("Concat", [before] * 2, [after], axis=0) for before, after in pairwise(values)]


def calls(depth: int) -> list[Any]:
    """Functions each of which calls the previous one twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    found = []
    for level in range(depth):
        callee, domain = (f"f{level - 1}", "own") if level else ("Neg", "")
        body = [node(callee, ["a"], ["t"], domain=domain), node(callee, ["t"], ["b"], domain=domain)]
        found.append(helper.make_function("own", f"f{level}", ["a"], ["b"], body, opsets))
    return found


def weighty(times: int) -> bytes:
    """A function with a megabyte of weights, called repeatedly."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    weights = node("Constant", [], ["c"], value=const("", np.ones(1 << 18), np.float32))
    body = [weights, node("ReduceSum", ["c"], ["t"], keepdims=0), node("Add", ["a", "t"], ["b"])]
    function = helper.make_function("own", "f", ["a"], ["b"], body, opsets)
    values = ["x", *(f"t{index}" for index in range(times - 1)), "y"]
    nodes = [node("f", [before], [after], domain="own") for before, after in pairwise(values)]
    return model(nodes, functions=[function])


ONES = const("a", np.ones((1, 16, 64, 64)), np.float32)
IMAGE = (1, 1, 4, 4)


def ranged(count: int) -> bytes:
    return added(node("Range", ["a", "b", "c"], ["i"]), node("Cast", ["i"], ["k"], to=FLOAT),
                 constants=[const("a", 0), const("b", count), const("c", 1)])  # fmt: skip


def windowed(operator: str, **attributes: Any) -> bytes:
    """A convolution, its constants quantized if it is, or a pooling."""
    weight = const("w", np.ones((1, 1, 2, 2)), np.int8 if operator == "QLinearConv" else np.float32)
    if operator != "QLinearConv":
        return model([node(operator, ["x", "w"][: 1 + (operator == "Conv")], ["y"], **attributes)], [weight], IMAGE)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node(operator, ["q", "s", "z", "w", "s", "z", "s", "z"], ["r"], **attributes),
        node("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    return model(nodes, [weight, const("s", 0.1, np.float32), const("z", 0, np.int8)], IMAGE)


def resized(sizes: Sequence[int], mode: str) -> bytes:
    return model([node("Resize", ["x", "", "", "s"], ["y"], mode=mode)], [const("s", sizes)], IMAGE)


CASES: dict[str, tuple[bytes, str]] = {
    "constant of shape": (added(node("ConstantOfShape", ["s"], ["k"]), constants=[const("s", [1 << 29])]), "folded"),
    "expanded constant": (
        added(node("Expand", ["c", "s"], ["k"]), constants=[const("s", [1 << 28]), const("c", [1], np.float32)]),
        "folded",
    ),
    "expanded input": (model([node("Expand", ["x", "s"], ["y"])], [const("s", [1 << 28, 8])]), "cannot be computed"),
    "tiled constant": (
        added(node("Tile", ["c", "s"], ["k"]), constants=[const("s", [1 << 28]), const("c", [1], np.float32)]),
        "folded",
    ),
    "tiled input": (model([node("Tile", ["x", "s"], ["y"])], [const("s", [1 << 28, 1])]), "cannot be computed"),
    "range": (ranged(1 << 30), "folded"),
    "edges": (model([node("Pad", ["x", "p"], ["y"], mode="edge")], [const("p", [0, 1 << 30, 0, 0])]), "folded"),
    "one hot": (
        model(
            [node("Cast", ["x"], ["i"], to=TensorProto.INT64), node("OneHot", ["i", "d", "v"], ["y"])],
            [const("d", 1 << 30), const("v", [0, 1], np.float32)],
        ),
        "folded",
    ),
    "eye": (model([node("EyeLike", ["x"], ["y"])], shape=(1 << 15, 1 << 15)), "folded"),
    "mask of a dropout": (
        model([node("Dropout", ["x"], ["z", "m"]), node("Cast", ["m"], ["y"], to=FLOAT)], shape=(1 << 10, 1 << 20)),
        "folded",
    ),
    "resized": (resized([1, 1, 1 << 30, 4], "nearest"), "cannot be computed"),
    "resized axis": (resized([1, 1, 1 << 26, 4], "linear"), "folded"),
    "outer sum": (
        added(
            node("Add", ["a", "b"], ["k"]),
            constants=[const("a", np.ones((1 << 16, 1)), np.float32), const("b", np.ones((1, 1 << 15)), np.float32)],
        ),
        "cannot be computed",
    ),
    "outer product": (
        added(
            node("MatMul", ["a", "b"], ["k"]),
            constants=[const("a", np.ones((1 << 15, 1)), np.float32), const("b", np.ones((1, 1 << 15)), np.float32)],
        ),
        "folded",
    ),
    "rows of a table": (
        added(
            node("Gather", ["a", "b"], ["k"]),
            constants=[const("a", np.ones((1, 1 << 15)), np.float32), const("b", np.zeros(1 << 15))],
        ),
        "folded",
    ),
    "einsum": (
        added(
            node("Einsum", ["a"] * 4, ["k"], equation="i,j,k,l->"), constants=[const("a", np.ones(1 << 12), np.float32)]
        ),
        "cannot be computed",
    ),
    "doubled constant": (added(*doubled("c", 34), constants=[const("c", [1] * 8, np.float32)]), "folded"),
    "doubled input": (model([*doubled("x", 40), node("Neg", ["k"], ["y"])]), "cannot be computed"),
    "many constants": (
        model(
            [
                *(node("ConstantOfShape", ["s"], [f"c{i}"]) for i in range(64)),
                node("Sum", [f"c{i}" for i in range(64)], ["y"]),
            ],
            [const("s", [1 << 23])],
        ),
        "constants",
    ),
    "padded image": (
        model(
            [node("Conv", ["x", "w"], ["y"], pads=[1 << 30, 0, 1 << 30, 0])],
            [const("w", np.ones((1, 1, 1, 1)), np.float32)],
            IMAGE,
        ),
        "padding",
    ),
    "padded in both directions": (
        model([node("MaxPool", ["x"], ["y"], kernel_shape=[1 << 16] * 2, pads=[(1 << 16) - 1] * 4)], shape=IMAGE),
        "cannot be computed",
    ),
    "dilated window": (
        model(
            [node("Conv", ["x", "w"], ["y"], dilations=[1 << 30, 1], auto_pad="SAME_UPPER")],
            [const("w", np.ones((1, 1, 2, 1)), np.float32)],
            IMAGE,
        ),
        "padding",
    ),
    "stride of a quantized window": (windowed("QLinearConv", strides=[2**31 - 1] * 2), "strides"),
    "stride of a convolution": (windowed("Conv", strides=[2**31 - 1] * 2), "strides"),
    "negative dilation": (windowed("MaxPool", kernel_shape=[2, 2], dilations=[-1, -1]), "dilation"),
    "negative dilation inside of a formula": (windowed("LpPool", kernel_shape=[2, 2], dilations=[-1, -1]), "dilation"),
    "negative window": (windowed("AveragePool", kernel_shape=[-1, -1]), "kernel_shape"),
    "empty tensor of absurd dimensions": (
        model([node("Tile", ["x", "s"], ["y"])], [const("s", [2**60, 0])]),
        "damaged",
    ),
    "weights of calls": (weighty(5000), "memory"),
    "calls of calls": (model([node("f39", ["x"], ["y"], domain="own")], functions=calls(40)), "expressions"),
    "parts": (
        model([node("Split", ["x"], ["y", *(f"o{i}" for i in range(4999))], axis=1)], shape=(1, 5000)),
        "operands",
    ),
    "operands": (model([node("Concat", ["x"] * 5000, ["y"], axis=0)]), "operands"),
    "dimensions": (model([node("Unsqueeze", ["x", "s"], ["y"])], [const("s", range(1, 5000))]), "up to 32"),
    "dimensions of a shape": (model([node("Reshape", ["x", "s"], ["y"])], [const("s", [1] * 9999 + [8])]), "up to 32"),
    "input": (model([node("Neg", ["x"], ["y"])], shape=(1 << 31, 1 << 31)), "cannot be computed"),
    # harmless, but too costly to compute at import: an hour in NumPy, or gigabytes of windows
    "convolved constant": (
        added(
            node("Conv", ["a", "w"], ["k"], pads=[32] * 4),
            constants=[ONES, const("w", np.ones((16, 16, 32, 32)), np.float32)],
        ),
        "",
    ),
    "convolved integers": (
        added(
            node("ConvInteger", ["a", "w"], ["i"], pads=[32] * 4),
            node("Cast", ["i"], ["k"], to=FLOAT),
            constants=[
                const("a", np.ones((1, 16, 64, 64)), np.uint8),
                const("w", np.ones((16, 16, 32, 32)), np.int8),
            ],
        ),
        "",
    ),
}


def main() -> None:
    from qnn_ext import from_onnx

    attack(from_onnx, ranged(8), {name: content for name, (content, _) in CASES.items()})


if __name__ == "__main__":
    sys.exit(main())
