"""Relay's FakeQuantizationToInteger had 46 rules; each has a case here that must end up without float operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tvm import relax

from qnn_ext.op.base import constant

from .qdq import RNG, Case, Graph, check, together

R = relax.op
IMAGE = RNG.normal(size=(2, 6, 9, 8)).astype(np.float32)
MATRIX = RNG.normal(size=(5, 24)).astype(np.float32)
KERNEL = RNG.integers(-127, 128, (8, 6, 3, 3)).astype(np.int8)
WEIGHT = RNG.integers(-127, 128, (24, 16)).astype(np.int8)
SCALES = RNG.uniform(0.01, 0.02, 8).astype(np.float32)

IN, OUT = (0.03137, 120), (0.05291, 130)


def unary(operator: Callable, source=IMAGE, out=OUT) -> Case:
    """dequantize → operator → quantize."""
    return (lambda g, x: g.q(g.emit(operator(g.qdq(x, *IN))), *out)), [source]


def binary(operator: Callable) -> Case:
    def model(g: Graph, x, y):
        return g.q(g.emit(operator(g.qdq(x, *IN), g.qdq(y, 0.021, 100))), *OUT)

    return model, [IMAGE, RNG.normal(size=(2, 6, 1, 8)).astype(np.float32)]


def product(operator: Callable, weight: np.ndarray, axis: int, source: np.ndarray) -> Case:
    scales = RNG.uniform(0.01, 0.02, weight.shape[axis]).astype(np.float32)

    def model(g: Graph, x):
        y = operator(g.qdq(x, *IN), g.dq(weight, scales, np.zeros(len(scales)), axis))
        return g.q(g.emit(y), *OUT)

    return model, [source]


def split(g: Graph, x):
    parts = g.emit(R.split(g.qdq(x, *IN), 2, 1))
    return [g.q(g.emit(relax.TupleGetItem(parts, i)), *IN) for i in range(2)]


def depth_to_space(g: Graph, x):
    blocks = g.emit(R.reshape(g.qdq(x, *IN), (1, 2, 2, 2, 3, 4)))
    moved = g.emit(R.permute_dims(blocks, [0, 3, 4, 1, 5, 2]))
    return g.q(g.emit(R.reshape(moved, (1, 2, 6, 8))), *IN)


def tuple_of_two(g: Graph, x):
    pair = g.emit(relax.Tuple([g.qdq(x, *IN), g.qdq(x, *OUT)]))
    return g.q(g.emit(relax.TupleGetItem(pair, 1)), *OUT)


def topk(g: Graph, x):
    result = g.emit(R.topk(g.qdq(x, *IN), 3, ret_type="both"))
    return [g.q(g.emit(relax.TupleGetItem(result, 0)), *IN), g.emit(relax.TupleGetItem(result, 1))]


def batch_matmul(g: Graph, x, y):
    return g.q(g.emit(R.matmul(g.qdq(x, *IN), g.qdq(y, 0.02, -3, "int8"))), 0.3, 128)


def bias_add(g: Graph, x):
    y = g.emit(R.nn.conv2d(g.qdq(x, *IN), g.dq(KERNEL, SCALES, np.zeros(8), 0)))
    bias = g.dq(RNG.integers(-3000, 3000, 8).astype(np.int32), np.float32(0.03) * SCALES, np.zeros(8), 0)
    return g.q(g.emit(R.add(y, g.emit(R.reshape(bias, (1, 8, 1, 1))))), *OUT)


def hard_swish(x):
    gate = R.clip(R.add(x, constant(np.float32(3))), 0, 6)
    return R.divide(R.multiply(x, gate), constant(np.float32(6)))


def concatenate(g: Graph, x):
    return g.q(g.emit(R.concat([g.qdq(x, *IN), g.qdq(x, *OUT), g.qdq(x, 0.01, 100)], 1)), *OUT)


CASES: dict[str, Case] = {
    "qnn.dequantize": ((lambda g, x: g.q(g.qdq(x, *IN), *IN)), [IMAGE]),
    "qnn.quantize": ((lambda g, x: g.q(g.qdq(x, *IN), *OUT)), [IMAGE]),
    "reshape": unary(lambda x: R.reshape(x, (2, -1))),
    "squeeze": unary(lambda x: R.squeeze(x, 1), IMAGE[:, :1]),
    "strided_slice": unary(lambda x: R.strided_slice(x, [2], [1], [8], [2])),
    "transpose": unary(lambda x: R.permute_dims(x, [0, 2, 3, 1])),
    "expand_dims": unary(lambda x: R.expand_dims(x, 2)),
    "nn.max_pool2d": unary(lambda x: R.nn.max_pool2d(x, (3, 3), (2, 2), (1, 1))),
    "nn.batch_flatten": unary(R.nn.batch_flatten),
    "nn.depth_to_space": (depth_to_space, [RNG.normal(size=(1, 8, 3, 4)).astype(np.float32)]),
    "max": unary(lambda x: R.max(x, [2, 3])),
    "min": unary(lambda x: R.min(x, 1, keepdims=True)),
    "image.resize2d": unary(lambda x: R.image.resize2d(x, (18, 16), method="nearest_neighbor")),
    "broadcast_to": unary(lambda x: R.broadcast_to(x, (3, 2, 6, 9, 8))),
    "take": unary(lambda x: R.take(x, constant(np.array([3, 0, 3], np.int64)), 1)),
    "topk": (topk, [MATRIX]),
    "split": (split, [IMAGE]),
    "Tuple": (tuple_of_two, [IMAGE]),
    "TupleGetItem": (split, [IMAGE]),
    "nn.conv2d": product(lambda x, w: R.nn.conv2d(x, w, padding=(1, 1)), KERNEL, 0, IMAGE),
    "nn.conv2d_transpose": product(
        lambda x, w: R.nn.conv2d_transpose(x, w, strides=(2, 2)), KERNEL.transpose(1, 0, 2, 3), 1, IMAGE
    ),
    "nn.dense": product(lambda x, w: R.matmul(x, R.permute_dims(w)), np.ascontiguousarray(WEIGHT.T), 0, MATRIX),
    "nn.batch_matmul": (
        batch_matmul,
        [RNG.normal(size=(3, 4, 12)).astype(np.float32), RNG.normal(size=(3, 12, 5)).astype(np.float32)],
    ),
    "nn.bias_add": (bias_add, [IMAGE]),
    "concatenate": (concatenate, [IMAGE]),
    "nn.avg_pool2d": unary(lambda x: R.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1))),
    "nn.global_avg_pool2d": unary(lambda x: R.nn.adaptive_avg_pool2d(x, (1, 1))),
    "nn.adaptive_avg_pool1d": unary(lambda x: R.nn.adaptive_avg_pool1d(x, 5), IMAGE[:, :, :, 0]),
    "mean": unary(lambda x: R.mean(x, [1, 3])),
    "nn.pad": unary(lambda x: R.nn.pad(x, [0, 0, 0, 0, 1, 2, 3, 4])),
    "clip": unary(lambda x: R.clip(x, -0.5, 1.5)),
    "nn.relu": unary(R.nn.relu),
    "nn.leaky_relu": unary(lambda x: R.nn.leakyrelu(x, 0.2)),
    "add": binary(R.add),
    "multiply": binary(R.multiply),
    "subtract": binary(R.subtract),
    "minimum": binary(R.minimum),
    "maximum": binary(R.maximum),
    "sqrt": unary(lambda x: R.sqrt(R.abs(x))),
    "rsqrt": unary(lambda x: R.rsqrt(R.add(R.abs(x), constant(np.float32(0.1))))),
    "exp": unary(R.exp),
    "erf": unary(R.erf),
    "sigmoid": unary(R.sigmoid, out=(1 / 256, 0)),
    "hardswish": unary(hard_swish),
    "tanh": unary(R.tanh, out=(1 / 128, 128)),
    "abs": unary(R.abs),
    "log": unary(lambda x: R.log(R.add(R.abs(x), constant(np.float32(0.1))))),
    "nn.softmax": unary(R.nn.softmax, MATRIX, (1 / 256, 0)),
}
# between quantized tensors these leave operators on floats: the epilogue of the kernel that quantizes them again
EPILOGUE = {"qnn.dequantize", "add", "subtract", "multiply", "divide", "maximum", "minimum"}


def test_all_rules_are_here():
    """45 and the optional softmax; Relay counts Tuple and TupleGetItem as one, and sets two names for pooling."""
    assert len(CASES) >= 46


@pytest.mark.parametrize("name", CASES)
def test_rule(name):
    function, inputs = CASES[name]
    outcome = check(function, *inputs, compiled=False)
    assert not outcome.notes
    assert set(outcome.floats()) <= EPILOGUE


def test_kernels():
    function, inputs = together(CASES.values())
    check(function, *inputs)
