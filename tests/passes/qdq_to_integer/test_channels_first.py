"""Graphs with the channels last, as TFLite writes them: the same integers as with the channels first."""

import numpy as np
import pytest
from tvm import relax

from .qdq import RNG, check

R = relax.op
IMAGE = RNG.normal(size=(1, 7, 6, 5)).astype(np.float32)  # NHWC
LINE = RNG.normal(size=(1, 9, 5)).astype(np.float32)  # NWC


def last(operator, weight_shape, kernel_layout, layout="NHWC", **attributes):
    """Quantized data and weights, a bias along the last axis."""
    weight = RNG.integers(-127, 128, weight_shape).astype(np.int8)
    channels = weight_shape[kernel_layout.index("O")]

    def model(g, x):
        w = g.dq(weight, RNG.uniform(0.01, 0.02, channels), np.zeros(channels), kernel_layout.index("O"))
        y = operator(g.qdq(x, 0.03, 120), w, data_layout=layout, kernel_layout=kernel_layout, **attributes)
        y = g.emit(R.add(g.emit(y), R.reshape(g.dq(np.arange(channels, dtype=np.int32), 0.5, 0), [channels])))
        return g.qdq(g.emit(R.nn.relu(y)), 0.05, 3)

    return model


CASES = {
    "OHWI": (last(R.nn.conv2d, (4, 3, 3, 5), "OHWI", padding=(1, 1), strides=(2, 1)), IMAGE),
    "HWIO": (last(R.nn.conv2d, (3, 2, 5, 4), "HWIO"), IMAGE),
    "depthwise": (last(R.nn.conv2d, (5, 3, 3, 1), "OHWI", groups=5), IMAGE),
    "line": (last(R.nn.conv1d, (4, 3, 5), "OWI", layout="NWC"), LINE),
}


@pytest.mark.parametrize("name", CASES)
def test_convolutions(name):
    model, x = CASES[name]
    outcome = check(model, x)
    assert "qnn.conv2d" in outcome.operators and not outcome.notes


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: R.nn.avg_pool2d(x, (2, 3), strides=(2, 2), padding=(1, 1), layout="NHWC"),
        lambda x: R.nn.avg_pool2d(x, (2, 2), ceil_mode=True, strides=(2, 2), layout="NHWC"),
        lambda x: R.nn.adaptive_avg_pool2d(x, (3, 2), layout="NHWC"),
        lambda x: R.nn.max_pool2d(x, (2, 2), strides=(2, 2), layout="NHWC"),
    ],
)
def test_pools(pool):
    """Means of four integers often lie on a tie, which the order of the float32 sum decides."""
    outcome = check(lambda g, x: g.q(g.emit(pool(g.qdq(x, 0.03, 120))), 0.025, 118), IMAGE, share=0.05)
    assert not any("pool" in name for name in outcome.floats())


def test_axes_match_those_of_channels_first():
    """Between the transposes stands the same integer convolution."""
    weight = RNG.integers(-127, 128, (4, 3, 3, 5)).astype(np.int8)
    scales = RNG.uniform(0.01, 0.02, 4)

    def model(g, x, channels_last):
        w = weight if channels_last else weight.transpose(0, 3, 1, 2)
        layouts = ("NHWC", "OHWI") if channels_last else ("NCHW", "OIHW")
        y = R.nn.conv2d(
            g.qdq(x, 0.03, 120), g.dq(w, scales, np.zeros(4), 0), data_layout=layouts[0], kernel_layout=layouts[1]
        )
        return g.q(g.emit(y), 0.05, 3)

    one = check(lambda g, x: model(g, x, True), IMAGE)
    two = check(lambda g, x: model(g, x, False), np.ascontiguousarray(IMAGE.transpose(0, 3, 1, 2)))
    np.testing.assert_array_equal(one.got[0].transpose(0, 3, 1, 2), two.got[0])
