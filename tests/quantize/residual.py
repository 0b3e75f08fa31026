"""A small float network with a residual sum, quantized on random data, for tests of configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from qnn_ext.interpreter import Interpreter
from qnn_ext.module import QnnModule
from qnn_ext.op.base import constant, constant_value
from qnn_ext.passes.rewrite import bindings_of, op_name
from qnn_ext.quantize import QConfig, quantize

from .networks import float_module

DATA = np.random.default_rng(7).normal(size=(8, 4, 6, 6)).astype(np.float32)


def residual_network(rng: np.random.Generator, middle: Callable = lambda emit, x: x) -> QnnModule:
    """Two convolutions with a sum between them, a mean and a dense layer; `middle` stands before the second one."""

    def weight(*shape: int):
        return constant((rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    def body(emit, x):
        a = emit(relax.op.nn.conv2d(x, weight(8, 4, 3, 3), padding=(1, 1)))
        a = emit(relax.op.add(a, constant(rng.normal(size=(1, 8, 1, 1)).astype(np.float32))))
        a = middle(emit, emit(relax.op.nn.relu(a)))
        b = emit(relax.op.nn.conv2d(a, weight(8, 8, 1, 1)))
        b = emit(relax.op.nn.relu(emit(relax.op.add(b, a))))
        return emit(relax.op.matmul(emit(relax.op.mean(b, [2, 3])), weight(8, 5)))

    return float_module((1, 4, 6, 6), body)


def calls(module: QnnModule, name: str, function: str = "main") -> list[relax.Call]:
    return [b.value for b in bindings_of(module.ir[function]) if op_name(b.value) == name]


def quantized(network: QnnModule, **fields: Any) -> QnnModule:
    return quantize(network, dataset=DATA, config=QConfig(**{"target": "x86-64", **fields}))


def weights(module: QnnModule) -> list[np.ndarray]:
    return [constant_value(c.args[1]) for c in calls(module, "qnn.conv2d") + calls(module, "qnn.dense")]


def results(module: QnnModule) -> np.ndarray:
    return np.concatenate([Interpreter(module)(x[None]) for x in DATA])


def error(network: QnnModule, module: QnnModule) -> float:
    """Mean squared error of the quantized module's results."""
    return float(np.mean((results(module) - results(network)) ** 2))
