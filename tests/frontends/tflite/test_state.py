"""Variables: several invocations against LiteRT, initial values, and what is refused."""

import numpy as np
import pytest
from flatbuffers import flexbuffers

import qnn_ext
from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from tests.conformance.cases import load_cases
from tests.conformance.tflite_models.builder import Graph
from tests.conformance.tflite_models.runner import invoke
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


# ---- subgraphs ---------------------------------------------------------------------------------------------------


def accumulating(body, value, handle=None):
    """sum + value, assigned to sum and returned."""
    handle = variable(body, "sum") if handle is None else handle
    before, after = body.tensor((4,), "float32"), body.tensor((4,), "float32")
    body.op("READ_VARIABLE", [handle], [before])
    body.op("ADD", [before, value], [after], potScaleInt16=False)
    body.op("ASSIGN_VARIABLE", [handle, after], [])
    return after


def repeated(handed=False):
    """WHILE n < limit: sum += x; handed: the handle is a variable of the loop."""
    graph = Graph()
    x, limit = graph.input((4,), "float32"), graph.input((), "int32", low=0, high=5)
    condition, body = graph.subgraph("condition"), graph.subgraph("body")
    initialize(graph, {"sum": (np.ones(4, "float32"), None)})
    kinds = [((), "int32"), ((), "int32"), ((4,), "float32"), ((1,), "resource")][: 3 + handed]
    for inner in (condition, body):
        inner.packed.inputs = [inner.tensor(*kind) for kind in kinds]
    going, count = condition.tensor((), "bool"), body.tensor((), "int32")
    condition.op("LESS", condition.packed.inputs[:2], [going])
    condition.packed.outputs = [going]
    body.op("ADD", [body.packed.inputs[0], body.const(1, "int32")], [count])
    accumulating(body, body.packed.inputs[2], body.packed.inputs[3] if handed else None)
    body.packed.outputs = [count, *body.packed.inputs[1:]]
    handle = variable(graph, "sum")
    values = [graph.const(0, "int32"), limit, x, handle][: 3 + handed]
    outputs = [graph.tensor(*kind) for kind in kinds]
    graph.op("WHILE", values, outputs, condSubgraphIndex=1, bodySubgraphIndex=2)
    graph.op("READ_VARIABLE", [handle], [graph.output((4,), "float32")])
    graph.packed.outputs.append(outputs[0])
    return graph


def chosen():
    """sum += x if c, else other += x."""
    graph = Graph()
    x, c = graph.input((4,), "float32"), graph.input((), "bool")
    then, otherwise = graph.subgraph("then"), graph.subgraph("otherwise")
    initialize(graph, {"sum": (np.ones(4, "float32"), None), "other": (np.zeros(4, "float32"), None)})
    for name, inner in (("sum", then), ("other", otherwise)):
        inner.packed.inputs = [inner.tensor((4,), "float32")]
        inner.packed.outputs = [accumulating(inner, inner.packed.inputs[0], variable(inner, name))]
    graph.op("IF", [c, x], [graph.output((4,), "float32")], thenSubgraphIndex=1, elseSubgraphIndex=2)
    for name in ("sum", "other"):
        graph.op("READ_VARIABLE", [variable(graph, name)], [graph.output((4,), "float32")])
    return graph


def composed():
    """A composite that accumulates twice."""
    graph = Graph()
    x = graph.input((4,), "float32")
    inner = graph.subgraph("inner")
    initialize(graph, {"sum": (np.ones(4, "float32"), None)})
    inner.packed.inputs = [inner.tensor((4,), "float32")]
    inner.packed.outputs = [accumulating(inner, accumulating(inner, inner.packed.inputs[0]))]
    graph.op(
        "STABLEHLO_COMPOSITE",
        [x],
        [graph.output((4,), "float32")],
        name="twice",
        decompositionSubgraphIndex=1,
        compositeAttributes=[*flexbuffers.Dumps({})],
    )
    return graph


