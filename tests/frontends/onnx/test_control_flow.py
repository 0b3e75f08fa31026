"""If, Loop and Scan against ONNX Runtime, in the interpreter and compiled."""

from copy import deepcopy

import numpy as np
import pytest

import qnn_ext
from qnn_ext.compiling.coverage import coverage
from qnn_ext.errors import LimitError, ModelFormatError, QnnError, UnsupportedOperatorError
from qnn_ext.frontends.onnx import from_onnx, importer
from qnn_ext.limits import Limits
from tests.cases.loops import check_results, loops_of

from .graphs import model, node, onnx, require_exact_products, run_ort, value

MOST = 2**63 - 1


def result(name, dtype="f4"):
    return value(name, None, dtype)


def graph(nodes, inputs, outputs, constants=None):
    """A node's graph; inputs and outputs as (name, dtype[, shape]). Integers and conditions are scalars."""

    def declared(name, dtype, shape=None):
        return value(name, () if dtype in ("i8", "?") else shape, dtype)

    made = [[declared(*one) for one in values] for values in (inputs, outputs)]
    return model(nodes, *made, constants).graph


def check(proto, *feeds, threads=(2,), exact=True, loops=True):
    """The interpreter's and engines' results are ONNX Runtime's."""
    module = from_onnx(proto)
    assert bool(loops_of(module)) == loops
    check_results(module, ((feed, run_ort(proto, feed)) for feed in feeds), threads, exact)
    return module


# ---- Scan --------------------------------------------------------------------------------------------------------


def gru(trips, features, hidden, batch=2, **attributes):
    """A GRU layer as a Scan: gates from one product of the input and one of the state."""
    rng = np.random.default_rng(3)
    nodes = [
        node("MatMul", ["x", "w"], ["xw"]),
        node("MatMul", ["h", "r"], ["hr"]),
        node("Split", ["xw"], ["xz", "xr", "xn"], axis=-1, num_outputs=3),
        node("Split", ["hr"], ["hz", "hh", "hn"], axis=-1, num_outputs=3),
        node("Add", ["xz", "hz"], ["z_in"]),
        node("Sigmoid", ["z_in"], ["z"]),
        node("Add", ["xr", "hh"], ["r_in"]),
        node("Sigmoid", ["r_in"], ["gate"]),
        node("Mul", ["gate", "hn"], ["gated"]),
        node("Add", ["xn", "gated"], ["n_in"]),
        node("Tanh", ["n_in"], ["n"]),
        node("Sub", ["h", "n"], ["difference"]),
        node("Mul", ["z", "difference"], ["kept"]),
        node("Add", ["n", "kept"], ["new"]),
        node("Identity", ["new"], ["out"]),
    ]
    weights = {
        "w": rng.normal(0, 0.4, (features, 3 * hidden)).astype(np.float32),
        "r": rng.normal(0, 0.4, (hidden, 3 * hidden)).astype(np.float32),
    }
    body = graph(nodes, [("h", "f4"), ("x", "f4")], [("new", "f4"), ("out", "f4")], weights)
    scan = node("Scan", ["h0", "xs"], ["last", "ys"], "gru", body=body, num_scan_inputs=1, **attributes)
    inputs = [value("h0", (batch, hidden)), value("xs", (trips, batch, features))]
    return model([scan], inputs, [result("last"), result("ys")])


@pytest.mark.parametrize("trips", [1, 7])
def test_a_gru_as_scan(trips, rng):
    feeds = [
        {
            "h0": rng.normal(size=(2, 12)).astype(np.float32),
            "xs": rng.normal(size=(trips, 2, 5)).astype(np.float32),
        }
        for _ in range(2)
    ]
    check(gru(trips, 5, 12), *feeds, exact=False)


def at(part, axis):
    """The shape of four slices, stacked along an axis."""
    shape = list(part)
    shape.insert(axis % (len(part) + 1), 4)
    return shape


