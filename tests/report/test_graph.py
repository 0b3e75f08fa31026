"""The graphs of a page: what is a box, what an arrow says, where an operator went."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.op.base import constant
from qnn_ext.report.graph import compiled_graph, imported_graph, kind_of, label_of, names_of
from qnn_ext.running.kernels import Kernel
from tests.cases.bundled import module_of
from tests.cases.loops import as_model
from tests.passes.modules import module


def _facts(node) -> dict[str, str]:
    return dict(map(tuple, node["facts"]))


def _product(za: int, zw: int):
    def body(emit, x):
        return emit(qnn.dense(x, constant(np.ones((4, 8), np.int8)), za, zw, 0.1, 0.1))

    graph = imported_graph(as_model(module([((2, 8), "uint8")], body)))
    return next(_facts(node) for node in graph["nodes"] if node["label"] == "dense")


def test_a_product_says_which_of_its_four_terms_it_has():
    both, neither = _product(3, 5), _product(0, 0)
    assert both["T2 = zw·Σ a"].startswith("sums over the data") and both["T3 = za·Σ w"].startswith("a constant")
    assert both["T4 = K·za·zw"].startswith("a constant")
    assert neither["T2 = zw·Σ a"] == "none, as zw = 0" and neither["T3 = za·Σ w"] == "none, as za = 0"
    assert _product(3, 0)["T4 = K·za·zw"] == "none, as zw = 0"
    assert both["multiply-accumulates"] == "64"


def test_operators_of_a_model_and_the_kernels_they_went_into():
    found = module_of("digits_cnn_int8.tflite")
    engine = qnn_ext.build(found, num_threads=1)
    graph = imported_graph(found, engine.kernels)
    nodes = {node["id"]: node for node in graph["nodes"]}
    computing = [node for node in nodes.values() if node["kind"] not in ("input", "output")]
    assert all(node["kernel"] is not None for node in computing)
    for node in computing:
        if "part_of" not in node:
            assert node["name"] in engine.kernels[node["kernel"]].sources
    product = next(node for node in computing if node["label"] == "conv2d")
    assert "zero point" in next(edge["text"] for edge in graph["edges"] if edge["to"] == product["id"])
    requantized = next(node for node in computing if node["label"] == "requantize" and "rounding" in _facts(node))
    assert _facts(requantized)["rounding"]
    assert any(node["label"] == "depthwise conv2d" for node in computing)
    ends = {edge["to"] for edge in graph["edges"]}
    assert {node["id"] for node in nodes.values() if node["kind"] == "output"} <= ends


def test_kernels_are_joined_as_they_read_each_other():
    found = module_of("digits_cnn_int8.tflite")
    engine = qnn_ext.build(found, num_threads=1)
    imported = imported_graph(found, engine.kernels)
    graph = compiled_graph(engine.compiled[0], engine.inputs, engine.states, imported)
    read = {(edge["from"] - 1, edge["to"] - 1) for edge in graph["edges"]}
    assert read == {(max(one, -1), index) for index, kernel in enumerate(engine.kernels) for one in kernel.reads}
    assert any("scale" in edge["text"] for edge in graph["edges"])
    assert all(node["name"] and not node["name"].startswith("lv") for node in graph["nodes"])


def test_states_and_loops_have_boxes():
    graph = imported_graph(module_of("digits_lstm_int8.tflite"))
    assert any(node["label"] == "loop" for node in graph["nodes"])


def _kernel(operators: str, dtype: str = "uint8", macs: int = 0, **workload) -> Kernel:
    results = [{"shape": [1, 4], "dtype": dtype}]
    symbol = operators if operators.startswith("fused_") else "f"
    return Kernel(symbol, "a", operators, "generic", macs, 0, 8, workload, sources=["a"], results=results)


@pytest.mark.parametrize(
    "kernel, kind, label",
    [
        (_kernel("reshape+permute_dims"), "moved", "reshape +1"),
        (_kernel("fused_reshape_transpose1"), "moved", "reshape_transpose"),
        (_kernel("nn.softmax+quantize"), "float", "softmax +1"),
        (_kernel("dequantize+quantize"), "integer", "dequantize +1"),
        (_kernel("quantize+reshape"), "integer", "quantize +1"),
        (_kernel("nn.softmax", "float32"), "float", "softmax"),
        (_kernel("conv2d_accumulate+dequantize", "float32", 9, out_dtype="int32"), "integer", "conv2d +1"),
        (_kernel("conv2d_accumulate", "float32", 9, out_dtype="float32"), "float", "conv2d"),
        (
            _kernel("dequantize+conv2d_accumulate", "uint8", 9, data_dtype="int8", out_dtype="float32"),
            "float",
            "conv2d +1",
        ),
        (_kernel("conv2d_accumulate", "uint8", 9, groups=8, in_channels=8), "integer", "depthwise conv2d"),
    ],
)
def test_kinds_and_labels(kernel, kind, label):
    assert (kind_of(kernel), label_of(kernel)) == (kind, label)


def test_a_kernel_without_a_name_is_named_after_what_reads_it():
    kernels = [
        Kernel("f", "lv3", "quantize", "generic", 0, 0, 0),
        Kernel("g", "out", "x", "generic", 0, 0, 0, reads=[0]),
    ]
    assert names_of(kernels) == ["for out", "out"]
