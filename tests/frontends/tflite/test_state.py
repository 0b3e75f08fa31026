"""Variables: several invocations against LiteRT, initial values, and what is refused."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.cases import load_cases
from tests.conformance.tflite_models.builder import Graph
from tests.conformance.tflite_models.streaming import initialize, variable

from .oracle_cases import assert_equals_reference, cases_of


@pytest.mark.parametrize("case", cases_of("VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE"))
def test_equals_litert(case):
    assert_equals_reference(case)


def accumulator():
    return next(case for case in load_cases() if case.name == "ASSIGN_VARIABLE/int16/accumulator")


def test_states_have_names_and_initial_values():
    (state,) = from_tflite(accumulator().model).states
    assert state.name == "sum"
    np.testing.assert_array_equal(state.initial, np.full((2, 3), 2, "int16"))


def test_reset_brings_the_initial_values_back():
    case = accumulator()
    interpreter = Interpreter(from_tflite(case.model, numerics="tflite"))
    first = interpreter(*case.inputs[0])
    interpreter(*case.inputs[1])
    interpreter.reset_state()
    np.testing.assert_array_equal(interpreter(*case.inputs[0]), first)


def edited(change):
    """The accumulator with its subgraphs changed."""
    from ai_edge_litert import schema_py_generated as schema
    from flatbuffers import Builder

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(accumulator().model, 0))
    change(model)
    builder = Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def operator_named(model, name):
    from ai_edge_litert import schema_py_generated as schema

    codes = [code.builtinCode for code in model.operatorCodes]
    return next(
        operator
        for operator in model.subgraphs[0].operators
        if codes[operator.opcodeIndex] == getattr(schema.BuiltinOperator, name)
    )


def test_a_variable_without_initial_value_is_refused():
    def drop(model):
        model.subgraphs[0].operators.remove(operator_named(model, "CALL_ONCE"))

    with pytest.raises(UnsupportedOperatorError, match="without an initial value"):
        from_tflite(edited(drop))


@pytest.mark.parametrize("index", [0, 7, -1])
def test_an_initialization_that_is_not_there_is_refused(index):
    def redirect(model):
        operator_named(model, "CALL_ONCE").builtinOptions.initSubgraphIndex = index

    with pytest.raises(ModelFormatError, match="no subgraph"):
        from_tflite(edited(redirect))


def test_an_initialization_that_calls_itself_is_refused():
    def recurse(model):
        init = model.subgraphs[1]
        init.operators = [operator_named(model, "CALL_ONCE"), *init.operators]

    with pytest.raises(UnsupportedOperatorError, match="initialization subgraph called within another"):
        from_tflite(edited(recurse))


def test_a_state_that_is_an_input_outlives_it():
    """The variable holds the last call's input: the next input must not be written over it."""
    graph = Graph()
    x = graph.input((4,), "float32")
    initialize(graph, {"last": (np.zeros(4, "float32"), None)})
    handle = variable(graph, "last")
    graph.op("READ_VARIABLE", [handle], [graph.output((4,), "float32")])
    graph.op("ASSIGN_VARIABLE", [handle, x], [])
    engine = qnn_ext.build(from_tflite(graph.build()), num_threads=1)
    for call in range(3):
        np.testing.assert_array_equal(engine(np.full(4, call + 1, "float32")), np.full(4, call, "float32"))