def integer_scan(part, axes, directions, out_axes, out_directions, opset=21):
    """A running sum of one sequence and the products of two; the state is an output too."""
    nodes = [
        node("Add", ["s", "a"], ["total"]),
        node("Mul", ["a", "b"], ["product"]),
        node("Identity", ["total"], ["sum_out"]),
    ]
    types = [("s", "i4"), ("a", "i4"), ("b", "i4")]
    body = graph(nodes, types, [("total", "i4"), ("sum_out", "i4"), ("product", "i4")])
    attributes = {
        "scan_input_axes": axes,
        "scan_input_directions": directions,
        "scan_output_axes": out_axes,
        "scan_output_directions": out_directions,
    }
    names = ["total", "sums", "products"]
    scan = node("Scan", ["s0", "as", "bs"], names, "scan", body=body, num_scan_inputs=2, **attributes)
    sequences = [value(name, at(part, axis), "i4") for name, axis in zip(("as", "bs"), axes, strict=True)]
    inputs = [value("s0", part, "i4"), *sequences]
    return model([scan], inputs, [result(name, "i4") for name in names], opset=opset)


@pytest.mark.parametrize("opset", [9, 11, 16, 21])
@pytest.mark.parametrize(
    "axes,directions,out_axes,out_directions",
    [
        ([0, 0], [0, 0], [0, 0], [0, 0]),
        ([0, 0], [1, 0], [0, 0], [0, 1]),
        ([1, 2], [0, 1], [1, 2], [1, 0]),
        ([2, 0], [1, 1], [0, 1], [1, 1]),
    ],
)
@pytest.mark.sampled("opset")
def test_scan(axes, directions, out_axes, out_directions, opset, rng):
    proto = integer_scan((3, 5), axes, directions, out_axes, out_directions, opset)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in proto.graph.input}
    feed = {name: rng.integers(-99, 99, shape).astype(np.int32) for name, shape in shapes.items()}
    check(proto, feed)


def test_negative_axes(rng):
    """Since opset 11."""
    proto = integer_scan((3, 5), [-1, -1], [0, 0], [-1, -2], [0, 1], 11)
    shapes = {"s0": (3, 5), "as": (3, 5, 4), "bs": (3, 5, 4)}
    check(proto, {name: rng.integers(-99, 99, shape).astype(np.int32) for name, shape in shapes.items()})


@pytest.mark.parametrize("lengths", [None, [4, 4, 4]])
def test_scan_of_batches(lengths, rng):
    """Opset 8: a batch axis in front, and an optional input with the lengths."""
    nodes = [node("Add", ["s", "a"], ["total"]), node("Identity", ["total"], ["out"])]
    body = graph(nodes, [("s", "f4"), ("a", "f4")], [("total", "f4"), ("out", "f4")])
    scan = node("Scan", ["n" if lengths else "", "s0", "as"], ["t", "o"], body=body, num_scan_inputs=1, directions=[1])
    constants = {"n": np.asarray(lengths)} if lengths else {}
    inputs = [value("s0", (3, 2)), value("as", (3, 4, 2))]
    proto = model([scan], inputs, [result("t"), result("o")], constants, opset=8)
    feed = {name: rng.integers(-9, 9, shape).astype(np.float32) for name, shape in (("s0", (3, 2)), ("as", (3, 4, 2)))}
    check(proto, feed)


# ---- Loop --------------------------------------------------------------------------------------------------------


