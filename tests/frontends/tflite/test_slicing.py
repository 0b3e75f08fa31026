"""Slices, gathers, one-hot and top-k: against LiteRT, and after a change of the batch size."""

import numpy as np
import pytest

from qnn_ext import InputError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.cases import load_cases

from .oracle_cases import assert_equals_reference, cases_of


@pytest.mark.parametrize("case", cases_of("SLICE STRIDED_SLICE GATHER GATHER_ND ONE_HOT TOPK_V2"))
def test_equals_litert(case):
    assert_equals_reference(case)


@pytest.mark.parametrize(
    ("name", "shape", "index"),
    [
        ("SLICE/int8/inner", (4, 7, 6), np.s_[1:3, 0:7, 2:5]),
        ("STRIDED_SLICE/int8/rank4", (5, 6, 6, 2), np.s_[:, 1::2, 1::2]),
        ("STRIDED_SLICE/int8/plain", (4, 7), np.s_[1:3, 0:5:2]),
        ("STRIDED_SLICE/int8/shrink", (4, 9, 3), np.s_[2]),
    ],
)
def test_whole_dimensions_stay_whole(name, shape, index):
    case = next(case for case in load_cases() if case.name == name)
    (spec,) = from_tflite(case.model).inputs
    module = from_tflite(case.model, shapes={spec.name: shape})
    data = np.arange(np.prod(shape)).reshape(shape).astype("int8")
    (result,) = Interpreter(module).run([data]).values()
    np.testing.assert_array_equal(result, data[index])


def test_computed_indices_outside_of_the_data_are_refused():
    case = next(case for case in load_cases() if case.name == "GATHER/int8/indices_from_input")
    data, indices = case.inputs[0]
    with pytest.raises(InputError, match=r"GATHER #0 .*: index 1000 is out of range 0 … "):
        Interpreter(from_tflite(case.model)).run([data, np.full_like(indices, 1000)])
