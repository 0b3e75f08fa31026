"""Checks of run-time values: engines and the interpreter refuse the same, and name node, value and range."""

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import InputError, op
from qnn_ext.frontends.loops import loop
from qnn_ext.module import State
from qnn_ext.op.base import constant
from tests.cases.loops import as_model, assembled
from tests.passes.modules import checked_module, products_so_far

TARGETS = ("native", "x86-64")


def refusals(qnn_module, *values, target="native", num_threads=1):
    """The messages of an engine and of the interpreter, None where they compute."""
    found = []
    for runner in (qnn_ext.build(qnn_module, target, num_threads), qnn_ext.Interpreter(qnn_module)):
        try:
            runner(*values)
            found.append(None)
        except InputError as error:
            found.append(str(error))
    return found


def gather(builder, data, indices):
    return [relax.op.take(data, builder.emit(op.check_bounds(indices, -4, 3, "node 'g' (Gather)")), 0, mode="wrap")]


DATA = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("value", [4, -5, 2**62, -(2**63), 2**63 - 1])
def test_index(target, value):
    indices = np.array([0, value, 3], np.int64)
    message = f"node 'g' (Gather): index {value} is out of range -4 … 3, for these inputs"
    assert refusals(checked_module(gather, DATA, indices), DATA, indices, target=target) == [message] * 2


def test_indices_in_range_compute():
    indices = np.array([0, -4, 3, -1], np.int64)
    qnn_module = checked_module(gather, DATA, indices)
    for runner in (qnn_ext.build(qnn_module), qnn_ext.Interpreter(qnn_module)):
        np.testing.assert_array_equal(runner(DATA, indices), DATA[indices])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_dtypes_narrower_than_the_bounds(dtype):
    """255 is out of range for 200 rows, and every 8-bit value is below a bound of 300."""
    indices = np.array([[0, 5], [np.iinfo(dtype).max, 7]], dtype)

    def wide(builder, x):
        return [builder.emit(op.check_bounds(x, (0, 0), (100, 300), "n"))]

    limit = np.iinfo(dtype).max
    expected = None if limit <= 100 else f"n: index {limit} is out of range 0 … 100, for these inputs"
    assert refusals(checked_module(wide, indices), indices) == [expected] * 2


def test_components_have_bounds_of_their_own():
    pairs = np.array([[0, 5], [3, 6]], np.int64)

    def components(builder, x):
        return [builder.emit(op.check_bounds(x, (0, 0), (3, 5), "n"))]

    message = "n: index 6 is out of range 0 … 5, for these inputs"
    assert refusals(checked_module(components, pairs), pairs) == [message] * 2
    assert refusals(checked_module(components, pairs), pairs % 5) == [None] * 2


@pytest.mark.parametrize("zero", [0, 3])
def test_divisor(zero):
    values = np.array([1, 2, zero, 4], np.int32)

    def divide(builder, x):
        return [relax.op.floor_divide(x, builder.emit(op.check_divisor(x, "n", zero)))]

    assert refusals(checked_module(divide, values), values) == ["n: integer division by zero, for these inputs"] * 2


def test_first_check_is_reported():
    one, two = np.array([9], np.int64), np.array([8], np.int64)

    def both(builder, x, y):
        first = builder.emit(op.check_bounds(x, 0, 5, "first"))
        return [first, builder.emit(op.check_bounds(y, 0, 5, "second"))]

    qnn_module = checked_module(both, one, two)
    assert refusals(qnn_module, one, two) == ["first: index 9 is out of range 0 … 5, for these inputs"] * 2
    assert refusals(qnn_module, one - 9, two) == ["second: index 8 is out of range 0 … 5, for these inputs"] * 2


def test_states_stay_as_they_were():
    """A refused call is as if it had not been made."""
    step, total = np.array([1], np.int64), np.zeros(1, np.int64)

    def count(builder, x, state):
        result = builder.emit(relax.op.add(state, builder.emit(op.check_bounds(x, 0, 5, "n"))))
        return [result, result]

    qnn_module = checked_module(count, step, total, states=[State("total", total)])
    for runner in (qnn_ext.build(qnn_module), qnn_ext.Interpreter(qnn_module)):
        assert runner(step) == 1
        with pytest.raises(InputError):
            runner(step * 9)
        assert runner(step) == 2


def test_virtual_machine(rng):
    """It gives the status as well."""
    factors, table = np.array([[1, 2, 1]], np.int64), np.arange(5, dtype=np.float32)

    def product(builder, x, y):
        products = builder.emit(products_so_far(x))
        return [relax.op.take(y, builder.emit(op.check_bounds(products, 0, 4, "n")), 0)]

    qnn_module = checked_module(product, factors, table)
    engine = qnn_ext.build(qnn_module)
    assert engine._variant.program is None
    engine(factors, table)
    factors[0, 2] = 3
    assert refusals(qnn_module, factors, table) == ["n: index 6 is out of range 0 … 4, for these inputs"] * 2


def test_file(tmp_path):
    indices = np.array([9], np.int64)
    qnn_ext.build(checked_module(gather, DATA, indices)).save(tmp_path / "model.qnn")
    with pytest.raises(InputError, match="index 9 is out of range -4 … 3"):
        qnn_ext.load(tmp_path / "model.qnn")(DATA, indices)


def test_threads_and_many_indices(rng):
    indices = rng.integers(0, 4, 200_000)
    qnn_module = checked_module(gather, DATA, indices)
    indices[123_456] = 4
    for threads in (1, 2):
        found = refusals(qnn_module, DATA, indices, num_threads=threads)
        assert found == ["node 'g' (Gather): index 4 is out of range -4 … 3, for these inputs"] * 2


def lookups(trips, unrolled=False):
    """Each round takes an element of a table; a negative index ends the loop. unrolled: for the virtual machine."""

    def walk(a, table, indices):
        def body(states, slices):
            (index,) = slices
            checked = a.emit(op.check_bounds(index, -1, 3, "node 'lookup'"))
            found = a.emit(relax.op.take(table, checked, 0, mode="wrap"))
            total = a.emit(relax.op.add(states[0], found))
            going = a.emit(relax.op.greater_equal(index, relax.const(0, "int32")))
            return going, [a.emit(products_so_far(total)) if unrolled else total], [found]

        start, true = constant(np.zeros(2, np.int32)), constant(np.bool_(True))
        states, outputs = loop(a, body, [start], [indices], trips, condition=true)
        return [*states, *outputs]

    return as_model(assembled([("table", (4, 2), "int32"), ("indices", (trips,), "int32")], walk))


@pytest.mark.sampled("unrolled", whole=False)
@pytest.mark.parametrize("unrolled", [False, True])
@pytest.mark.parametrize(
    "indices,wrong",
    [([0, 3, 1, 2], None), ([0, 4, 9, 0], 4), ([0, 1, 2, 7], 7), ([0, -1, 9, 9], None), ([-2, 9, 0, 0], -2)],
)
def test_a_check_in_a_loop(indices, wrong, unrolled):
    """It is reported if its round runs, of several the first."""
    table = np.arange(8, dtype=np.int32).reshape(4, 2)
    message = None if wrong is None else f"node 'lookup': index {wrong} is out of range -1 … 3, for these inputs"
    module = lookups(4, unrolled)
    assert refusals(module, table, np.int32(indices)) == [message] * 2
    if wrong is None:
        results = [runner(table, np.int32(indices)) for runner in (qnn_ext.build(module), qnn_ext.Interpreter(module))]
        for found, expected in zip(*results, strict=True):
            np.testing.assert_array_equal(found, expected)
