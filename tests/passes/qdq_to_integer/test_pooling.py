"""Averages and sums of quantized data."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from .qdq import RNG, Case, Graph, check, run, together

R = relax.op
LINE = RNG.normal(size=(2, 6, 17)).astype(np.float32)
IMAGE = RNG.normal(size=(2, 6, 9, 8)).astype(np.float32)
VOLUME = RNG.normal(size=(1, 6, 5, 6, 4)).astype(np.float32)
PARAMETERS = {"uint8": (0.03137, 120), "int8": (0.0291, -5), "int16": (1.37e-4, 7), "uint16": (1.31e-4, 30000)}


def average(operator, source=IMAGE, dtype="uint8", reciprocal=True, quantized=True) -> Case:
    scale, zero_point = PARAMETERS[dtype]

    def model(g: Graph, x):
        y = g.emit(operator(g.qdq(x, scale, zero_point, dtype, reciprocal)))
        return g.q(y, scale * 0.73, zero_point + 3, dtype, reciprocal) if quantized else y

    return model, [source]


def joined(g: Graph, x):
    """Channels of two scales, pooled as reals: the pooled sums keep a scale for each channel."""
    both = g.emit(R.concat([g.qdq(x, 0.03137, 120), g.qdq(x, 0.0571, 100)], 1))
    return g.q(g.emit(R.nn.avg_pool2d(both, (2, 2), (2, 2))), 0.041, 110)


CASES: dict[str, Case] = {
    "avg_pool1d": average(lambda x: R.nn.avg_pool1d(x, 3, 2, 1), LINE),
    "avg_pool2d": average(lambda x: R.nn.avg_pool2d(x, (3, 2), (2, 1), (1, 0, 1, 1))),
    "avg_pool2d-include-pad": average(lambda x: R.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), count_include_pad=True)),
    "avg_pool2d-ceil": average(lambda x: R.nn.avg_pool2d(x, (3, 3), (2, 2), ceil_mode=True)),
    "avg_pool2d-ceil-pad": average(
        lambda x: R.nn.avg_pool2d(x, (3, 3), (2, 2), (1, 1), ceil_mode=True, count_include_pad=True)
    ),
    "avg_pool2d-float": average(lambda x: R.nn.avg_pool2d(x, (2, 2), (2, 2)), quantized=False),
    "avg_pool3d": average(lambda x: R.nn.avg_pool3d(x, (2, 3, 2), (1, 2, 2), (1, 1, 0)), VOLUME),
    **{f"mean-{d}": average(lambda x: R.mean(x, [2, 3]), dtype=d) for d in PARAMETERS},
    "mean-multiplier": average(lambda x: R.mean(x, [2, 3], keepdims=True), reciprocal=False),
    "mean-rows": average(lambda x: R.mean(x, [-1], keepdims=True), LINE),
    "mean-all": average(R.mean, quantized=False),
    "sum": average(lambda x: R.sum(x, [1]), quantized=False),
    "global": average(lambda x: R.nn.adaptive_avg_pool2d(x, (1, 1))),
    "adaptive-even": average(lambda x: R.nn.adaptive_avg_pool2d(x, (3, 4))),
    "adaptive-uneven": average(lambda x: R.nn.adaptive_avg_pool2d(x, (4, 3))),
    "adaptive1d": average(lambda x: R.nn.adaptive_avg_pool1d(x, 5), LINE, "int8"),
    "adaptive3d": average(lambda x: R.nn.adaptive_avg_pool3d(x, (2, 3, 3)), VOLUME),
    "joined": (joined, [IMAGE]),
}


@pytest.mark.parametrize("name", CASES)
def test_average(name):
    function, inputs = CASES[name]
    outcome = check(function, *inputs, compiled=False, share=0.02 if "int16" in name else 1e-3)
    assert not outcome.notes
    assert {"qnn.pool_sum", "qnn.window_sum", "qnn.sum", "qnn.mean"} & set(outcome.operators)
    assert set(outcome.floats()) <= {"qnn.pool_sum", "qnn.dequantize", "divide", "permute_dims"}


def test_kernels():
    function, inputs = together(CASES.values())
    run(function, *inputs)


def test_average_has_pytorchs_order():
    """rint((Σ f32(q − z)·s, cell by cell) / n · f32(1 / s_y)) + z_y, with equal scales, where every fourth is a tie."""
    torch = pytest.importorskip("torch")
    data = RNG.integers(0, 256, (3, 4, 16, 16)).astype(np.uint8)

    def model(g: Graph, x):
        return g.q(g.emit(R.nn.avg_pool2d(g.dq(x, 0.0213, 7), (2, 2), (2, 2))), 0.0213, 7, reciprocal=True)

    outcome = run(model, data)
    real = (data.astype(np.float32) - np.float32(7)) * np.float32(0.0213)
    average = torch.nn.functional.avg_pool2d(torch.from_numpy(real), 2).numpy()
    expected = np.rint(average * (np.float32(1) / np.float32(0.0213))) + 7
    np.testing.assert_array_equal(outcome.got[0], np.clip(expected, 0, 255))


def test_notes():
    def dynamic_shape_of_sum(g: Graph, x):
        return g.emit(R.sum(g.qdq(x, 1e-4, 0, "int16")))

    outcome = run(dynamic_shape_of_sum, np.zeros((70000,), np.float32), compiled=False)
    assert [note.reason for note in outcome.notes] == ["a sum of 70000 int16 values does not fit into int32"]
