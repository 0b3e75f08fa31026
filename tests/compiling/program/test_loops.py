"""Loops as parts of a program: the same results as the interpreter's, with kernels and memory that do not depend on the
number of rounds."""

import sys

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.autotune import extract_from_program
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.program import emit
from qnn_ext.compiling.program.graph import read_graph
from qnn_ext.frontends.loops import loop
from qnn_ext.interpreter import interpret
from qnn_ext.op.base import constant
from qnn_ext.targets.names import make_target
from tests.cases.loops import as_model, assembled
from tests.passes.modules import products_so_far

R = relax.op
RNG = np.random.default_rng(7)
WEIGHT = RNG.integers(-99, 99, (64, 64)).astype(np.int8)
BIAS = RNG.integers(-99, 99, (1, 64)).astype(np.int32)
TRUE = constant(np.bool_(True))


def integer_layer(a, x, weight=WEIGHT):
    """An int8 dense layer of int8 rows."""
    acc = a.emit(R.add(a.emit(op.dense(x, constant(weight), 3, 0, 0.5, 0.5)), constant(BIAS)))
    return a.emit(op.requantize(acc, 0.25, 0, 40.0, -3, out_dtype="int8"))


def recurrent(a, sequence, state, other, trips, rows, **flags):
    """A quantized recurrence with two states, one of which is an output as well."""

    def body(states, slices):
        x = a.emit(op.add(slices[0], states[0], 0.5, 0, 0.5, 3, 0.75, 1, out_dtype="int8"))
        new = integer_layer(a, x)
        total = a.emit(R.add(states[1], a.emit(R.astype(new, "int32"))))
        return [new, total], [new, a.emit(op.add(new, other, 0.5, 0, 0.5, 0, 0.5, 0, out_dtype="int8"))]

    states, outputs = loop(a, body, [state, constant(np.zeros((rows, 64), np.int32))], [sequence], trips, **flags)
    return [*states, *outputs]


def swapping(a, x, y, trips):
    """States that change places, one that never changes, and outputs that are not computed in the loop."""

    def body(states, slices):
        first, second, third = states
        return [second, first, third], [first, third, last, slices[0], constant(np.int32([4, 5]))]

    last = a.emit(R.add(x, y))
    table = constant(np.arange(trips * 3, dtype=np.int16).reshape(trips, 3))
    states, outputs = loop(
        a, body, [x, y, x], [table], trips, backwards_in=[True], backwards_out=[False, True] * 2 + [0]
    )
    return [*states, *outputs]


def nested(a, x, trips):
    """For each row, a running sum; across rows, the maxima. The inner loop reads the outer one's slice."""

    def outer(states, slices):
        (row,) = slices

        def inner(sums, parts):
            total = a.emit(R.add(sums[0], parts[0]))
            return [total], [a.emit(R.add(total, row))]

        (total,), (running,) = loop(a, inner, [a.emit(R.max(states[0]))], [row], 3, backwards_in=[True])
        return [a.emit(R.maximum(states[0], row))], [running, total]

    states, outputs = loop(a, outer, [constant(np.int32([-5, 0, 5]))], [x], trips)
    return [*states, *outputs]


def doubling(a, x, limit, trips):
    """x is doubled until an element reaches the limit; every round returns it."""

    def body(states, slices):
        new = a.emit(R.add(states[0], states[0]))
        return a.emit(R.less(a.emit(R.max(new)), limit)), [new], [new]

    going = a.emit(R.less(a.emit(R.max(x)), limit))
    states, outputs = loop(a, body, [x], [], trips, condition=going)
    return [*states, *outputs]


def conditional_in_a_loop(a, x, limits, trips):
    def body(states, slices):
        return [states[0]], doubling(a, states[0], slices[0], 6)

    states, outputs = loop(a, body, [x], [limits], trips)
    return [*states, *outputs]


def joined(a, x, trips):
    """Tensors that are parts of others: concatenations and slices inside a loop, of values from both sides."""
    before = a.emit(R.add(x, x))

    def body(states, slices):
        half = a.emit(R.strided_slice(states[0], [0], [0], [64]))
        new = a.emit(R.add(half, slices[0]))
        both = a.emit(R.concat([new, before], 0))
        return [both], [half, both]

    start = a.emit(R.concat([x, before], 0))
    states, outputs = loop(
        a, body, [start], [constant(np.arange(64 * trips, dtype=np.int32).reshape(trips, 64))], trips
    )
    return [*states, *outputs]