@pytest.mark.parametrize(
    "make,rest",
    [
        (repeated, [np.asarray(n, np.int32) for n in (3, 0, 2)]),
        (lambda: repeated(True), [np.asarray(n, np.int32) for n in (2, 1)]),
        (chosen, [np.asarray(c) for c in (True, False, True)]),
        (composed, [None] * 3),
    ],
)
def test_variables_of_subgraphs(make, rest, rng):
    content = make().build()
    trials = [[rng.normal(size=4).astype(np.float32), *([] if one is None else [one])] for one in rest]
    expected = invoke(content, trials, "reference", False)
    module = from_tflite(content)
    for runner in (Interpreter(module), qnn_ext.build(module)):
        for feed, wanted in zip(trials, expected, strict=True):
            for found, one in zip(runner.run(feed).values(), wanted, strict=True):
                np.testing.assert_array_equal(found, one)


# ---- layers with states in subgraphs -----------------------------------------------------------------------------


def svdf(body, x):
    """x -> the layer's result; its state is a variable tensor."""
    rng = np.random.default_rng(1)
    feature, time = (body.const(rng.normal(0, 0.4, shape).astype("float32")) for shape in ((4, 4), (4, 3)))
    state, y = body.tensor((1, 12), "float32", name="state", variable=True), body.tensor((1, 4), "float32")
    body.op("SVDF", [x, feature, time, -1, state], [y], rank=1, act="none")
    return y


def sequence(body, x, operator, operands, **options):
    """x -> a recurrent layer's result for a sequence of one step."""
    steps, results, y = (body.tensor(shape, "float32") for shape in ((1, 1, 4), (1, 1, 4), (1, 4)))
    body.op("RESHAPE", [x, body.const(np.int32([1, 1, 4]))], [steps], newShape=[1, 1, 4])
    body.op(operator, [steps, *operands], [results], act="tanh", timeMajor=False, **options)
    body.op("RESHAPE", [results, body.const(np.int32([1, 4]))], [y], newShape=[1, 4])
    return y


def rnn(body, x):
    rng = np.random.default_rng(1)
    weights = [body.const(rng.normal(0, 0.6, shape).astype("float32")) for shape in ((4, 4), (4, 4), (4,))]
    state = body.tensor((1, 4), "float32", name="state", variable=True)
    return sequence(body, x, "UNIDIRECTIONAL_SEQUENCE_RNN", [*weights, state])


def lstm(body, x):
    rng = np.random.default_rng(1)
    matrices = [body.const(rng.normal(0, 0.5, (4, 4)).astype("float32")) for _ in range(8)]
    biases = [body.const(rng.normal(0, 0.5, 4).astype("float32")) for _ in range(4)]
    states = [body.tensor((1, 4), "float32", name=name, variable=True) for name in ("output_state", "cell_state")]
    operands = [*matrices, *[-1] * 3, *biases, -1, -1, *states, *[-1] * 4]
    return sequence(body, x, "UNIDIRECTIONAL_SEQUENCE_LSTM", operands, cellClip=0.0, projClip=0.0)


def conditional(graph, body, x, condition, layer):
    """IF: the layer, in a branch for each value of the condition."""
    first = len(graph.subgraphs)
    for name in ("then", "otherwise"):
        branch = graph.subgraph(name)
        branch.packed.inputs = [branch.tensor((1, 4), "float32")]
        branch.packed.outputs = [layer(branch, branch.packed.inputs[0])]
    y = body.tensor((1, 4), "float32")
    body.op("IF", [condition, x], [y], thenSubgraphIndex=first, elseSubgraphIndex=first + 1)
    return y


