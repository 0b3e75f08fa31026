"""Sequences of tensors against ONNX Runtime, by themselves and in loops."""

import numpy as np
import pytest

from qnn_ext.errors import ModelFormatError, UnsupportedOperatorError
from qnn_ext.frontends.onnx import from_onnx
from tests.cases.loops import check_results, loops_of

from .graphs import model, node, onnx, run_ort, value
from .test_control_flow import graph, result

INT = np.int64


def check(proto, *feeds, loops=False):
    module = from_onnx(proto)
    assert bool(loops_of(module)) == loops
    check_results(module, ((feed, run_ort(proto, feed)) for feed in feeds))


def random(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("new_axis,axis", [(0, 0), (0, -1), (1, 0), (1, 1), (1, -1)])
def test_tensors(new_axis, axis, rng):
    """Constructed, inserted, erased, read and joined."""
    nodes = [
        node("SequenceConstruct", ["a", "b"], ["s0"]),
        node("SequenceInsert", ["s0", "c", "first"], ["s1"]),
        node("SequenceInsert", ["s1", "a"], ["s2"]),
        node("SequenceErase", ["s2", "second"], ["s3"]),
        node("SequenceErase", ["s2"], ["s4"]),
        node("Identity", ["s4"], ["s5"]),
        node("SequenceLength", ["s5"], ["length"]),
        node("SequenceAt", ["s3", "last"], ["one"]),
        node("SequenceAt", ["s3", "i"], ["other"]),
        node("ConcatFromSequence", ["s3"], ["y"], new_axis=new_axis, axis=axis),
    ]
    constants = {"first": INT(0), "second": INT(1), "last": INT(-1)}
    inputs = [*(value(name, (2, 3)) for name in "abc"), value("i", (), "i8")]
    outputs = [result("length", "i8"), result("one"), result("other"), result("y")]
    feeds = [{**{name: random(rng, 2, 3) for name in "abc"}, "i": np.asarray(i, INT)} for i in (0, 2, -3)]
    check(model(nodes, inputs, outputs, constants), *feeds)


@pytest.mark.parametrize(
    "split,attributes",
    [
        (None, {"axis": 0}),
        (None, {"axis": 1, "keepdims": 0}),
        (INT(2), {"axis": 1}),
        (INT(4), {"axis": -1}),
        (np.array([1, 3, 2]), {"axis": 1}),
        (np.array([3, 3]), {"axis": 1}),
    ],
)
def test_split(split, attributes, rng):
    names = ["x"] if split is None else ["x", "split"]
    axis = 1 if attributes.get("keepdims", 1) else 0
    nodes = [
        node("SplitToSequence", names, ["s"], **attributes),
        node("SequenceAt", ["s", "one"], ["part"]),
        node("SequenceInsert", ["s", "part"], ["more"]),
        node("ConcatFromSequence", ["more"], ["y"], axis=axis),
    ]
    constants = {"one": INT(1)} | ({} if split is None else {"split": split})
    if attributes["axis"] == 0:
        nodes[-1] = node("ConcatFromSequence", ["more"], ["y"], axis=0)
    check(model(nodes, [value("x", (2, 6))], [result("part"), result("y")], constants), {"x": random(rng, 2, 6)})


SEQUENCE = onnx.helper.make_tensor_sequence_value_info


def looping(body_nodes, outputs, before=(), after=(), rounds=4, start="empty", extra=()):
    """A loop over rounds with a tensor state h, a sequence state s, and the rows of x by number."""
    body = graph(body_nodes, [("i", "i8"), ("c", "?"), ("h", "f4")], [("c", "?"), ("new", "f4")])
    body.input.append(SEQUENCE("s", 1, None))
    body.output.append(SEQUENCE("t", 1, None))
    nodes = [
        node("SplitToSequence", ["x"], ["rows"], axis=0, keepdims=0),
        *before,
        node("Loop", ["rounds", "", "h0", start], ["h", "all"], body=body),
        *after,
    ]
    inputs = [value("x", (4, 3)), value("h0", (3,)), *extra]
    return model(nodes, inputs, outputs, {"rounds": INT(rounds)})


STEP = [node("SequenceAt", ["rows", "i"], ["row"]), node("Add", ["h", "row"], ["sum"]), node("Neg", ["sum"], ["new"])]
EMPTY = [node("SequenceEmpty", [], ["empty"])]
JOINED = [node("ConcatFromSequence", ["all"], ["y"], axis=0)]


@pytest.mark.parametrize("rounds", [0, 1, 4])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("new_axis,axis", [(0, 0), (1, 0), (1, 1)])
def test_a_loop_that_appends(rounds, count, new_axis, axis, rng):
    """Each round reads a row by its number; what it appends follows what the sequence had before."""
    body = [*STEP, node("SequenceInsert", ["s", "new"], ["t" if count == 1 else "t0"])]
    if count == 2:
        body.append(node("SequenceInsert", ["t0", "row"], ["t"]))
    before = [*EMPTY, node("SequenceInsert", ["empty", "h0"], ["started"])]
    after = [node("ConcatFromSequence", ["all"], ["y"], new_axis=new_axis, axis=axis)]
    proto = looping(body, [result("h"), result("y")], before, after, rounds, "started")
    feeds = [{"x": random(rng, 4, 3), "h0": random(rng, 3)} for _ in range(2)]
    check(proto, *feeds, loops=rounds > 0)


def test_a_sequence_that_a_loop_only_reads(rng):
    body = [node("SequenceAt", ["s", "i"], ["row"]), *STEP[1:], node("Identity", ["s"], ["t"])]
    proto = looping(body, [result("h"), result("y")], after=JOINED, start="rows")
    check(proto, {"x": random(rng, 4, 3), "h0": random(rng, 3)}, loops=True)


def test_loops_in_loops(rng):
    """The inner loop appends to a sequence of its own, whose sum the outer one appends."""
    body = [
        *STEP,
        node("SequenceEmpty", [], ["none"]),
        node("Loop", ["rounds", "", "none"], ["parts"], body=inner_loop()),
        node("ConcatFromSequence", ["parts"], ["joined"], axis=0),
        node("SequenceInsert", ["s", "joined"], ["t"]),
    ]
    after = [node("ConcatFromSequence", ["all"], ["y"], new_axis=1, axis=0)]
    proto = looping(body, [result("y")], EMPTY, after)
    check(proto, {"x": random(rng, 4, 3), "h0": random(rng, 3)}, loops=True)


def inner_loop():
    """The body of a loop that appends row · h to p."""
    inner = graph(
        [node("Mul", ["row", "h"], ["product"]), node("SequenceInsert", ["p", "product"], ["q"])],
        [("j", "i8"), ("d", "?")],
        [("d", "?")],
    )
    inner.input.append(SEQUENCE("p", 1, None))
    inner.output.append(SEQUENCE("q", 1, None))
    return inner


def test_a_loop_in_a_loop_appends_to_the_same_sequence(rng):
    body = [
        *STEP,
        node("SequenceInsert", ["s", "row"], ["u"]),
        node("Loop", ["rounds", "", "u"], ["v"], body=inner_loop()),
        node("SequenceInsert", ["v", "new"], ["t"]),
    ]
    before = [*EMPTY, node("SequenceInsert", ["empty", "h0"], ["started"])]
    proto = looping(body, [result("y")], before, JOINED, 3, "started")
    check(proto, {"x": random(rng, 4, 3), "h0": random(rng, 3)}, loops=True)


def test_sequences_that_change_places():
    """What a sequence becomes is not what it was, with more behind."""
    body = graph([], [("i", "i8"), ("c", "?")], [("c", "?")])
    for name, new in (("s1", "s2"), ("s2", "s1")):
        body.node.append(node("SequenceInsert", [new, "x"], [f"{name}_new"]))
        body.input.append(SEQUENCE(name, 1, None))
        body.output.append(SEQUENCE(f"{name}_new", 1, None))
    nodes = [
        *EMPTY,
        node("SequenceInsert", ["empty", "x"], ["one"]),
        node("Loop", ["rounds", "", "empty", "one"], ["a", "all"], body=body),
        *JOINED,
    ]
    check(model(nodes, [value("x", (2,))], [result("y")], {"rounds": INT(2)}), {"x": np.float32([1, 2])})


READ = [node("SequenceAt", ["s", "i"], ["old"]), node("Add", ["old", "row"], ["sum"]), node("Neg", ["sum"], ["new"])]
LAST = [node("SequenceAt", ["s", "last"], ["old"]), *READ[1:]]
FIRST = [node("SequenceLength", ["s"], ["n"]), node("Cast", ["n"], ["f"], to=1), node("Mul", ["row", "f"], ["new"])]


@pytest.mark.parametrize("body", [READ, LAST, FIRST], ids=["by number", "last", "length"])
@pytest.mark.parametrize("change", ["append", "insert", "erase"])
def test_a_sequence_read_where_it_grows(body, change, rng):
    """Each round reads what earlier ones have appended, or how many there are, and may take some away."""
    body = [node("SequenceAt", ["rows", "i"], ["row"]), *body]
    if change == "append":
        body.append(node("SequenceInsert", ["s", "new"], ["t"]))
    elif change == "insert":
        body.append(node("SequenceInsert", ["s", "new", "first"], ["t"]))
    else:
        body += [node("SequenceInsert", ["s", "new"], ["u"]), node("SequenceInsert", ["u", "row"], ["v"])]
        body.append(node("SequenceErase", ["v", "first"], ["t"]))
    before = [*EMPTY, *(node("SequenceInsert", [f"e{k}" if k else "empty", "h0"], [f"e{k + 1}"]) for k in range(2))]
    proto = looping(body, [result("y")], before, JOINED, 4, "e2")
    for name, number in (("last", -1), ("first", 0)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number), name))
    check(proto, *({"x": random(rng, 4, 3), "h0": random(rng, 3)} for _ in range(2)))


