"""Reshaping, joining, splitting and repeating: against LiteRT, and after a change of the batch size."""

import numpy as np
import pytest

from qnn_ext.errors import ModelFormatError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.cases import load_cases
from tests.conformance.tflite_models.builder import Graph, Q
from tests.conformance.tflite_models.runner import invoke

from .oracle_cases import assert_equals_reference, cases_of
from .schema_models import TYPES

EVERY = cases_of(
    "RESHAPE SQUEEZE EXPAND_DIMS TRANSPOSE CONCATENATION SPLIT SPLIT_V PACK UNPACK TILE BROADCAST_TO "
    "SHAPE RANK FILL RANGE ZEROS_LIKE REVERSE_V2"
)


@pytest.mark.parametrize("case", EVERY)
def test_equals_litert(case):
    assert_equals_reference(case)


def case_named(name):
    return next(case for case in load_cases() if case.name == name)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("RESHAPE/int8/flatten", (6, 3, 4), (6, 12)),
        ("RESHAPE/int8/inferred", (6, 3, 4), (12, 6)),
        ("SPLIT/int8/rows", (8, 5), (4, 5)),
        ("SQUEEZE/int8/one", (5, 3, 1, 4), (5, 3, 4)),
        ("TRANSPOSE/int8/0231", (3, 3, 4, 5), (3, 4, 5, 3)),
    ],
)
def test_batch_size_follows_the_input(name, shape, expected):
    case = case_named(name)
    (spec,) = from_tflite(case.model).inputs
    module = from_tflite(case.model, shapes={spec.name: shape})
    data = np.arange(np.prod(shape)).reshape(shape).astype("int8")
    assert next(iter(Interpreter(module).run([data]).values())).shape == expected


def test_row_major_order_survives_a_new_batch_size():
    case = case_named("RESHAPE/int8/flatten")  # (2, 3, 4) to (2, 12)
    (spec,) = from_tflite(case.model).inputs
    module = from_tflite(case.model, shapes={spec.name: (5, 3, 4)})
    data = np.arange(60).reshape(5, 3, 4).astype("int8")
    (result,) = Interpreter(module).run([data]).values()
    np.testing.assert_array_equal(result, data.reshape(5, 12))


def test_a_shape_that_cannot_be_reached_is_refused():
    case = case_named("SQUEEZE/int8/one")
    (spec,) = from_tflite(case.model).inputs
    with pytest.raises(ModelFormatError, match="cannot squeeze dimensions"):
        from_tflite(case.model, shapes={spec.name: (1, 3, 2, 4)})


def test_concatenation_of_unequal_scales_requantizes_under_float32_numerics():
    case = case_named("CONCATENATION/uint8/unequal_scales")
    interpreter = Interpreter(from_tflite(case.model, numerics="float32"))
    for trial, reference in zip(case.inputs, case.reference, strict=True):
        (result,) = interpreter.run(trial).values()
        assert np.abs(result.astype(int) - reference[0].astype(int)).max() <= 1


def test_a_shape_computed_from_a_static_shape_is_static():
    """Keras' SHAPE → STRIDED_SLICE → PACK before RESHAPE and FILL."""
    graph, scale = Graph(), Q(0.1, 3)
    x, flat, filled = (graph.tensor(shape, "int8", scale) for shape in ((2, 4, 3), (2, 12), (2, 12)))
    dims, first, shape = (graph.tensor(shape, "int32") for shape in ((3,), (), (2,)))
    graph.packed.inputs, graph.packed.outputs = [x], [flat, filled]
    graph.op("SHAPE", [x], [dims], outType=TYPES.INT32)
    bounds = [graph.const(bound, "int32") for bound in ([0], [1], [1])]
    graph.op("STRIDED_SLICE", [dims, *bounds], [first], shrinkAxisMask=1)
    graph.op("PACK", [first, graph.const(12, "int32")], [shape], valuesCount=2, axis=0)
    graph.op("RESHAPE", [x, shape], [flat])
    graph.op("FILL", [shape, graph.const(7, "int8", scale)], [filled])
    data = np.arange(24, dtype=np.int8).reshape(2, 4, 3)
    found = Interpreter(from_tflite(graph.build())).run([data]).values()
    for result, expected in zip(found, invoke(graph.build(), [[data]], "default", stateful=False)[0], strict=True):
        np.testing.assert_array_equal(result, expected)
