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


@pytest.mark.parametrize("case", ["first", "second", "both"])
def test_strided_slice_of_one_element_known_at_run_time(case):
    """x[i], x[:, i] and x[i, j]: what loops and tf.gather-like code read."""
    pytest.importorskip("ai_edge_litert", reason="models are built with ai-edge-litert")
    from tests.conformance.tflite_models.builder import Graph
    from tests.frontends.tflite.test_updates import assert_equals_litert, values

    masks = {"first": (0, 0, 1), "second": (1, 1, 2), "both": (0, 0, 3)}[case]
    rank, shape = (1 if case == "first" else 2), (3, 4, 5)
    graph = Graph()
    x, begin = graph.input(shape, "float32"), graph.input((rank,), "int32")
    end, steps = graph.const(np.zeros(rank, np.int32)), graph.const(np.ones(rank, np.int32))
    output = {"first": (4, 5), "second": (3, 5), "both": (5,)}[case]
    options = dict(zip(("beginMask", "endMask", "shrinkAxisMask"), masks, strict=True))
    graph.op("STRIDED_SLICE", [x, begin, end, steps], [graph.output(output, "float32")], **options)
    data = values(shape, "float32")
    trials = [[data, np.array(place[:rank], np.int32)] for place in ((0, 1), (2, 3), (1, 0))]
    assert_equals_litert(graph.build(), trials)
