"""TRANSPOSE_CONV and MediaPipe's variant of it against LiteRT, the regrouping of weights against the definition."""

import struct

import numpy as np
import pytest

from qnn_ext.errors import QnnError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from qnn_ext.numerics.phases import phase_weight, tap_counts
from tests.conformance.tflite_models.builder import Graph
from tests.conformance.tflite_models.runner import invoke

from .oracle_cases import assert_equals_reference, cases_of


@pytest.mark.parametrize("case", cases_of("TRANSPOSE_CONV"))
def test_equals_litert(case):
    assert_equals_reference(case)


def test_phase_weight_holds_every_tap_once_reversed(rng):
    weight = rng.integers(-127, 127, (4, 5, 3, 2)).astype(np.int8)
    phases = (2, 3)
    assert tap_counts((5, 3), phases) == (3, 1)
    regrouped = phase_weight(weight, phases, zero_point=9)
    assert regrouped.shape == (24, 3, 1, 2)
    for row in range(6):
        for column in range(3):
            channel = ((row % 2) * 3 + column % 3) * 4 + 1
            expected = weight[1, row, column] if row < 5 else 9
            np.testing.assert_array_equal(regrouped[channel, 2 - row // 2, 0], expected)


def mediapipe_model(rng, image, kernel, strides, padding, options=None):
    """MediaPipe's operator; its options are padding, stride_width and stride_height of TfLiteTransposeConvParams."""
    graph = Graph()
    size = [s * (n - 1) + k for s, n, k in zip(strides, image, kernel, strict=True)]
    if padding == 1:  # SAME
        size = [n - max(0, k - (m - 1) % s - 1) for n, k, m, s in zip(size, kernel, image, strides, strict=True)]
    x, y = graph.input((2, *image, 3), "float32"), graph.output((2, *size, 4), "float32")
    weight, bias = (graph.const(rng.integers(-5, 6, shape), "float32") for shape in ((4, *kernel, 3), (4,)))
    options = struct.pack("<3i", padding, *strides[::-1]) if options is None else options
    graph.op("Convolution2DTransposeBias", [x, weight, bias], [y], custom=options)
    return graph.build()


@pytest.mark.parametrize(
    ("image", "kernel", "strides", "padding"),
    [
        ((4, 5), (2, 2), (2, 2), 1),
        ((5, 4), (3, 3), (2, 2), 1),
        ((4, 4), (3, 3), (2, 2), 2),
        ((4, 4), (4, 4), (2, 2), 1),
        ((4, 3), (4, 2), (3, 1), 1),
    ],
)
def test_mediapipe_operator_equals_litert(rng, image, kernel, strides, padding):
    """XNNPACK has it; LiteRT's own kernels do not."""
    model = mediapipe_model(rng, image, kernel, strides, padding)
    x = rng.integers(-9, 10, (2, *image, 3)).astype(np.float32)
    ((expected,),) = invoke(model, [[x]], "default", stateful=False)
    (found,) = Interpreter(from_tflite(model)).run([x]).values()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (b"", "0 bytes of options"),
        (struct.pack("<3i", 0, 2, 2), "padding 0"),
        (struct.pack("<3i", 1, 0, 2), "strides"),
        (struct.pack("<3i", 1, 1 << 30, 1 << 30), "elements"),
    ],
)
def test_damaged_options_of_the_mediapipe_operator(rng, options, message):
    with pytest.raises(QnnError, match=rf"Convolution2DTransposeBias #0 .*{message}"):
        from_tflite(mediapipe_model(rng, (4, 4), (2, 2), (2, 2), 1, options))
