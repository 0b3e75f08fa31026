"""Quantized networks with an open batch size, node by node."""

from __future__ import annotations

import numpy as np

from tests.frontends.onnx.graphs import model, node, value


def cnn(batch="N", rng=None):
    """Convolution, relu, pooling, batch normalization, flatten by shape arithmetic, gemm, softmax; all quantized."""
    rng = rng or np.random.default_rng(3)
    weights = rng.integers(-127, 127, (4, 3, 3, 3)).astype(np.int8)
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "sw"], ["wd"]),
        node("Conv", ["xd", "wd", "b"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("QuantizeLinear", ["r", "s", "z"], ["rq"]),
        node("DequantizeLinear", ["rq", "s", "z"], ["rd"]),
        node("MaxPool", ["rd"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("BatchNormalization", ["p", "one", "b", "b", "one"], ["n"]),
        node("Shape", ["n"], ["shape"], start=0, end=1),
        node("Concat", ["shape", "rest"], ["target"], axis=0),
        node("Reshape", ["n", "target"], ["f"]),
        node("Gemm", ["f", "g"], ["m"]),
        node("Softmax", ["m"], ["y"], axis=-1),
    ]
    constants = {
        "s": np.float32(0.02),
        "z": np.uint8(100),
        "w": weights,
        "sw": np.float32(0.01),
        "b": rng.standard_normal(4).astype(np.float32),
        "one": np.ones(4, np.float32),
        "rest": np.asarray([-1]),
        "g": rng.standard_normal((64, 5)).astype(np.float32),
    }
    return model(nodes, [value("x", (batch, 3, 8, 8))], [value("y", (batch, 5))], constants)


def transformer():
    """Tokens in, a class token prepended by Expand, attention, the class token out."""
    rng = np.random.default_rng(5)
    nodes = [
        node("Gather", ["table", "x"], ["e"]),
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Concat", ["n", "ones"], ["target"], axis=0),
        node("Expand", ["token", "target"], ["t"]),
        node("Concat", ["t", "e"], ["h"], axis=1),
        node("LayerNormalization", ["h", "scale", "scale"], ["l"]),
        node("MatMul", ["l", "q"], ["query"]),
        node("Transpose", ["query"], ["key"], perm=[0, 2, 1]),
        node("MatMul", ["query", "key"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "l"], ["o"]),
        node("ReduceMean", ["o", "axis"], ["mean"], keepdims=0),
        node("Slice", ["o", "zero", "one", "one"], ["first"]),
        node("Squeeze", ["first", "one"], ["s"]),
        node("Add", ["s", "mean"], ["y"]),
    ]
    constants = {
        "table": rng.standard_normal((10, 8)).astype(np.float32),
        "ones": np.asarray([1, 1]),
        "token": rng.standard_normal((1, 1, 8)).astype(np.float32),
        "scale": np.ones(8, np.float32),
        "q": rng.standard_normal((8, 8)).astype(np.float32),
        "axis": np.asarray([1]),
        "zero": np.asarray([0]),
        "one": np.asarray([1]),
    }
    return model(nodes, [value("x", ("N", 6), np.int64)], [value("y", ("N", 8))], constants)
