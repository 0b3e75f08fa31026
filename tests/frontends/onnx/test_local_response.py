"""LRN against ONNX Runtime, bit for bit: the running sum over channels, and powers by logarithms of two floats."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.frontends.onnx import from_onnx

from .graphs import interpret, model, node, one_node, run_ort, value

CASES = [  # shape, size, alpha, beta, bias, magnitude
    ((2, 16, 5, 16), 5, 1e-4, 0.75, 1.0, 30.0),
    ((1, 7, 3, 4), 5, 1e-4, 0.75, 2.0, 300.0),
    ((1, 3, 2, 4), 9, 0.5, 0.6, 1.0, 3.0),  # windows wider than all channels
    ((1, 12, 4, 5), 1, 0.5, 1.0, 1.0, 3.0),  # an exponent that is a quotient, a square, a cube, and another integer
    ((1, 8, 4, 5), 3, 0.5, 2.0, 1.0, 3.0),
    ((1, 8, 4, 5), 3, 0.5, 3.0, 1.0, 3.0),
    ((1, 8, 4, 5), 3, 0.5, 4.0, 1.0, 3.0),
    ((1, 16, 4, 8), 5, 1.0, 0.5, 1e-3, 1e-6),
    ((1, 4, 4, 8), 3, 1.0, 0.75, 0.0, 1e-18),  # sums below the smallest normal number, and powers that are infinite
    ((1, 5, 1, 4), 3, 1.0, 0.75, 16.0, 1e-9),  # a power of two, halfway between two exponents
]


@pytest.mark.parametrize("shape, size, alpha, beta, bias, magnitude", CASES)
def test_bits(shape, size, alpha, beta, bias, magnitude, rng):
    x = (rng.standard_normal(shape) * magnitude).astype(np.float32)
    x[0, 0, 0, :2] = 0
    proto = one_node("LRN", {"x": (shape,)}, size=size, alpha=alpha, beta=beta, bias=bias)
    (name,) = (one.name for one in proto.graph.input)
    (expected,) = run_ort(proto, {name: x})
    (found,) = interpret(proto, {name: x})
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(qnn_ext.build(from_onnx(proto), num_threads=1)(x), expected)


def test_between_quantize_operators(rng):
    constants = {"s": np.float32(0.9), "t": np.float32(0.4), "z": np.uint8(3)}
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["d"]),
        node("LRN", ["d"], ["n"], size=5, alpha=0.01),
        node("QuantizeLinear", ["n", "t", "z"], ["y"]),
    ]
    shape = (1, 24, 17, 19)
    proto = model(nodes, [value("x", shape, "uint8")], [value("y", shape, "uint8")], constants)
    x = rng.integers(0, 256, shape).astype(np.uint8)
    (expected,) = run_ort(proto, {"x": x})
    np.testing.assert_array_equal(qnn_ext.build(from_onnx(proto), num_threads=1)(x), expected)