def loop_of(graph, outer, values, layer):
    """WHILE n < limit: total += layer(x). values: limit, x"""
    first = len(graph.subgraphs)
    condition, body = graph.subgraph("condition"), graph.subgraph("body")
    kinds = [((), "int32"), ((), "int32"), ((1, 4), "float32"), ((1, 4), "float32")]
    for inner in (condition, body):
        inner.packed.inputs = [inner.tensor(*kind) for kind in kinds]
    going, count, total = condition.tensor((), "bool"), body.tensor((), "int32"), body.tensor((1, 4), "float32")
    condition.op("LESS", condition.packed.inputs[:2], [going])
    condition.packed.outputs = [going]
    n, limit, x, before = body.packed.inputs
    body.op("ADD", [n, body.const(1, "int32")], [count], potScaleInt16=False)
    body.op("ADD", [layer(body, limit, x), before], [total], potScaleInt16=False)
    body.packed.outputs = [count, limit, x, total]
    outputs = [outer.tensor(*kind) for kind in kinds]
    initial = [outer.const(0, "int32"), *values, outer.const(np.zeros((1, 4), "float32"))]
    outer.op("WHILE", initial, outputs, condSubgraphIndex=first, bodySubgraphIndex=first + 1)
    return outputs[3]


def in_a_loop(layer):
    graph = Graph()
    values = [graph.input((), "int32"), graph.input((1, 4), "float32")]
    graph.packed.outputs = [loop_of(graph, graph, values, lambda body, _, x: layer(body, x))]
    return graph, [np.int32(n) for n in (3, 0, 2, 4)]


def in_a_loop_of_loops(layer):
    graph = Graph()
    values = [graph.input((), "int32"), graph.input((1, 4), "float32")]

    def inner(outer, limit, x):
        return loop_of(graph, outer, [limit, x], lambda body, _, x: layer(body, x))

    graph.packed.outputs = [loop_of(graph, graph, values, inner)]
    return graph, [np.int32(n) for n in (3, 2)]


def in_a_branch(layer):
    graph = Graph()
    condition, x = graph.input((), "bool"), graph.input((1, 4), "float32")
    graph.packed.outputs = [conditional(graph, graph, x, condition, layer)]
    return graph, [np.bool_(c) for c in (True, True, False, True)]


def in_a_branch_in_a_loop(layer):
    graph = Graph()
    values = [graph.input((), "int32"), graph.input((1, 4), "float32")]

    def odd(body, limit, x):
        condition = body.tensor((), "bool")
        body.op("EQUAL", [limit, body.const(3, "int32")], [condition])
        return conditional(graph, body, x, condition, layer)

    graph.packed.outputs = [loop_of(graph, graph, values, odd)]
    return graph, [np.int32(n) for n in (3, 2)]


def in_composites(layer):
    """The same composite twice."""
    graph = Graph()
    _, x = graph.input((), "bool"), graph.input((1, 4), "float32")
    inner = graph.subgraph("inner")
    inner.packed.inputs = [inner.tensor((1, 4), "float32")]
    inner.packed.outputs = [layer(inner, inner.packed.inputs[0])]
    for _ in range(2):
        y = graph.tensor((1, 4), "float32")
        options = {"decompositionSubgraphIndex": 1, "compositeAttributes": [*flexbuffers.Dumps({})]}
        graph.op("STABLEHLO_COMPOSITE", [x], [y], name="layer", **options)
        x = y
    graph.packed.outputs = [y]
    return graph, [np.bool_(c) for c in (True, False)]


@pytest.mark.parametrize("layer", [svdf, rnn, lstm])
@pytest.mark.parametrize("within", [in_a_loop, in_a_loop_of_loops, in_a_branch, in_a_branch_in_a_loop, in_composites])
def test_states_of_layers_in_subgraphs(within, layer, rng):
    """They last from round to round; LiteRT clears them whenever an operator starts to run the subgraph."""
    graph, firsts = within(layer)
    content = graph.build()
    trials = [[first, rng.normal(size=(1, 4)).astype(np.float32)] for first in firsts]
    expected = invoke(content, trials, "reference", False)
    module = from_tflite(content)
    assert not module.states
    for runner in (Interpreter(module), qnn_ext.build(module, num_threads=1)):
        for feed, (wanted,) in zip(trials, expected, strict=True):
            np.testing.assert_allclose(next(iter(runner.run(feed).values())), wanted, rtol=1e-5, atol=1e-6)
