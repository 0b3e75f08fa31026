"""Operators that move values or compare them, and functions of one tensor."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from qnn_ext import op as qnn
from qnn_ext.op.base import constant

from .qdq import RNG, Case, Graph, check, run, together

R = relax.op
IMAGE = RNG.normal(size=(2, 6, 5, 8)).astype(np.float32)
IN, OTHER = (0.03137, 120), (0.0529, 100)


def moved(operator) -> Case:
    """The result is wanted as reals: one dequantize at the end."""
    return (lambda g, x: g.emit(operator(g.qdq(x, *IN)))), [IMAGE]


def channels(operator) -> Case:
    """The same with a scale for each channel (axis 1)."""

    def model(g: Graph, x):
        scales, zeros = constant(RNG.uniform(0.01, 0.1, 6).astype(np.float32)), constant(np.arange(6, dtype=np.int32))
        q = g.emit(qnn.quantize(x, scales, zeros, axis=1, out_dtype="uint8"))
        return g.emit(operator(g.emit(qnn.dequantize(q, scales, zeros, axis=1))))

    return model, [IMAGE]


def last(operator, *args, **kwargs):
    return lambda x: operator(x, *args, **kwargs)


MOVES = {
    "permute_dims": last(R.permute_dims, [0, 3, 1, 2]),
    "reversed": last(R.permute_dims),
    "reshape": last(R.reshape, (2, 6, 40)),
    "expand_dims": last(R.expand_dims, [0, 3]),
    "broadcast_to": last(R.broadcast_to, (3, 2, 6, 5, 8)),
    "strided_slice": last(R.strided_slice, [2, 3], [1, 0], [4, 7], [1, 2]),
    "flip": last(R.flip, 2),
    "max_pool2d": last(R.nn.max_pool2d, (2, 2), (2, 2)),
    "max": last(R.max, [0, 2]),
    "min": last(R.min, 3, keepdims=True),
    "take": last(R.take, constant(np.array([4, 0], np.int64)), 2),
}
PER_TENSOR = {
    "sort": last(R.sort, 3),
    "pad": last(R.nn.pad, [0, 0, 0, 0, 1, 2, 0, 0]),
    "flatten": R.flatten,
    "squeeze": lambda x: R.squeeze(R.strided_slice(x, [1], [0], [1]), 1),
    "tile": last(R.tile, (1, 2, 1, 3)),
    "repeat": last(R.repeat, 2, 1),
    "concat": lambda x: R.concat([x, x], 0),
    "stack": lambda x: R.stack([x, x], 1),
    "maximum": lambda x: R.maximum(x, R.flip(x, 1)),
    "where": lambda x: R.where(constant(RNG.random((6, 1, 8)) < 0.5), x, R.flip(x, 1)),
    "resize2d": last(R.image.resize2d, (10, 4), method="nearest_neighbor"),
    "gather": last(R.gather_elements, constant(RNG.integers(0, 5, (2, 6, 3, 8))), 2),
}
ORDER = {
    "argmax": last(R.argmax, 1),
    "argmin": last(R.argmin, 3),
    "argsort": last(R.argsort, 2),
}
FUNCTIONS = {
    "gelu": R.nn.gelu,
    "silu": R.nn.silu,
    "tanh-of-sigmoid": lambda x: R.tanh(R.sigmoid(x)),
    "gelu-decomposed": lambda x: R.multiply(
        R.multiply(x, constant(np.float32(0.5))),
        R.add(R.erf(R.divide(x, constant(np.float32(2**0.5)))), constant(np.float32(1))),
    ),
    "moved-between": lambda x: R.exp(R.permute_dims(R.tanh(x))),
}
ARITHMETIC = {
    "scaled": lambda x: R.multiply(R.add(x, constant(np.float32(3))), constant(np.float32(0.3))),
    "clipped": lambda x: R.clip(R.divide(x, constant(np.float32(0.7))), -1, 1),
    "hard-swish": lambda x: R.divide(
        R.multiply(x, R.clip(R.add(x, constant(np.float32(3))), 0, 6)), constant(np.float32(6))
    ),
}
CASES: dict[str, Case] = {
    **{name: moved(operator) for name, operator in {**MOVES, **PER_TENSOR}.items()},
    **{f"{name}-channels": channels(operator) for name, operator in MOVES.items()},
}


@pytest.mark.parametrize("name", CASES)
def test_move(name):
    function, inputs = CASES[name]
    outcome = run(function, *inputs, compiled=False)
    np.testing.assert_array_equal(outcome.got[0], outcome.expected[0])
    assert not outcome.notes and outcome.floats() == ["qnn.dequantize"]


@pytest.mark.parametrize("name", ["tile", "repeat", "resize2d", "gather", "sort", "pad"])
def test_channels_torn_apart_stay_right(name):
    function, inputs = channels(PER_TENSOR[name])
    outcome = run(function, *inputs, compiled=False)
    np.testing.assert_array_equal(outcome.got[0], outcome.expected[0])


@pytest.mark.parametrize("name", ORDER)
def test_order(name):
    function, inputs = moved(ORDER[name])
    outcome = run(function, *inputs, compiled=False)
    np.testing.assert_array_equal(outcome.got[0], outcome.expected[0])
    assert not outcome.floats() and not outcome.notes


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["int8", "uint16"])
def test_function(name, dtype):
    """A table where the result is quantized; where it is not, a table of reals over 8 bits, and over 16 the model's."""
    scale, zero_point = (0.03, -9) if dtype == "int8" else (1e-4, 30000)

    def model(g: Graph, x):
        y = g.emit(FUNCTIONS[name](g.qdq(x, scale, zero_point, dtype)))
        return [g.q(y, 0.02, 50), g.emit(R.sum(y, [1]))]

    def quantized(g: Graph, x):
        return g.q(g.emit(FUNCTIONS[name](g.qdq(x, scale, zero_point, dtype))), 0.02, 50)

    outcome = check(quantized, IMAGE, compiled=False)
    assert "qnn.table" in outcome.operators and not outcome.floats()
    outcome = check(model, IMAGE, compiled=False)
    assert ("qnn.table" in outcome.floats()) == (dtype == "int8")