def int8(rng, shape):
    return rng.integers(-128, 128, shape).astype(np.int8)


def int32(rng, shape):
    return rng.integers(-50, 50, shape).astype(np.int32)


def case(name, trips, rows):
    """(inputs, walk) of a module."""
    rows_of = {"sequence": ("sequence", (trips, rows, 64), "int8"), "row": ("state", (rows, 64), "int8")}
    quantized = [rows_of["sequence"], rows_of["row"], ("other", (rows, 64), "int8")]
    flags = {"backwards_in": [True], "backwards_out": [True, False]}
    number = ("limit", (), "int32")
    return {
        "recurrent": (quantized, lambda a, x, s, o: recurrent(a, x, s, o, trips, rows)),
        "backwards": (quantized, lambda a, x, s, o: recurrent(a, x, s, o, trips, rows, **flags)),
        "swapping": (
            [("x", (rows, 33), "int16"), ("y", (rows, 33), "int16")],
            lambda a, x, y: swapping(a, x, y, trips),
        ),
        "nested": ([("x", (trips, 3), "int32")], lambda a, x: nested(a, x, trips)),
        "doubling": ([("x", (rows, 64), "int32"), number], lambda a, x, limit: doubling(a, x, limit, trips)),
        "conditional in a loop": (
            [("x", (rows, 64), "int32"), ("limits", (trips,), "int32")],
            lambda a, x, limits: conditional_in_a_loop(a, x, limits, trips),
        ),
        "joined": ([("x", (64,), "int32")], lambda a, x: joined(a, x, trips)),
    }[name]


CASES = ("recurrent", "backwards", "swapping", "nested", "doubling", "conditional in a loop", "joined")


def values(inputs, rng):
    return [(int8 if dtype == "int8" else int32)(rng, shape).astype(dtype) for _, shape, dtype in inputs]


@pytest.mark.sampled("rows", "threads", "trips")
@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("trips", [2, 5])
@pytest.mark.parametrize("name", CASES)
def test_equals_the_interpreter(name, trips, threads, rows, rng):
    inputs, walk = case(name, trips, rows)
    mod = assembled(inputs, walk)
    engine = qnn_ext.build(as_model(mod), num_threads=threads)
    assert engine.compiled[0].program is not None
    for _ in range(2):
        given = values(inputs, rng)
        for found, expected in zip(engine.run(given).values(), interpret(mod, given), strict=True):
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("limit,rounds", [(0, 0), (9, 1), (17, 2), (10**6, 4)])
def test_a_condition_ends_the_loop(limit, rounds, threads):
    engine = qnn_ext.build(as_model(assembled(*case("doubling", 4, 2))), num_threads=threads)
    x = np.full((2, 64), 8, np.int32)
    final, outputs = engine.run([x, np.int32(limit)]).values()
    np.testing.assert_array_equal(final, x << rounds)
    for number in range(4):
        np.testing.assert_array_equal(outputs[number], (x << number + 1) * (number < rounds))


