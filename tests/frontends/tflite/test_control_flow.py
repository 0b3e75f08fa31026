"""IF and WHILE against LiteRT: recurrent layers as Keras exports them, lists read and written in slices."""

import numpy as np
import pytest

import qnn_ext
from qnn_ext.errors import LimitError, ModelFormatError, QnnError, UnsupportedOperatorError
from qnn_ext.frontends.tflite.importer import from_tflite
from qnn_ext.interpreter import Interpreter
from qnn_ext.limits import Limits
from qnn_ext.op.base import shape_of
from tests.cases.loops import check_results, loops_of
from tests.conformance.tflite_models.builder import Graph, Q
from tests.conformance.tflite_models.runner import invoke

REFERENCE = {"float32": None, "int8": Q(1 / 64, 3)}


class Variables:
    """The variables of a WHILE: name -> (shape, dtype, quantization), as tensors of each of its subgraphs."""

    def __init__(self, graph, body, condition, **variables):
        self.graph, self.body, self.condition = graph, body, condition
        self.types = variables
        self.inside, self.tested = {}, {}
        for name, kind in variables.items():
            for subgraph, found in ((body, self.inside), (condition, self.tested)):
                found[name] = subgraph.tensor(*kind, name=f"{name}_in")
                subgraph.packed.inputs.append(found[name])

    def result(self, name):
        """A new tensor of a variable's type in the body."""
        return self.body.tensor(*self.types[name])

    def loop(self, values, results, condition):
        """WHILE of these first values; results: name -> tensor of the body. Returns the outputs by name."""
        self.body.packed.outputs = [results.get(name, self.inside[name]) for name in self.types]
        self.condition.packed.outputs = [condition]
        outputs = {name: self.graph.tensor(*kind) for name, kind in self.types.items()}
        inputs = [values[name] for name in self.types]
        self.graph.op("WHILE", inputs, list(outputs.values()), condSubgraphIndex=1, bodySubgraphIndex=2)
        return outputs


def plus(graph, a, number, dtype="int32"):
    result = graph.tensor((), dtype)
    graph.op("ADD", [a, graph.const(number, dtype)], [result])
    return result


def packed(graph, *values):
    """A vector of numbers and of [tensors]."""
    parts = [graph.const(value, "int32") if isinstance(value, int) else value[0] for value in values]
    result = graph.tensor((len(values),), "int32")
    graph.op("PACK", parts, [result], valuesCount=len(values))
    return result


def written(graph, before, item, index, kind, way="slices"):
    """A list with one slice replaced, as TensorFlow's converter writes it."""
    shape, dtype, q = kind
    if way == "list":
        result = graph.tensor((), "variant")
        graph.op("FlexTensorListSetItem", [before, index, item], [result], custom=b"")
        return result
    expanded, result = graph.tensor((1, *shape[1:]), dtype, q), graph.tensor(*kind)
    graph.op("EXPAND_DIMS", [item, graph.const(0, "int32")], [expanded])
    if way == "update":
        graph.op("DYNAMIC_UPDATE_SLICE", [before, expanded, packed(graph, [index], 0, 0)], [result])
        return result
    first, last = graph.tensor(shape, dtype, q), graph.tensor(shape, dtype, q)
    for part in (first, last):
        graph.packed.tensors[part].shapeSignature = [-1, *shape[1:]]
    sizes = packed(graph, [index], -1, -1)
    graph.op("SLICE", [before, graph.const([0, 0, 0], "int32"), sizes], [first])
    begin = packed(graph, [plus(graph, index, 1)], 0, 0)
    graph.op("SLICE", [before, begin, graph.const([-1, -1, -1], "int32")], [last])
    graph.op("CONCATENATION", [first, expanded, last], [result], axis=0)
    return result


def both(graph, one, other):
    result = graph.tensor((), "bool")
    graph.op("LOGICAL_AND", [one, other], [result])
    return result


def less(graph, one, other):
    result = graph.tensor((), "bool")
    graph.op("LESS", [one, other], [result])
    return result