def test_a_sequence_read_where_it_grows_at_run_time():
    body = [node("SequenceAt", ["rows", "i"], ["row"]), *READ, node("SequenceInsert", ["s", "new"], ["t"])]
    before = [*EMPTY, node("SequenceInsert", ["empty", "h0"], ["one"])]
    proto = looping(body, [result("h")], before, start="one", extra=[value("m", (), "i8")])
    loop = next(entry for entry in proto.graph.node if entry.op_type == "Loop")
    loop.input[0] = "m"
    with pytest.raises(
        UnsupportedOperatorError, match=r"Loop.*SequenceAt.*read in that loop: that is supported only if"
    ):
        from_onnx(proto)


@pytest.mark.parametrize(
    "body,error,message",
    [
        ([*STEP, node("SequenceErase", ["s"], ["t"])], ModelFormatError, "position -1 is out of range"),
        ([*STEP, node("SequenceEmpty", [], ["t"])], ModelFormatError, "an empty sequence cannot be joined"),
        (
            [*STEP, node("Add", ["s", "h"], ["u"]), node("SequenceInsert", ["s", "u"], ["t"])],
            UnsupportedOperatorError,
            "input 0 is a sequence",
        ),
    ],
)
def test_what_loops_cannot_do(body, error, message):
    with pytest.raises(error, match=message):
        from_onnx(looping(body, [result("y")], EMPTY, JOINED))