def test_threads_share_the_rounds(rng):
    """Kernels large enough to be shared out: barriers in every round."""
    inputs, walk = case("recurrent", 6, 1024)
    mod = assembled(inputs, walk)
    engine = qnn_ext.build(as_model(mod), num_threads=2)
    assert engine.compiled[0].program.tasks == 2
    given = values(inputs, rng)
    expected = interpret(mod, given)
    for _ in range(5):
        for found, wanted in zip(engine.run(given).values(), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_threads_share_a_loop_with_a_condition():
    """All tasks look at the condition, and at how many rounds there were."""
    weight = constant(np.eye(256, dtype=np.int32) * 2)

    def walk(a, x, limit):
        def body(states, slices):
            new = a.emit(R.matmul(states[0], weight))
            return a.emit(R.less(a.emit(R.max(new)), limit)), [new], []

        return loop(a, body, [x], [], 2**40, condition=TRUE)[0]

    mod = assembled([("x", (256, 256), "int32"), ("limit", (), "int32")], walk)
    engine = qnn_ext.build(as_model(mod), num_threads=2)
    assert engine.compiled[0].program.tasks == 2
    x = np.ones((256, 256), np.int32)
    for limit, rounds in ((2, 1), (3, 2), (1000, 10), (2000, 11)):
        np.testing.assert_array_equal(engine(x, np.int32(limit)), x << rounds)


def test_kernels_and_memory_do_not_depend_on_the_rounds():
    def built(trips):
        target = make_target("native", 1)
        return lower_module(assembled(*case("recurrent", trips, 1)), target, loops=True)

    few, many = read_graph(built(3)), read_graph(built(3000))
    assert len(few.steps) == len(many.steps)
    assert len(few.kernels) <= 5


def test_a_result_is_computed_in_its_place():
    """Stacked outputs and states are not copied unless a value is two of them."""
    graph = read_graph(lower_module(assembled(*case("nested", 4, 1)), make_target("native", 1), loops=True))
    inside = [step for step in graph.steps if step.loop is not None and step.own]
    assert [step.kernel.name_hint for step in inside] == ["loop_copy_4"] * 2  # into the inner loop's state, and out


@pytest.mark.parametrize("threads", [1, 2])
def test_a_body_of_many_operators(threads, rng, monkeypatch):
    """More statements than fit one function of LLVM's."""
    monkeypatch.setattr(sys.modules[emit.__module__], "TOGETHER", 3)

    def walk(a, x):
        def body(states, slices):
            value = states[0]
            for number in range(5):
                value = a.emit(R.cumsum(a.emit(R.add(value, constant(np.int32(number)))), axis=0, dtype="int32"))
            return [value], [value]

        states, outputs = loop(a, body, [x], [], 3)
        return [*states, *outputs]

    mod = assembled([("x", (3,), "int32")], walk)
    given = [int32(rng, (3,))]
    engine = qnn_ext.build(as_model(mod), num_threads=threads)
    assert not engine.fallback  # a loop of a program, and not its rounds one after another
    for found, expected in zip(engine.run(given).values(), interpret(mod, given), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_what_does_not_change_is_computed_once():
    def walk(a, x, y):
        def body(states, slices):
            square = a.emit(R.multiply(y, a.emit(R.add(y, constant(np.int32(1))))))
            return [a.emit(R.add(states[0], square))], []

        return loop(a, body, [x], [], 7)[0]

    mod = assembled([("x", (5,), "int32"), ("y", (5,), "int32")], walk)
    lowered = lower_module(mod, make_target("native", 1), loops=True)
    graph = read_graph(lowered)
    assert [step.loop is not None for step in graph.kernels] == [False, True]
    x, y = np.arange(5, dtype=np.int32), np.arange(3, 8, dtype=np.int32)
    np.testing.assert_array_equal(qnn_ext.build(as_model(mod))(x, y), x + 7 * y * (y + 1))


@pytest.mark.parametrize("threads", [1, 2])
def test_profile(threads, rng):
    """A kernel in a loop counts with all its rounds."""
    inputs, walk = case("recurrent", 50, 256)
    engine = qnn_ext.build(as_model(assembled(inputs, walk)), num_threads=threads)
    profile = engine.profile(3, values(inputs, rng))
    assert sum(layer.kernel.macs for layer in profile) == 50 * 256 * 64 * 64
    seconds = [layer.seconds for layer in profile]
    assert all(second >= 0 for second in seconds)


def test_products_in_a_loop_can_be_tuned():
    module = as_model(assembled(*case("recurrent", 3, 4)))
    (task,) = extract_from_program(module, "avx512_vnni", threads=1)
    assert (task.workload.m, task.workload.k, task.workload.n) == (4, 64, 64)


def test_saved_and_loaded(tmp_path, rng):
    inputs, walk = case("recurrent", 4, 2)
    mod = assembled(inputs, walk)
    given = values(inputs, rng)
    qnn_ext.build(as_model(mod)).save(tmp_path / "loop.qnn")
    engine = qnn_ext.load(tmp_path / "loop.qnn")
    for found, expected in zip(engine.run(given).values(), interpret(mod, given), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_what_the_program_cannot_express_is_unrolled(rng):
    """It runs on TVM's virtual machine, and the loop with it."""

    def walk(a, x):
        def body(states, slices):
            return [a.emit(products_so_far(a.emit(R.add(states[0], slices[0]))))], []

        return loop(a, body, [constant(np.zeros(5, np.int32))], [x], 3)[0]

    mod = assembled([("x", (3, 5), "int32")], walk)
    engine = qnn_ext.build(as_model(mod))
    assert engine.compiled[0].program is None
    x = int32(rng, (3, 5))
    np.testing.assert_array_equal(engine(x), interpret(mod, [x])[0])