def recurrent(
    dtype="float32",
    trips=5,
    length=None,
    way="slices",
    start=0,
    stop=None,
    element=(-1, 8),
    last=False,
    batch=2,
    hidden=8,
):
    """h = tanh(x W + h R) over time as Keras exports it: the sequence and the weights go through the loop unchanged.

    length: slices of both lists. stop: a scalar input below which the sum of `time` and a number stays
    element: the shape of the elements that the list of outputs is reserved for, -1 if not even their rank is known
    last: the list of outputs has one element, which every round writes, as with return_sequences=False
    """
    length = trips if length is None else length
    rng = np.random.default_rng(5)
    graph = Graph()
    condition, body = graph.subgraph("cond"), graph.subgraph("body")
    q = REFERENCE[dtype]
    wide = Q(1 / 16, -5) if q else None
    end = Q(1 / 128, 0) if q else None
    number, row = ((), "int32", None), ((batch, hidden), dtype, end)
    list_kind = ((1 if last else length, batch, hidden), dtype, end)
    variables = Variables(
        graph,
        body,
        condition,
        counter=number,
        time=number,
        out=list_kind if way != "list" else ((), "variant", None),
        h=row,
        n=number,
        xs=((length, batch, hidden), dtype, q) if way != "list" else ((), "variant", None),
    )
    inside, tested = variables.inside, variables.tested

    def weights(seed):
        values = rng.integers(-120, 121, (hidden, hidden))
        if q is None:
            return body.const((values / 300).astype(np.float32)), body.const(np.zeros(hidden, np.float32))
        return body.const(values.astype(np.int8), q=Q(1 / 300)), None

    def product(x, source):
        weight, bias = weights(0)
        if q is not None:
            bias = body.const(np.zeros(hidden, np.int32), q=Q(source.scale / 300))
        result = body.tensor((batch, hidden), dtype, wide)
        body.op("FULLY_CONNECTED", [x, weight, bias], [result], keepNumDims=False)
        return result

    x = body.tensor((batch, hidden), dtype, q)
    if way == "list":
        body.op(
            "FlexTensorListGetItem", [inside["xs"], inside["time"], body.const([-1, hidden], "int32")], [x], custom=b""
        )
    else:
        body.op("GATHER", [inside["xs"], inside["time"]], [x], axis=0, batchDims=0)
    total, new = body.tensor((batch, hidden), dtype, wide), variables.result("h")
    body.op("ADD", [product(x, q), product(inside["h"], end)], [total], potScaleInt16=False)
    body.op("TANH", [total], [new])
    results = {
        "out": written(body, inside["out"], new, body.const(0, "int32") if last else inside["time"], list_kind, way),
        "h": new,
        "time": plus(body, inside["time"], 1),
        "counter": plus(body, inside["counter"], 1),
    }
    going = less(condition, tested["time"], tested["n"])
    going = both(condition, less(condition, tested["counter"], condition.const(trips, "int32")), going)
    xs = graph.input((length, batch, hidden), dtype, q, low=None if q else -1, high=None if q else 1)
    values = {
        "counter": graph.const(0, "int32"),
        "time": graph.const(start, "int32"),
        "out": graph.const(np.full(list_kind[0], 7 if q else 0.5, dtype), q=end),
        "h": graph.const(np.zeros(row[0], dtype), q=end),
        "n": graph.const(length, "int32") if stop is None else graph.input((), "int32"),
        "xs": xs,
    }
    kinds = {"out": list_kind, "h": row, "time": number}
    if way == "list":
        values["xs"], values["out"] = graph.tensor((), "variant"), graph.tensor((), "variant")
        read, reserved = graph.const([-1, hidden], "int32"), graph.const(np.int32(element))
        graph.op("FlexTensorListFromTensor", [xs, read], [values["xs"]], custom=b"")
        count = graph.const(list_kind[0][0], "int32")
        graph.op("FlexTensorListReserve", [reserved, count], [values["out"]], custom=b"")
    outputs = variables.loop(values, results, going)
    if way == "list":
        stacked = graph.tensor(*list_kind)
        graph.op("FlexTensorListStack", [outputs["out"], graph.const([-1, hidden], "int32")], [stacked], custom=b"")
        outputs["out"] = stacked
    for name, kind in kinds.items():
        copy = graph.output(*kind)
        graph.op("RESHAPE", [outputs[name], graph.const(np.int32(kind[0]))], [copy])
    return graph.build()


def check(content, *feeds, exact=True, threads=(2,), kernels="reference"):
    """The interpreter's and engines' results are LiteRT's."""
    module = from_tflite(content, numerics="tflite")
    check_results(module, zip(feeds, invoke(content, list(feeds), kernels, False), strict=True), threads, exact)
    return module


def sequence(rng, dtype, shape=(5, 2, 8)):
    if dtype == "float32":
        return rng.uniform(-1, 1, shape).astype(dtype)
    return rng.integers(-128, 128, shape).astype(dtype)


