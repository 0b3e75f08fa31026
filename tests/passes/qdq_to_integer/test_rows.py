"""Softmax and normalizations of quantized data."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from qnn_ext.op.base import constant

from .qdq import RNG, Case, Graph, check, run, together

R = relax.op
ROWS = RNG.normal(size=(2, 5, 48)).astype(np.float32)
IMAGE = RNG.normal(size=(2, 6, 9, 8)).astype(np.float32)
PARAMETERS = {"uint8": (0.03137, 120), "int8": (0.0291, -5), "int16": (1.37e-4, 7), "uint16": (1.31e-4, 30000)}


def parameter(*shape):
    return constant(RNG.uniform(0.5, 1.5, shape).astype(np.float32))


def rows(operator, source=ROWS, dtype="uint8", out=None, reciprocal=False, quantized=True) -> Case:
    def model(g: Graph, x):
        y = g.emit(operator(g.qdq(x, *PARAMETERS[dtype], dtype, reciprocal)))
        scale, zero_point = out or PARAMETERS[dtype]
        return g.q(y, scale, zero_point, dtype, reciprocal) if quantized else y

    return model, [source]


SOFTMAX: dict[str, Case] = {
    "uint8": rows(R.nn.softmax, out=(1 / 256, 0)),
    "int8": rows(R.nn.softmax, dtype="int8", out=(1 / 256, -128), reciprocal=True),
    "int16": rows(R.nn.softmax, dtype="int16", out=(1 / 32768, 0)),
    "uint16": rows(R.nn.softmax, dtype="uint16", out=(1 / 65536, 0)),
    "axis": rows(lambda x: R.nn.softmax(x, 1), IMAGE, out=(1 / 256, 0)),
    "scaled": rows(lambda x: R.nn.softmax(R.divide(x, constant(np.float32(2.5)))), out=(1 / 256, 0)),
    "shifted": rows(lambda x: R.nn.softmax(R.add(x, constant(np.float32(7)))), out=(1 / 256, 0)),
    "log": rows(R.nn.log_softmax, out=(0.05, 255)),
}
NORMS: dict[str, Case] = {
    **{
        f"layer_norm-{d}": rows(lambda x: R.nn.layer_norm(x, parameter(48), parameter(48), [-1]), dtype=d)
        for d in PARAMETERS
    },
    "layer_norm-float": rows(
        lambda x: R.nn.layer_norm(x, parameter(48), parameter(48), [-1], 1e-12), reciprocal=True, quantized=False
    ),
    "layer_norm-two-axes": rows(lambda x: R.nn.layer_norm(x, parameter(5, 48), parameter(5, 48), [-2, -1])),
    "rms_norm": rows(lambda x: R.nn.rms_norm(x, parameter(48), [-1])),
}


def group_norm(x, **attributes):
    return R.nn.group_norm(x, parameter(6), parameter(6), 3, 1, [2, 3], **attributes)


def instance_norm(x, **attributes):
    return R.nn.instance_norm(x, parameter(6), parameter(6), 1, [2, 3], **attributes)


GROUPS: dict[str, Case] = {
    **{f"group_norm-{d}": rows(group_norm, IMAGE, d, reciprocal="int" in d) for d in PARAMETERS},
    **{f"instance_norm-{d}": rows(instance_norm, IMAGE, d, reciprocal="16" in d) for d in PARAMETERS},
    "group_norm-plain": rows(lambda x: group_norm(x, epsilon=0.1, center=False, scale=False), IMAGE),
    "instance_norm-volume": rows(
        lambda x: R.nn.instance_norm(x, parameter(6), parameter(6), 1, [2, 3, 4]), IMAGE.reshape(2, 6, 3, 3, 8)
    ),
    "group_norm-float": rows(group_norm, IMAGE, quantized=False),
    "instance_norm-float": rows(instance_norm, IMAGE, "int16", quantized=False),
}


@pytest.mark.parametrize("name", SOFTMAX)
def test_softmax(name):
    function, inputs = SOFTMAX[name]
    outcome = check(function, *inputs, compiled=False, share=0.02 if "int16" in name else 2e-3)
    assert not outcome.notes
    assert {"qnn.softmax", "qnn.log_softmax"} & set(outcome.operators)
    assert not set(outcome.floats()) - {"divide", "add"}  # what the softmax does not read any more is removed


@pytest.mark.parametrize("name", NORMS)
def test_normalization(name):
    function, inputs = NORMS[name]
    outcome = check(function, *inputs, compiled=False, share=0.03 if "int16" in name else 2e-3)
    assert not outcome.notes
    assert "qnn.normalize" in outcome.operators
    assert set(outcome.floats()) <= {"qnn.normalize", "multiply", "add", "reshape"}


@pytest.mark.parametrize("name", GROUPS)
def test_groups(name):
    """One operator between dequantize and quantize; normalized integers where the result is read as floats."""
    function, inputs = GROUPS[name]
    outcome = check(function, *inputs, compiled=False, share=0.03 if "int16" in name else 2e-3)
    assert not outcome.notes
    operator, how = name.split("-")
    assert ("qnn.normalize" if how == "float" else f"qnn.{operator}") in outcome.operators
    allowed = {"qnn.normalize", "qnn.fma", "reshape"} if how == "float" else {f"qnn.{operator}"}
    assert set(outcome.floats()) <= allowed


def test_batch_norm_behind_a_convolution():
    weight = RNG.integers(-99, 99, (8, 6, 3, 3)).astype(np.int8)

    def model(g: Graph, x):
        y = g.emit(R.nn.conv2d(g.qdq(x, 0.03137, 120), g.dq(weight, 0.011, 0)))
        norm = g.emit(R.nn.batch_norm(y, *(parameter(8) for _ in range(4)), axis=1, training=False))
        return g.q(g.emit(R.nn.relu(g.emit(relax.TupleGetItem(norm, 0)))), 0.043, 3)

    outcome = check(model, IMAGE)
    assert "nn.batch_norm" not in outcome.operators and not outcome.notes


def test_kernels():
    function, inputs = together([*SOFTMAX.values(), *NORMS.values(), *GROUPS.values()])
    run(function, *inputs)


@pytest.mark.parametrize("scale", [1e-25, 6e26])
def test_rows_of_extreme_scales(scale):
    """Rows of one value have no deviation, whatever the square of their scale is."""

    def model(g: Graph, q):
        return g.emit(R.nn.layer_norm(g.dq(q, scale, 3), parameter(4), parameter(4), [-1]))

    outcome = run(model, np.full((3, 4), 3, np.uint8))
    assert np.isfinite(outcome.got[0]).all()
    np.testing.assert_array_equal(outcome.got[0], outcome.expected[0])
    assert [note.reason for note in outcome.notes] == [
        "the square of its scale is out of the range of normal float32 numbers"
    ]


def test_notes():
    def model(g: Graph, x):
        a = g.qdq(x, 0.03, 120)
        mask = g.emit(R.add(a, constant(RNG.normal(size=48).astype(np.float32))))
        first = g.emit(R.nn.softmax(a))  # its result is read as it is
        second = g.q(g.emit(R.nn.softmax(mask)), 1 / 256, 0)
        third = g.emit(R.nn.layer_norm(a, parameter(5), parameter(5), [1]))
        return [first, second, third]

    outcome = run(model, ROWS, compiled=False)
    assert [(note.operator, note.reason) for note in outcome.notes] == [
        ("nn.softmax", "the model does not quantize its result"),
        ("nn.layer_norm", "it normalizes over axes that are not the last ones"),
    ]
