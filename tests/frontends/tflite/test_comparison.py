"""Comparisons, logic, SELECT: against LiteRT, and values that LiteRT's fixed point makes equal."""

import numpy as np
import pytest

from qnn_ext.errors import UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter

from .oracle_cases import assert_equals_reference, cases_of


@pytest.mark.parametrize(
    "case",
    cases_of(
        "EQUAL NOT_EQUAL LESS LESS_EQUAL GREATER GREATER_EQUAL LOGICAL_AND LOGICAL_OR LOGICAL_NOT SELECT SELECT_V2"
    ),
)
def test_equals_litert(case):
    assert_equals_reference(case)


def compare(operator, dtype, one, two):
    """A model that compares two vectors quantized with (scale, zero point)."""
    pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")
    from tests.conformance.tflite_models import builder

    graph = builder.Graph()
    ins = [graph.input((3,), dtype, builder.Q(*q)) for q in (one, two)]
    graph.op(operator, ins, [graph.output((3,), "bool")])
    return from_tflite(graph.build(), numerics="tflite")


def test_equal_parameters_need_no_table():
    assert "R.qnn.table" not in compare("LESS", "int8", (0.05, 3), (0.05, 3)).ir.script()


def test_steps_below_the_resolution_are_equal():
    """Values are compared in steps of 1/256; 0.001 apart they are the same."""
    module = compare("EQUAL", "int8", (0.001, 3), (0.001, 3))
    x, y = np.int8([3, 3, 3]), np.int8([3, 4, 100])
    np.testing.assert_array_equal(Interpreter(module)(x, y), [True, True, False])


def test_16_bit_order_ignores_the_scales():
    module = compare("LESS", "int16", (0.5, 0), (0.001, 0))
    x, y = np.int16([1, 2, 3]), np.int16([2, 2, 100])
    np.testing.assert_array_equal(Interpreter(module)(x, y), [True, False, True])


def test_per_channel_operands_are_refused():
    with pytest.raises(UnsupportedOperatorError, match=r"EQUAL #0 .*per-channel"):
        compare("EQUAL", "int8", ([0.1, 0.2, 0.3], 0), (0.1, 0))


def check_integers(operator, condition, expected):
    """Runs an operator on two int16 vectors whose scales, and the result's, differ."""
    pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")
    from tests.conformance.tflite_models import builder

    graph = builder.Graph()
    ins = [graph.input((4,), "bool")] if condition else []
    ins += [graph.input((4,), "int16", builder.Q(scale)) for scale in (0.5, 0.1)]
    graph.op(operator, ins, [graph.output((4,), "int16", builder.Q(0.2))])
    values = [np.bool_(condition)] if condition else []
    values += [np.int16([1, 2, 3, 4]), np.int16([100, 200, 2, -400])]
    np.testing.assert_array_equal(Interpreter(from_tflite(graph.build()))(*values), expected)


def test_selected_and_extreme_integers_ignore_the_scales():
    """As in LiteRT: converters of 16-bit models leave operands with scales of their own."""
    check_integers("SELECT", [True, False, True, False], [1, 200, 3, -400])
    check_integers("SELECT_V2", [True, False, True, False], [1, 200, 3, -400])
    check_integers("MAXIMUM", None, [100, 200, 3, 4])
    check_integers("MINIMUM", None, [1, 2, 2, -400])