@pytest.mark.parametrize("way", ["slices", "update"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_recurrent_layer(dtype, way, rng):
    """Lists become sequences and outputs, and what does not change is no state."""
    module = check(recurrent(dtype, way=way), [sequence(rng, dtype)], exact=dtype == "int8")
    (found,) = loops_of(module)
    assert found.trips == 5
    assert found.condition is None
    assert [len(found.sequences), len(found.backwards_out)] == [1, 1]
    assert [shape_of(state) for state in found.states] == [(), (), (2, 8)]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_lists_of_tensorflow(dtype, rng):
    """LiteRT has no kernels for them without TensorFlow's; the same layer with tensors is compared with LiteRT."""
    x = sequence(rng, dtype)
    lists, tensors = (from_tflite(recurrent(dtype, way=way), numerics="tflite") for way in ("list", "slices"))
    for found, expected in zip(
        Interpreter(lists).run([x]).values(), Interpreter(tensors).run([x]).values(), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert len(qnn_ext.build(lists).kernels) == len(qnn_ext.build(tensors).kernels)


@pytest.mark.parametrize("element", [(-1, 8), (2, -1), -1])
def test_a_list_of_the_last_output(element, rng):
    """Written at the same position in every round, and reserved before the elements' shape is known."""
    x = sequence(rng, "float32")
    module = from_tflite(recurrent(way="list", last=True, element=element), numerics="tflite")
    out, h, _ = Interpreter(module).run([x]).values()
    (expected,) = invoke(recurrent(), [[x]], "reference", False)
    np.testing.assert_allclose(out, expected[0][-1:], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(out[0], h)
    (found,) = loops_of(module)
    assert not found.backwards_out


def test_elements_that_no_round_writes(rng):
    """They are zeros."""
    x = sequence(rng, "float32")
    (expected,) = invoke(recurrent("float32", 3, 5), [[x]], "reference", False)
    for feed, content in (
        ([x], recurrent("float32", 3, 5, way="list")),
        ([x, np.asarray(3, np.int32)], recurrent("float32", 5, 5, way="list", stop=True)),
    ):
        out, *_ = Interpreter(from_tflite(content, numerics="tflite")).run(feed).values()
        np.testing.assert_allclose(out[:3], expected[0][:3], rtol=1e-5, atol=1e-6)
        assert out.shape == (5, 2, 8) and not out[3:].any()


@pytest.mark.parametrize("start,trips", [(0, 3), (2, 3), (2, 9), (4, 1), (5, 5)])
def test_a_part_of_a_list(start, trips, rng):
    """Slices before the first round's and after the last one's keep their values."""
    check(recurrent("int8", trips, 5, start=start), [sequence(rng, "int8")])


def test_rounds_known_at_run_time(rng):
    """Then lists are states."""
    x = sequence(rng, "int8")
    content = recurrent("int8", stop=True)
    module = check(content, *([x, np.asarray(n, np.int32)] for n in (0, 1, 3, 5, 99)[:-1]))
    (found,) = loops_of(module)
    assert found.condition is not None
    engine = qnn_ext.build(from_tflite(recurrent("int8", 9, 5, stop=True)))
    with pytest.raises(qnn_ext.InputError, match=r"index 5 is out of range"):
        engine(x, np.asarray(9, np.int32))


def test_kernels_do_not_depend_on_the_rounds():
    few, many = (qnn_ext.build(from_tflite(recurrent("int8", trips))) for trips in (3, 300))
    assert len(few.kernels) == len(many.kernels)


def squares():
    """x² until it is large; the rounds are counted."""
    graph = Graph()
    condition, body = graph.subgraph("cond"), graph.subgraph("body")
    variables = Variables(graph, body, condition, x=((3,), "int32", None), rounds=((1,), "int32", None))
    inside, tested = variables.inside, variables.tested
    doubled = variables.result("x")
    body.op("ADD", [inside["x"], inside["x"]], [doubled])
    rounds = variables.result("rounds")
    body.op("ADD", [inside["rounds"], body.const([1], "int32")], [rounds])
    largest, going = condition.tensor((), "int32"), condition.tensor((), "bool")
    condition.op("REDUCE_MAX", [tested["x"], condition.const([0], "int32")], [largest], keepDims=False)
    condition.op("LESS", [largest, condition.const(50, "int32")], [going])
    outputs = variables.loop(
        {"x": graph.input((3,), "int32", low=1, high=60), "rounds": graph.const([0], "int32")},
        {"x": doubled, "rounds": rounds},
        going,
    )
    graph.packed.outputs = [outputs["x"], outputs["rounds"]]
    return graph.build()


def test_a_condition_on_values():
    check(squares(), *([np.int32(x)] for x in ([1, 2, 3], [49, 1, 1], [50, 1, 1], [7, 7, 7])))


def branches(condition=None, dtype="int8"):
    graph, q = Graph(), Q(0.1, 3) if dtype == "int8" else None
    c = graph.input((), "bool") if condition is None else graph.const(condition)
    x, y = graph.input((4,), dtype, q), graph.input((4,), dtype, q)
    result = graph.output((4,), dtype, q)
    for name, operator in (("then", "ADD"), ("else", "SUB")):
        inner = graph.subgraph(name)
        inner.packed.inputs = [inner.tensor((4,), dtype, q) for _ in range(2)]
        inner.packed.outputs = [inner.tensor((4,), dtype, q)]
        inner.op(operator, inner.packed.inputs, inner.packed.outputs, potScaleInt16=False)
    graph.op("IF", [c, x, y], [result], thenSubgraphIndex=1, elseSubgraphIndex=2)
    return graph.build()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_if(dtype, rng):
    x, y = (sequence(rng, dtype, (4,)) for _ in range(2))
    module = check(branches(dtype=dtype), *([np.asarray(c), x, y] for c in (True, False)))
    assert len(loops_of(module)) == 2


@pytest.mark.parametrize("condition", [True, False])
def test_a_constant_condition(condition, rng):
    module = check(branches(np.bool_(condition)), [sequence(rng, "int8", (4,)) for _ in range(2)])
    assert not loops_of(module)


def case(index=None):
    """One of three functions of two numbers."""
    graph = Graph()
    number = graph.input((), "int32", low=-9, high=9) if index is None else graph.const(np.int32(index))
    x, y = graph.input((4,), "float32"), graph.input((4,), "float32")
    for operator in ("ADD", "SUB", "MUL"):
        inner = graph.subgraph(operator)
        inner.packed.inputs = [inner.tensor((4,), "float32") for _ in range(2)]
        inner.packed.outputs = [inner.tensor((4,), "float32")]
        inner.op(operator, inner.packed.inputs, inner.packed.outputs)
    graph.op("STABLEHLO_CASE", [number, x, y], [graph.output((4,), "float32")], branchSubgraphIndices=[1, 2, 3])
    return graph.build()


def test_case(rng):
    """A number out of range chooses the last branch."""
    x, y = (sequence(rng, "float32", (4,)) for _ in range(2))
    check(case(), *([np.int32(number), x, y] for number in (0, 1, 2, 3, -1)), kernels="builtin")


@pytest.mark.parametrize("number", [0, 1, -1, 7])
def test_a_constant_case(number, rng):
    feed = [sequence(rng, "float32", (4,)) for _ in range(2)]
    assert not loops_of(check(case(number), feed, kernels="builtin"))


def test_a_case_without_branches():
    graph = Graph()
    number = graph.input((), "int32")
    graph.op("STABLEHLO_CASE", [number], [graph.output((), "int32")], branchSubgraphIndices=[])
    with pytest.raises(ModelFormatError, match=r"STABLEHLO_CASE #0 .*no branches"):
        from_tflite(graph.build())


# ---- what is refused ---------------------------------------------------------------------------------------------


def small(change):
    """WHILE time < 5: time + 1, changed by change(graph, body, condition, variables)."""
    graph = Graph()
    condition, body = graph.subgraph("cond"), graph.subgraph("body")
    variables = Variables(graph, body, condition, time=((), "int32", None))
    going = less(condition, variables.tested["time"], condition.const(5, "int32"))
    step = plus(body, variables.inside["time"], 1)
    outputs = variables.loop({"time": graph.input((), "int32")}, {"time": step}, going)
    graph.packed.outputs = [outputs["time"]]
    change(graph, body, condition)
    return graph.build()


def options(graph, **changes):
    for name, value in changes.items():
        setattr(graph.packed.operators[-1].builtinOptions, name, value)


def grown(graph, body, condition):
    body.packed.outputs = [body.tensor((2,), "int32")]
    body.op("PACK", [body.packed.inputs[0]] * 2, body.packed.outputs, valuesCount=2)


def floats(graph, body, condition):
    condition.packed.outputs = condition.packed.inputs


def endless(graph, body, condition):
    condition.packed.outputs = [condition.const(np.bool_(True))]


@pytest.mark.parametrize(
    "change,error,message",
    [
        (lambda g, b, c: options(g, bodySubgraphIndex=9), ModelFormatError, "there is no subgraph 9 to run"),
        (lambda g, b, c: options(g, condSubgraphIndex=-1), ModelFormatError, "there is no subgraph -1 to run"),
        (lambda g, b, c: options(g, bodySubgraphIndex=0), ModelFormatError, "there is no subgraph 0 to run"),
        (lambda g, b, c: b.packed.outputs.append(0), ModelFormatError, "subgraph 2 has 1 inputs and 2 outputs"),
        (grown, ModelFormatError, r"state 0 of the loop changes from int32 of shape \(\) to int32 of shape \(2,\)"),
        (floats, ModelFormatError, r"the condition must be a bool scalar, found int32 of shape \(\)"),
        (endless, UnsupportedOperatorError, "a loop of 9,223,372,036,854,775,807 rounds"),
    ],
)
def test_damage(change, error, message):
    with pytest.raises(error, match=rf"WHILE #0 .*{message}"):
        from_tflite(small(change))


def test_a_body_that_runs_itself():
    def recurse(graph, body, condition):
        result = body.tensor((), "int32")
        body.op("WHILE", [body.packed.inputs[0]], [result], condSubgraphIndex=1, bodySubgraphIndex=2)
        body.packed.outputs = [result]

    with pytest.raises(ModelFormatError, match="nested too deeply, or one runs itself"):
        from_tflite(small(recurse))


def test_branches_that_double():
    """Each subgraph runs the next one in both branches: a small file, and too many operators."""
    graph = Graph()
    inner = [graph.subgraph(f"level {number}") for number in range(20)]
    for number, level in enumerate([graph, *inner]):
        if level is not graph:
            level.packed.inputs = [level.tensor((), "bool"), level.tensor((4,), "float32")]
        else:
            graph.input((), "bool"), graph.input((4,), "float32")
        c, x = level.packed.inputs
        result = level.tensor((4,), "float32")
        if number < 20:
            level.op("IF", [c, c, x], [result], thenSubgraphIndex=number + 1, elseSubgraphIndex=number + 1)
        else:
            level.op("NEG", [x], [result])
        level.packed.outputs = [result]
    with pytest.raises(LimitError, match="the model takes over 500 expressions"):
        from_tflite(graph.build(), limits=Limits(expressions=500))


def test_a_list_that_is_too_short():
    with pytest.raises(QnnError, match=r"WHILE #0 .*takes 9 rounds, and a tensor it goes through has only 5 slices"):
        from_tflite(too_short())


def too_short():
    """A counter that runs past the end of what it indexes."""
    graph = Graph()
    condition, body = graph.subgraph("cond"), graph.subgraph("body")
    variables = Variables(graph, body, condition, time=((), "int32", None), total=((2,), "float32", None))
    table, row = body.const(np.ones((5, 2), np.float32)), body.tensor((2,), "float32")
    body.op("GATHER", [table, variables.inside["time"]], [row], axis=0, batchDims=0)
    total = variables.result("total")
    body.op("ADD", [variables.inside["total"], row], [total], potScaleInt16=False)
    going = less(condition, variables.tested["time"], condition.const(9, "int32"))
    values = {"time": graph.const(0, "int32"), "total": graph.input((2,), "float32")}
    outputs = variables.loop(values, {"time": plus(body, variables.inside["time"], 1), "total": total}, going)
    graph.packed.outputs = [outputs["total"]]
    return graph.build()


@pytest.mark.parametrize(
    "count,error,message",
    [(-1, ModelFormatError, "a list of -1 elements"), (2**31 - 1, LimitError, "2147483647, 4096")],
)
def test_lists_of_absurd_lengths(count, error, message):
    graph = Graph()
    x, handle, stacked = graph.input((1,), "float32"), graph.tensor((), "variant"), graph.output((1, 4096), "float32")
    element = graph.const([4096], "int32")
    graph.op("FlexTensorListReserve", [element, graph.const(count, "int32")], [handle], custom=b"")
    graph.op("FlexTensorListStack", [handle, x], [stacked], custom=b"")
    with pytest.raises(error, match=rf"FlexTensorListReserve #0 .*{message}"):
        from_tflite(graph.build())


@pytest.mark.parametrize("index,expected", [(0, 1), (2, 3), (3, None), (-1, None)])
def test_an_element_of_a_list(index, expected):
    graph = Graph()
    x, index_in, handle = graph.input((3,), "float32"), graph.input((), "int32"), graph.tensor((), "variant")
    scalar = graph.const(np.zeros(0, np.int32))
    graph.op("FlexTensorListFromTensor", [x, scalar], [handle], custom=b"")
    graph.op("FlexTensorListGetItem", [handle, index_in, scalar], [graph.output((), "float32")], custom=b"")
    engine = qnn_ext.build(from_tflite(graph.build()))
    values = np.float32([1, 2, 3]), np.asarray(index, np.int32)
    if expected is not None:
        assert engine(*values) == expected
        return
    with pytest.raises(qnn_ext.InputError, match=rf"GetItem #1 .*index {index} is out of range 0 … 2"):
        engine(*values)