@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_needs_no_table_of_reals(name):
    def model(g: Graph, x, y):
        return g.q(g.emit(R.add(g.emit(ARITHMETIC[name](g.qdq(x, *IN))), g.qdq(y, *OTHER))), 0.05, 100)

    outcome = run(model, IMAGE, IMAGE[:1], compiled=False)
    np.testing.assert_array_equal(outcome.got[0], outcome.expected[0])
    assert "qnn.table" not in outcome.operators and not outcome.notes


def test_one_quantize_and_many_dequantizes():
    def model(g: Graph, x):
        q = g.q(x, *IN)
        return g.q(g.emit(R.multiply(g.dq(q, *IN), g.emit(R.sigmoid(g.dq(q, *IN))))), *OTHER)

    outcome = check(model, IMAGE, compiled=False)
    assert outcome.operators == ["qnn.quantize", "qnn.table"]


def test_embedding_with_a_scale_for_each_row():
    table = RNG.integers(-127, 128, (10, 4)).astype(np.int8)
    scales, indices = RNG.uniform(0.01, 0.1, 10).astype(np.float32), RNG.integers(0, 10, (2, 3))

    def model(g: Graph, i):
        return g.emit(R.take(g.dq(table, scales, np.full(10, 3), 0), i, 0))

    outcome = run(model, indices, compiled=False)
    np.testing.assert_array_equal(outcome.got[0], outcome.expected[0])
    assert outcome.operators.count("take") == 2 and not outcome.notes


def test_topk():
    def model(g: Graph, x):
        result = g.emit(R.topk(g.qdq(x, *IN), 3))
        return [g.emit(relax.TupleGetItem(result, i)) for i in range(2)]

    outcome = run(model, IMAGE, compiled=False)
    np.testing.assert_array_equal(outcome.got[0], outcome.expected[0])
    assert outcome.floats() == ["qnn.dequantize"]


@pytest.mark.parametrize(
    "value, exact", [(0.0, True), (0.15, True), (12.75, True), (12.8, False), (0.07, False), (-1e-20, False)]
)
def test_pads_only_with_values_that_the_integers_stand_for(value, exact):
    outcome = check(
        lambda g, x: [g.emit(R.nn.pad(g.qdq(x, 0.05, 0), [0, 0, 1, 1, 0, 0, 0, 0], pad_value=value))],
        IMAGE,
        compiled=False,
    )
    assert bool(outcome.notes) is not exact


def test_notes():
    def model(g: Graph, x):
        a = g.qdq(x, *IN)
        return [
            g.emit(R.image.resize2d(a, (10, 4), method="cubic")),
            g.emit(R.nn.pad(a, [0, 0, 0, 0, 1, 1, 0, 0], pad_value=1e9)),
            g.emit(R.cumsum(a, 1)),
            g.emit(R.mean(g.emit(R.exp(a)), [1])),
        ]

    outcome = check(model, IMAGE, compiled=False)
    assert [note.reason for note in outcome.notes] == [
        "cubic interpolation computes in float",
        "it pads with 1e+09, which is not a quantized value",
        "no integer form of this operator",
        "its data is computed from quantized tensors, but not quantized itself",
    ]


def test_kernels():
    chosen = [CASES[name] for name in ("permute_dims-channels", "max_pool2d-channels", "stack", "sort", "gather")]
    functions = [moved(FUNCTIONS["gelu"]), moved(FUNCTIONS["tanh-of-sigmoid"]), moved(ARITHMETIC["hard-swish"])]
    function, inputs = together([*chosen, *functions, *(moved(operator) for operator in ORDER.values())])
    run(function, *inputs)
