"""Padding, space to depth and to batch: against LiteRT."""

import numpy as np
import pytest

import qnn_ext
from tests.conformance.tflite_models.builder import Graph

from .oracle_cases import assert_equals_reference, cases_of


@pytest.mark.parametrize(
    "case",
    cases_of("PAD PADV2 MIRROR_PAD SPACE_TO_DEPTH DEPTH_TO_SPACE SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND"),
)
def test_equals_litert(case):
    assert_equals_reference(case)


def test_a_padding_value_that_no_float_holds():
    """Relax writes the value of a pad as a float64; this one lies between two of them."""
    graph, value = Graph(), 2**61 + 1
    operands = [graph.input((2,), "int64"), graph.const([[1, 2]], "int32"), graph.const([value], "int64")]
    graph.op("PADV2", operands, [graph.output((5,), "int64")])
    module = qnn_ext.from_tflite(graph.build())
    x = np.array([-(2**63), 7])
    for runner in (qnn_ext.Interpreter(module), qnn_ext.build(module, num_threads=1)):
        np.testing.assert_array_equal(runner(x), [value, *x, value, value])