def fibonacci(trips, condition=None, keep="always", scans=True, extra=None):
    """States a, b → b, a + b + the round; an output of each round. keep: how the body computes its condition."""
    nodes = [
        node("Cast", ["round"], ["step"], to=6),
        node("Add", ["a", "b"], ["sum"]),
        node("Add", ["sum", "step"], ["next"]),
        node("Identity", ["b"], ["moved"]),
        node("Mul", ["a", "outside"], ["out"]),
        {
            "always": node("Identity", ["going"], ["again"]),
            "limit": node("Less", ["next_max", "limit"], ["again"]),
            "counter": node("Less", ["round", "last"], ["again"]),
        }[keep],
    ]
    if keep == "limit":
        nodes.insert(3, node("ReduceMax", ["next"], ["next_max"], keepdims=0))
    outputs = [("again", "?"), ("moved", "i4"), ("next", "i4")]
    constants = {"last": np.asarray(4, np.int64)}
    inputs = [("round", "i8"), ("going", "?"), ("a", "i4"), ("b", "i4")]
    body = graph(nodes, inputs, [*outputs, *([("out", "i4", (3,))] if scans else [])], constants)
    constants = {}
    names = ["", "", "a0", "b0"]
    if trips is not None:
        constants["m"], names[0] = np.asarray(trips, np.int64), "m"
    if condition is not None:
        constants["c"], names[1] = np.asarray(condition), "c"
    values = [value("a0", (3,), "i4"), value("b0", (3,), "i4"), value("outside", (3,), "i4"), value("limit", (), "i4")]
    results = ["a", "b", "o"] if scans else ["a", "b"]
    loop = node("Loop", names, results, "loop", body=body)
    nodes = [loop, node("Add", ["outside", "limit"], ["z"])]
    return model(
        nodes, [*values, *(extra or [])], [*(result(name, "i4") for name in results), result("z", "i4")], constants
    )


def numbers(rng, limit=50):
    feed = {name: rng.integers(0, 5, 3).astype(np.int32) for name in ("a0", "b0", "outside")}
    return feed | {"limit": np.asarray(limit, np.int32)}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "trips,condition,keep",
    [
        (1, None, "always"),
        (6, True, "always"),
        (np.array([6]), True, "always"),
        (6, None, "counter"),
        (MOST, True, "counter"),
        (None, True, "counter"),
        (3, True, "counter"),
        (0, True, "always"),
        (-5, True, "always"),
        (6, False, "always"),
    ],
)
def test_loop(trips, condition, keep, rng):
    runs = condition is not False and (trips is None or bool(trips > 0))
    module = check(fibonacci(trips, condition, keep), numbers(rng), loops=runs)
    assert len(module.outputs) == 4


@pytest.mark.parametrize("trips", [None, 4, MOST])
def test_a_condition_at_run_time(trips, rng):
    proto = fibonacci(trips, True, "limit", scans=False)
    check(proto, *(numbers(rng, limit) for limit in (-1, 3, 50, 1000)))


@pytest.mark.parametrize("threads", [1, 2])
def test_counts_and_conditions_from_outside(threads, rng):
    """The number of rounds and the first condition are inputs."""
    proto = fibonacci(None, None, "limit", scans=False, extra=[value("m", (), "i8"), value("c", (), "?")])
    proto.graph.node[0].input[0], proto.graph.node[0].input[1] = "m", "c"
    feeds = [
        numbers(rng, limit) | {"m": np.asarray(m, np.int64), "c": np.asarray(c)}
        for limit, m, c in ((10**6, 5, True), (10**6, 0, True), (10**6, -1, True), (10**6, 9, False), (30, 50, True))
    ]
    check(proto, *feeds, threads=(threads,))


def test_loops_in_loops(rng):
    """The inner body uses values of the outer one, and of the model; both have values of the same names."""
    inner = graph(
        [node("Add", ["s", "row"], ["t"]), node("Add", ["t", "weight"], ["u"]), node("Identity", ["u"], ["o"])],
        [("i", "i8"), ("c", "?"), ("s", "f4")],
        [("c", "?"), ("u", "f4"), ("o", "f4")],
    )
    outer = graph(
        [
            node("Gather", ["xs", "i"], ["row"], axis=0),
            node("Loop", ["three", "", "s"], ["t", "inner"], body=inner),
            node("Mul", ["t", "half"], ["u"]),
        ],
        [("i", "i8"), ("c", "?"), ("s", "f4")],
        [("c", "?"), ("u", "f4"), ("inner", "f4")],
        {"half": np.float32(0.5)},
    )
    loop = node("Loop", ["four", "", "s0"], ["s", "all"], body=outer)
    inputs = [value("xs", (4, 2)), value("s0", (2,)), value("weight", (2,))]
    constants = {"three": np.asarray(3), "four": np.asarray(4)}
    proto = model([loop], inputs, [result("s"), result("all")], constants)
    feed = {
        name: rng.integers(-8, 8, shape).astype(np.float32)
        for name, shape in (("xs", (4, 2)), ("s0", (2,)), ("weight", (2,)))
    }
    check(proto, feed)