@pytest.mark.parametrize(
    "nodes,error,message",
    [
        ([node("SequenceEmpty", [], ["s"])], ModelFormatError, "empty sequence"),
        ([node("SequenceConstruct", ["a", "b"], ["s"])], ModelFormatError, "one dtype, found float32 and int64"),
        (
            [node("SequenceConstruct", ["a"], ["r"]), node("SequenceErase", ["r", "five"], ["s"])],
            ModelFormatError,
            "position 5 is out of range",
        ),
        ([node("SequenceConstruct", ["a", "c"], ["s"])], UnsupportedOperatorError, "must have one shape"),
    ],
)
def test_refusals(nodes, error, message):
    inputs = [value("a", (2,)), value("b", (2,), "i8"), value("c", (3,))]
    joined = node("ConcatFromSequence", ["s"], ["y"], axis=0, new_axis=1)
    with pytest.raises(error, match=message):
        from_onnx(model([*nodes, joined], inputs, [result("y")], {"five": INT(5)}))


# ---- a graph for each tensor ---------------------------------------------------------------------------------------


def mapped(others, body_inputs, split=2):
    body = graph([node("Mul", ["t", "k"], ["u"]), node("Relu", ["u"], ["v"])], body_inputs, [("u", "f4"), ("v", "f4")])
    nodes = [
        node("SplitToSequence", ["x", "split"], ["s"]),
        node("SplitToSequence", ["y", "other"], ["o"]),
        node("SequenceMap", ["s", *others], ["m", "n"], body=body),
        node("ConcatFromSequence", ["m"], ["first"], axis=0),
        node("ConcatFromSequence", ["n"], ["second"], axis=1),
    ]
    constants = {"split": INT(2), "other": INT(split)}
    inputs = [value("x", (6, 3)), value("y", (6, 3))]
    return model(nodes, inputs, [result("first"), result("second")], constants)


@pytest.mark.parametrize("other", ["o", "z"])
def test_sequence_map(other, rng):
    """With another sequence, and with a tensor for all rounds."""
    proto = mapped([other], [("t", "f4", (2, 3)), ("k", "f4", (2, 3))])
    proto.graph.initializer.append(onnx.numpy_helper.from_array(random(rng, 2, 3), "z"))
    check(proto, {"x": random(rng, 6, 3), "y": random(rng, 6, 3)})


def test_sequence_map_that_does_not_fit(rng):
    with pytest.raises(ModelFormatError, match="different lengths"):
        from_onnx(mapped(["o"], [("t", "f4", (2, 3)), ("k", "f4", (2, 3))], split=3))
    with pytest.raises(ModelFormatError, match="its body has 1 inputs, found 2"):
        from_onnx(mapped(["o"], [("t", "f4", (2, 3))]))
    with pytest.raises(ModelFormatError, match="must be a sequence"):
        proto = mapped(["o"], [("t", "f4", (2, 3)), ("k", "f4", (2, 3))])
        proto.graph.node[2].input[0] = "x"
        from_onnx(proto)
