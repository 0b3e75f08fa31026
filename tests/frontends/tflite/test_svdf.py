"""SVDF: several invocations against LiteRT, the memory kept between them."""

import numpy as np
import pytest

from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.cases import load_cases

from .oracle_cases import assert_equals_reference, cases_of


@pytest.mark.parametrize("case", cases_of("SVDF"))
def test_equals_litert(case):
    assert_equals_reference(case)


def test_reset_forgets():
    case = next(case for case in load_cases("SVDF") if case.name == "SVDF/int8/int16_state_rank2")
    interpreter = Interpreter(from_tflite(case.model, numerics="tflite"))
    first = interpreter(*case.inputs[0])
    assert (interpreter(*case.inputs[0]) != first).any()
    interpreter.reset_state()
    np.testing.assert_array_equal(interpreter(*case.inputs[0]), first)