def test_a_qdq_body_runs_in_integers(rng):
    require_exact_products()
    nodes = [
        node("QuantizeLinear", ["h", "s", "z"], ["hq"]),
        node("DequantizeLinear", ["hq", "s", "z"], ["hd"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["wd"]),
        node("MatMul", ["hd", "wd"], ["p"]),
        node("QuantizeLinear", ["p", "sp", "z"], ["pq"]),
        node("DequantizeLinear", ["pq", "sp", "z"], ["pd"]),
        node("Add", ["pd", "x"], ["a"]),
        node("Tanh", ["a"], ["new"]),
        node("Identity", ["pd"], ["out"]),
    ]
    constants = {
        "w": rng.integers(-127, 128, (16, 16)).astype(np.int8),
        "s": np.float32(1 / 64),
        "sw": np.float32(1 / 256),
        "sp": np.float32(1 / 32),
        "z": np.uint8(128),
        "zw": np.int8(0),
    }
    body = graph(nodes, [("h", "f4"), ("x", "f4")], [("new", "f4"), ("out", "f4")], constants)
    scan = node("Scan", ["h0", "xs"], ["h1", "ys"], body=body, num_scan_inputs=1)
    proto = model([scan], [value("h0", (2, 16)), value("xs", (5, 2, 16))], [result("h1"), result("ys")])
    feed = {"h0": np.zeros((2, 16), np.float32), "xs": rng.normal(size=(5, 2, 16)).astype(np.float32)}
    module = check(proto, feed, exact=False)
    assert coverage(module).share == 1


# ---- If ----------------------------------------------------------------------------------------------------------


def branches(shape=(), other=None, nested=False):
    """(x · 2, x + y) if c, else (x − y, y), with the same names in both branches."""
    then = [node("Add", ["x", "x"], ["p"]), node("Add", ["x", "y"], ["q"])]
    otherwise = [node("Sub", ["x", "y"], ["p"]), node("Identity", ["y"], ["q"])]
    outputs = [("p", "f4"), ("q", "f4")]
    if nested:
        inner = (
            graph([node("Neg", ["x"], ["r"])], [], [("r", "f4")]),
            graph([node("Abs", ["p"], ["r"])], [], [("r", "f4")]),
        )
        then.append(node("If", ["d"], ["s"], then_branch=inner[0], else_branch=inner[1]))
        outputs, otherwise = [("s", "f4"), ("q", "f4")], [*otherwise, node("Identity", ["p"], ["s"])]
    graphs = {"then_branch": graph(then, [], outputs), "else_branch": graph(other or otherwise, [], outputs)}
    inputs = [value("x", (3,)), value("y", (3,)), value("c", shape, "?"), value("d", (), "?")]
    nodes = [node("If", ["c"], ["a", "b"], "choice", **graphs), node("Not", ["d"], ["e"])]
    return model(nodes, inputs, [result("a"), result("b"), result("e", "?")])


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_if(shape, nested, rng):
    x, y = rng.normal(size=(2, 3)).astype(np.float32)
    feeds = [{"x": x, "y": y, "c": np.full(shape, c), "d": np.asarray(d)} for c in (True, False) for d in (True, False)]
    check(branches(shape, nested=nested), *feeds)


def test_the_other_branch_is_not_computed():
    """An index out of range there is no error."""
    then = graph([node("Gather", ["x", "i"], ["p"])], [], [("p", "f4")])
    otherwise = graph([node("Identity", ["y"], ["p"])], [], [("p", "f4")])
    nodes = [node("If", ["c"], ["a"], then_branch=then, else_branch=otherwise)]
    inputs = [value("x", (3,)), value("y", ()), value("i", (), "i8"), value("c", (), "?")]
    engine = qnn_ext.build(from_onnx(model(nodes, inputs, [result("a")])))
    x, y = np.float32([1, 2, 3]), np.float32(9)
    assert engine(x, y, np.asarray(1), np.asarray(True)) == 2
    assert engine(x, y, np.asarray(7), np.asarray(False)) == 9
    with pytest.raises(qnn_ext.InputError, match=r"Gather.*index 7 is out of range"):
        engine(x, y, np.asarray(7), np.asarray(True))


# ---- what is refused ---------------------------------------------------------------------------------------------


def test_branches_of_different_shapes():
    """The error says which input decides, and with its value there is only one branch."""
    other = [node("Concat", ["x", "y"], ["p"], axis=0), node("Identity", ["y"], ["q"])]
    proto = branches(other=other)
    types = r"float32 of shape \(3,\) and float32 of shape \(6,\)"
    with pytest.raises(UnsupportedOperatorError, match=rf"If 'choice'.*{types}; .* constants=\{{'c': …\}}"):
        from_onnx(proto)
    assert [spec.shape for spec in from_onnx(proto, constants={"c": False}).outputs] == [(6,), (3,), ()]


def test_outputs_whose_number_is_unknown():
    with pytest.raises(UnsupportedOperatorError, match=r"Loop 'loop'.*the length of the stacked outputs"):
        from_onnx(fibonacci(None, True, "limit"))


def test_a_loop_without_end():
    with pytest.raises(UnsupportedOperatorError, match=r"Loop 'loop'.*a loop of 9,223,372,036,854,775,807 rounds"):
        from_onnx(fibonacci(None, True, "always", scans=False))


def test_too_many_outputs():
    with pytest.raises(LimitError, match=r"Loop 'loop'.*elements"):
        from_onnx(fibonacci(2**31 - 1, True, "always"))


def growing(rounds=None, limit=None):
    """t ← (t, Σ t), with the sum as an output of every round; m rounds, a number or an input, as long
    as the next round's number is below a limit."""
    body = graph(
        [
            node("ReduceSum", ["s", "first"], ["o"], keepdims=1),
            node("Concat", ["s", "o"], ["t"], axis=0),
            node("Add", ["i", "one"], ["next"]),
            node("Less", ["next", "limit"], ["more"]),
        ],
        [("i", "i8"), ("c", "?"), ("s", "f4")],
        [("more", "?"), ("t", "f4"), ("o", "f4")],
    )
    constants = {"first": [0], "one": np.int64(1), "limit": np.int64(99 if limit is None else limit)}
    given = {"m": np.int64(rounds)} if rounds is not None else {}
    inputs = [value("x", (2,)), *([] if given else [value("m", (), "i8")])]
    loop = node("Loop", ["m", "", "x"], ["y", "sums"], "grow", body=body)
    return model([loop], inputs, [result("y"), result("sums")], {**constants, **given})


@pytest.mark.parametrize("rounds,limit", [(1, None), (5, None), (9, 4), (2**63 - 1, 6)])
def test_a_state_that_grows(rounds, limit, rng):
    """Every round is another function: they are written out."""
    check(growing(rounds, limit), {"x": rng.normal(size=2).astype(np.float32)}, exact=False, loops=False)


def test_a_state_that_grows_at_run_time():
    change = (
        r"Loop 'grow'.*state 0 of the loop changes from .*\(2,\) to .*\(3,\).*: that is supported only if the number"
    )
    with pytest.raises(ModelFormatError, match=change):
        from_onnx(growing())
    with pytest.raises(LimitError, match=r"Loop 'grow'.*a loop written out.*takes 6 steps, and the limit is 5"):
        from_onnx(growing(7), limits=Limits(unrolled=5))


def add(operator, name, attribute):
    operator.attribute.append(onnx.helper.make_attribute(name, attribute))


def damaged(operator, change):
    proto = fibonacci(3, True) if operator == "Loop" else gru(3, 4, 5)
    change(proto.graph.node[0])
    return proto


@pytest.mark.parametrize(
    "operator,change,message",
    [
        ("Loop", lambda loop: loop.attribute.pop(), "the graph 'body' is missing"),
        ("Loop", lambda loop: loop.input.pop(), "has 1 states, but its body has 4 inputs and 4 outputs"),
        ("Loop", lambda loop: loop.attribute[0].g.output.pop(), "has 3 outputs, but its body has 2"),
        (
            "Loop",
            lambda loop: loop.attribute[0].g.node[1].input.__setitem__(0, "q"),
            "'q' is used before it is computed",
        ),
        ("Loop", lambda loop: loop.attribute[0].g.node.append(deepcopy(loop)), "used before|computed twice|nested"),
        ("Scan", lambda scan: scan.input.pop(), "has 1 inputs, of which 1 are scanned, but its body has 2 inputs"),
        (
            "Scan",
            lambda scan: scan.attribute.append(onnx.helper.make_attribute("scan_input_axes", [7])),
            "axis 7 is out",
        ),
        (
            "Scan",
            lambda scan: scan.attribute.append(onnx.helper.make_attribute("scan_input_axes", [0, 0])),
            "has 2 entries",
        ),
        ("Scan", lambda scan: scan.attribute[1].__setattr__("i", -3), "of which -3 are scanned"),
    ],
)
def test_damage(operator, change, message):
    with pytest.raises(QnnError, match=f"{operator} '.*{message}"):
        from_onnx(damaged(operator, change))


def test_graphs_nested_too_deeply(monkeypatch):
    monkeypatch.setattr(importer, "_MOST_NESTED", 5)
    inner = graph([node("Identity", ["x"], ["y"])], [], [("y", "f4")])
    for _ in range(6):
        inner = graph([node("If", ["yes"], ["y"], then_branch=inner)], [], [("y", "f4")])
    proto = model([*inner.node], [value("x", (3,))], [result("y")], {"yes": np.asarray(True)})
    with pytest.raises(ModelFormatError, match="graphs are nested too deeply"):
        from_onnx(proto)


# ---- stacked outputs of as many rounds as the data ask for -------------------------------------------------------


def stacking(most, condition, inputs):
    """A loop that adds up, with the squares of all rounds stacked, and their sum."""
    nodes = [node("Add", ["s", "step"], ["next"]), node("Mul", ["next", "next"], ["square"]), *condition]
    body = graph(
        nodes,
        [("i", "i8"), ("c", "?"), ("s", "f4", (2,))],
        [("going", "?"), ("next", "f4", (2,)), ("square", "f4", (2,))],
        {"step": np.array([1, 2], "f4")},
    )
    return model(
        [
            node("Clip", ["n", "low", "high"], ["clipped"]),
            node("Loop", [most, "", "x"], ["last", "squares"], body=body),
            node("ReduceSum", ["squares", "axes"], ["total"], keepdims=0),
        ],
        [value("x", (2,), "f4"), value("n", (), "i8"), *inputs],
        [result("last"), result("squares"), result("total"), result("clipped", "i8")],
        {"low": np.int64(0), "high": np.int64(6), "axes": np.array([0]), "ten": np.int64(10)},
    )


@pytest.mark.parametrize("number", [-3, 0, 1, 4, 6, 100])
def test_stacked_outputs_of_a_bounded_number_of_rounds(number):
    proto = stacking("clipped", [node("Identity", ["c"], ["going"])], [])
    check(proto, {"x": np.array([1, 3], "f4"), "n": np.array(number)})


def test_stacked_outputs_until_a_condition_of_the_data():
    condition = [node("ReduceSum", ["next"], ["sum"], keepdims=0), node("Less", ["sum", "limit"], ["going"])]
    proto = stacking("ten", condition, [value("limit", (), "f4")])
    feeds = [
        {"x": np.array([1, 3], "f4"), "n": np.array(0), "limit": np.array(most, "f4")} for most in (-9, 9, 21, 1e6)
    ]
    check(proto, *feeds)


def test_stacked_outputs_of_any_number_of_rounds_are_refused():
    with pytest.raises(UnsupportedOperatorError, match="limit it in the model, as by Clip or Min"):
        from_onnx(stacking("n", [node("Identity", ["c"], ["going"])], []))
