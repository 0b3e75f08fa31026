"""ONNX cases, checked against ONNX Runtime where it survives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from .case import FLOATS, INDICES, Case, divisors, with_each

pytest.importorskip("onnx")

import qnn_ext
from tests.frontends.onnx import graphs

DATA = np.arange(24, dtype=np.float32).reshape(4, 6)
BYTES = (np.arange(24) * 11 % 256).astype(np.uint8).reshape(4, 6)


def case(
    operator: str,
    inputs: Sequence[Any],
    trials: Sequence[Sequence[np.ndarray]],
    label: str = "",
    runtime: bool = True,
    opset: int = 18,
    outputs: int = 1,
    **attributes: Any,
) -> Case:
    """inputs: arrays for constants, None for inputs from the trials. runtime: whether to compare with ONNX Runtime."""
    given = iter(trials[0])
    named = {
        f"x{i}": (lambda value: (value.shape, value.dtype))(next(given)) if value is None else value
        for i, value in enumerate(inputs)
    }
    proto = graphs.one_node(operator, named, opset, outputs, **attributes)
    names = [value.name for value in proto.graph.input]

    def ask(values: Sequence[np.ndarray]) -> Any:
        return graphs.run_ort(proto, dict(zip(names, values, strict=True)))

    return Case(f"ONNX {operator} {label}".strip(), lambda: qnn_ext.from_onnx(proto), trials, ask if runtime else None)


def embedding() -> Case:
    """EmbedLayerNormalization: ids of words and of segments."""
    tables = {"words": DATA, "positions": DATA[:3], "segments": DATA[:2], "gamma": DATA[0], "beta": DATA[1]}
    names = ["ids", "kinds", *tables]
    node = graphs.node("EmbedLayerNormalization", names, ["y", "mask"], "embed", domain="com.microsoft")
    given = [graphs.value(name, (1, 3), np.int32) for name in names[:2]]
    results = [graphs.value("y", (1, 3, 6)), graphs.value("mask", (1,), np.int32)]
    proto = graphs.model([node], given, results, tables, opset=18)
    ids, kinds = np.int32([[0, 2, 1]]), np.int32([[0, 1, 1]])
    trials = [[hostile, kinds] for hostile in with_each(ids)] + [[ids, hostile] for hostile in with_each(kinds)]
    return Case("ONNX EmbedLayerNormalization QEmbedLayerNormalization", lambda: qnn_ext.from_onnx(proto), trials)


def packed_embedding() -> Case:
    """GatherBlockQuantized: rows of 16 values of 4 bits."""
    table = {"packed": np.resize(BYTES, (4, 8)), "scales": np.float32([[0.1], [0.2], [0.3], [0.4]])}
    node = graphs.node(
        "GatherBlockQuantized", ["packed", "i", "scales"], ["y"], "rows", domain="com.microsoft", block_size=16
    )
    proto = graphs.model([node], [graphs.value("i", (3,), np.int64)], [graphs.value("y", (3, 16))], table, opset=21)
    trials = [[hostile] for hostile in with_each(np.array([0, 2, 1], np.int64))]
    # ONNX Runtime reads wherever the index points
    return Case("ONNX GatherBlockQuantized", lambda: qnn_ext.from_onnx(proto), trials)


def cases() -> Iterator[Case]:
    yield embedding()
    yield packed_embedding()
    yield from indices()
    yield from arithmetic()
    yield from floats()


def indices() -> Iterator[Case]:
    rows = np.array([0, 2, 1], np.int64)
    for dtype in ("int32", "int64"):
        values = [[DATA, hostile] for hostile in with_each(rows.astype(dtype))]
        yield case("Gather", [None, None], values, dtype)
    yield case("Gather", [None, None], [[BYTES, hostile] for hostile in with_each(rows)], "uint8")
    square = np.resize(rows, (4, 6))
    yield case("GatherElements", [None, None], [[DATA, hostile] for hostile in with_each(square)])
    yield case("GatherElements", [None, None], [[BYTES, hostile] for hostile in with_each(square)], "uint8")
    pairs = np.array([[0, 1], [2, 3], [3, 5]], np.int64)
    yield case("GatherND", [None, None], [[DATA, hostile] for hostile in with_each(pairs)])
    yield case("GatherND", [None, None], [[DATA, hostile] for hostile in with_each(pairs[:, :1])], "rows")
    batched = np.array([[1], [2], [3], [0]], np.int64)
    yield case("GatherND", [None, None], [[DATA, hostile] for hostile in with_each(batched)], "batches", batch_dims=1)
    updates = np.linspace(1, 2, 12, dtype=np.float32).reshape(2, 6)
    distinct = np.array([[0, 1, 2, 3, 0, 1], [1, 2, 3, 0, 1, 2]], np.int64)
    for reduction in ("none", "add", "mul", "min", "max"):
        values = [[DATA, hostile, updates] for hostile in with_each(distinct)]
        yield case("ScatterElements", [None] * 3, values, reduction, axis=0, reduction=reduction)
        values = [[DATA, hostile, np.float32([7, 8, 9])] for hostile in with_each(pairs)]
        yield case("ScatterND", [None] * 3, values, reduction, reduction=reduction)
    scattered = [[DATA, hostile, updates] for hostile in with_each(distinct)]
    yield case("Scatter", [None] * 3, scattered, opset=9, axis=0)
    depth, on_off = np.array(4, np.int64), np.float32([0, 1])
    yield case("OneHot", [None, depth, on_off], [[hostile] for hostile in with_each(rows)])
    pooled = np.array([0, 3, 9, 15], np.int64).reshape(1, 1, 2, 2)
    unpooled = [[DATA[:2, :2].reshape(1, 1, 2, 2), hostile] for hostile in with_each(pooled, (*INDICES, 15, 16))]
    # ONNX Runtime reads and writes wherever the index points
    yield case("MaxUnpool", [None, None], unpooled, runtime=False, kernel_shape=[2, 2], strides=[2, 2])
    image, rois = DATA.reshape(1, 1, 4, 6), np.float32([[0, 0, 3, 3], [1, 1, 2, 2]])
    zeros = np.zeros(2, np.int64)
    aligned = [[image, rois, hostile] for hostile in with_each(zeros)]
    aligned += [[image, np.resize(part, (2, 4)), zeros] for part in (FLOATS[:8], FLOATS[8:16], FLOATS[[1, 2, 14, 15]])]
    yield case(
        "RoiAlign", [None] * 3, aligned, runtime=False, opset=16, output_height=2, output_width=2, sampling_ratio=2
    )
    yield case("Trilu", [None, None], [[DATA, np.array(value, np.int64)] for value in INDICES], runtime=False)
    grid = np.resize(FLOATS, (1, 3, 7, 2))
    yield case("GridSample", [None, None], [[image, grid]], runtime=False, opset=16)
    scores = np.float32([[1, np.nan, np.inf, -np.inf, 0, 2]])
    yield case("TopK", [None, np.array([3], np.int64)], [[scores], [-scores]], runtime=False, outputs=2)


def arithmetic() -> Iterator[Case]:
    for dtype in ("int8", "uint8", "int32", "int64"):
        yield case("Div", [None, None], divisors(dtype), dtype, runtime=False)  # ONNX Runtime does not survive these
        for fmod in (0, 1):
            yield case("Mod", [None, None], divisors(dtype), f"{dtype} fmod={fmod}", runtime=False, fmod=fmod)
    for direction in ("LEFT", "RIGHT"):
        for dtype in ("uint8", "uint32", "uint64"):
            x = np.full(6, np.iinfo(dtype).max, dtype)
            amounts = np.array([0, 1, 7, 8, 64, 200], dtype)
            yield case(
                "BitShift", [None, None], [[x, amounts]], f"{dtype} {direction}", runtime=False, direction=direction
            )


def floats() -> Iterator[Case]:
    scale, table = np.float32(0.1), np.resize(FLOATS, (3, 19))
    for target in ("int8", "uint8", "int16", "int32", "int64"):
        yield case("Cast", [None], [[FLOATS]], target, runtime=False, to=graphs.element(target))
    for zero in (np.int8(3), np.uint8(200), np.int16(-5)):
        yield case("QuantizeLinear", [None, scale, zero], [[FLOATS]], str(zero.dtype), runtime=False, opset=21)
    yield case("QuantizeLinear", [None, None], [[FLOATS, value] for value in FLOATS], "run-time scale", runtime=False)
    yield case("DynamicQuantizeLinear", [None], [[FLOATS], [FLOATS[3:]]], runtime=False, outputs=3)
    for operator in ("ArgMax", "ArgMin"):
        yield case(operator, [None], [[table]], runtime=False, axis=1)
        yield case(operator, [None], [[table]], "last", runtime=False, axis=1, select_last_index=1)
    for operator in ("Softmax", "LogSoftmax", "Hardmax"):
        yield case(operator, [None], [[table]], runtime=False, axis=1)
    for operator in ("Relu", "Sigmoid", "Tanh", "Erf", "HardSwish", "LeakyRelu", "Round", "Floor"):
        yield case(operator, [None], [[table]], runtime=False)
    yield case("Sign", [None], [[table]])
    yield case("Clip", [None, np.float32(-1), np.float32(6)], [[table]], runtime=False)
    for operator in ("Max", "Min"):
        yield case(operator, [None, None], [[table, table[::-1].copy()]], runtime=False)
    for operator in ("ReduceMax", "ReduceMin"):
        yield case(operator, [None], [[table]], runtime=False)
