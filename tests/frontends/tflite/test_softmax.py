"""SOFTMAX and LOG_SOFTMAX: against LiteRT."""

import numpy as np
import pytest

import qnn_ext
from tests.conformance.tflite_models.builder import Graph, Q

from .oracle_cases import assert_equals_reference, cases_of

CASES = cases_of("SOFTMAX LOG_SOFTMAX")


@pytest.mark.parametrize("case", CASES)
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize("scale", [1e-8, 1e-10, 1e-30])
def test_log_softmax_of_scales_that_end_litert(scale):
    """Its multiplier must be above one; with float32 numerics any scale will do."""
    graph = Graph()
    x = graph.input((1, 3), "int8", Q(scale, 5))
    graph.op("LOG_SOFTMAX", [x], [graph.output((1, 3), "int8", Q(1 / 16, 127))])
    with pytest.raises(qnn_ext.UnsupportedOperatorError, match=r"LOG_SOFTMAX.*input scale of .*numerics='float32'"):
        qnn_ext.from_tflite(graph.build(), numerics="tflite")
    result = qnn_ext.Interpreter(qnn_ext.from_tflite(graph.build()))(np.array([[-128, 0, 127]], np.int8))
    np.testing.assert_array_equal(result, [[109, 109, 109]])  # ln ⅓ in sixteenths
