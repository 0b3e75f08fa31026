"""States updated in their own memory: when a program does, and that failed checks change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from qnn_ext import op
from qnn_ext.errors import InputError
from qnn_ext.frontends.assembly import Assembly
from qnn_ext.module import QnnModule, State, TensorSpec

SHAPE, ROWS = (2, 6, 4), (2, 1, 4)

Body = Callable[[Assembly, relax.Expr, relax.Expr, relax.Expr], Sequence[relax.Expr]]


def module(body: Body) -> QnnModule:
    """A model whose state is a cache of 6 rows. body: (assembly, rows, position, cache) -> output, new cache"""
    assembly = Assembly()
    rows, at = assembly.input("rows", ROWS, "float32"), assembly.input("at", (1,), "int64")
    cache = assembly.state(SHAPE, "float32")
    results: list[relax.Expr] = []

    def walk() -> Sequence[relax.Expr]:
        results.extend(assembly.emit(value) for value in body(assembly, rows, at, cache))
        return results

    mod = assembly.module(walk)
    inputs = (TensorSpec("rows", ROWS, "float32"), TensorSpec("at", (1,), "int64"))
    shape = tuple(map(int, results[0].ty.shape))
    return QnnModule(mod, inputs, (TensorSpec("y", shape, "float32"),), (State("cache", np.zeros(SHAPE, np.float32)),))


def written(assembly: Assembly, cache: relax.Expr, rows: relax.Expr, at: relax.Expr) -> relax.Expr:
    checked = assembly.emit(op.check_bounds(at, 0, SHAPE[1] - 1, "the cache"))
    return assembly.emit(op.write_rows(cache, rows, checked, 1))


def total(assembly: Assembly, cache: relax.Expr) -> relax.Expr:
    return assembly.emit(relax.op.sum(cache, axis=1))


def read_after(assembly: Assembly, rows: Any, at: Any, cache: Any) -> Sequence[relax.Expr]:
    new = written(assembly, cache, rows, at)
    return total(assembly, new), new


def read_before(assembly: Assembly, rows: Any, at: Any, cache: Any) -> Sequence[relax.Expr]:
    """A product of the old values and the new ones: the old ones are read after the new ones exist."""
    new = written(assembly, cache, rows, at)
    return relax.op.matmul(new, assembly.emit(relax.op.permute_dims(cache, [0, 2, 1]))), new


def slice_before(assembly: Assembly, rows: Any, at: Any, cache: Any) -> Sequence[relax.Expr]:
    """A slice of the old values, which a program would otherwise read in place, after they were overwritten."""
    first = assembly.emit(relax.op.strided_slice(cache, [1], [0], [1]))
    new = written(assembly, cache, rows, at)
    return relax.op.matmul(new, assembly.emit(relax.op.permute_dims(first, [0, 2, 1]))), new


def twice(assembly: Assembly, rows: Any, at: Any, cache: Any) -> Sequence[relax.Expr]:
    first = written(assembly, cache, rows, at)
    doubled = assembly.emit(relax.op.multiply(total(assembly, first), relax.const(2.0)))
    row = assembly.emit(relax.op.reshape(doubled, ROWS))
    new = assembly.emit(op.write_rows(first, row, relax.const(np.array([5])), 1))
    return total(assembly, new), new


def own_rows(assembly: Assembly, rows: Any, at: Any, cache: Any) -> Sequence[relax.Expr]:
    """The state's first row is written to another place of it."""
    first = assembly.emit(relax.op.strided_slice(cache, [1], [0], [1]))
    new = written(assembly, cache, assembly.emit(relax.op.add(first, rows)), at)
    return total(assembly, new), new


def kept_as_output(assembly: Assembly, rows: Any, at: Any, cache: Any) -> Sequence[relax.Expr]:
    """The output is the cache as it was."""
    return cache, written(assembly, cache, rows, at)


def checked_late(assembly: Assembly, rows: Any, at: Any, cache: Any) -> Sequence[relax.Expr]:
    """A check of values that come from the new cache: it cannot come before the write."""
    new = written(assembly, cache, rows, at)
    found = assembly.emit(relax.op.astype(total(assembly, new), "int32"))
    bounded = assembly.emit(op.check_bounds(found, -1000, 20, "late"))
    return relax.op.astype(bounded, "float32"), new


BODIES = {
    body.__name__: (body, in_place)
    for body, in_place in (
        (read_after, True),
        (read_before, False),
        (slice_before, True),
        (twice, True),
        (own_rows, True),
        (kept_as_output, False),
        (checked_late, False),
    )
}


def is_in_place(engine: qnn_ext.Engine) -> bool:
    layout = engine._variant.program
    assert layout is not None
    return layout.outputs[1] == (0, layout.inputs[2])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", BODIES)
def test_equals_the_interpreter(name, threads, rng):
    body, in_place = BODIES[name]
    model = module(body)
    engine, oracle = qnn_ext.build(model, num_threads=threads), qnn_ext.Interpreter(model)
    assert is_in_place(engine) == in_place
    for place in (0, 5, 2, 2, 3):
        given = [rng.integers(-4, 5, ROWS).astype(np.float32), np.array([place])]
        np.testing.assert_array_equal(engine(*given), oracle(*given))
    before = engine.state_values()
    for place in (6, -1, 2**40):
        with pytest.raises(InputError, match=f"the cache: index {place} is out of range 0 … 5"):
            engine(np.ones(ROWS, np.float32), np.array([place]))
    np.testing.assert_array_equal(engine.state_values(), before)


def test_a_late_check_changes_nothing(rng):
    engine = qnn_ext.build(module(checked_late))
    engine(np.ones(ROWS, np.float32), np.array([1]))
    before = engine.state_values()
    with pytest.raises(InputError, match="late: index 1000"):
        engine(np.full(ROWS, 999, np.float32), np.array([2]))
    np.testing.assert_array_equal(engine.state_values(), before)


def test_measuring_changes_nothing():
    engine = qnn_ext.build(module(read_after))
    engine(np.ones(ROWS, np.float32), np.array([0]))
    before = engine.state_values()
    engine.time(1, 1)
    engine.profile(1)
    np.testing.assert_array_equal(engine.state_values(), before)


def test_states_are_saved_copied_and_reset(rng, tmp_path):
    engine = qnn_ext.build(module(read_after))
    steps = [(rng.standard_normal(ROWS).astype(np.float32), np.array([place])) for place in (0, 1, 2)]
    engine(*steps[0])
    saved = engine.state_values()
    expected = [engine(*step) for step in steps[1:]]
    engine.set_states(saved)
    np.testing.assert_array_equal([engine(*step) for step in steps[1:]], expected)
    engine.save(tmp_path / "cache.qnn")
    loaded = qnn_ext.load(tmp_path / "cache.qnn")
    loaded.set_states(saved)
    np.testing.assert_array_equal([loaded(*step) for step in steps[1:]], expected)
    assert not saved[0][:, 1:].any(), "the copies belong to the caller"
    loaded.reset_state()
    assert not loaded.state_values()[0].any()


@pytest.mark.parametrize("values", [[], [np.zeros(SHAPE)], [np.zeros((2, 6, 5), np.float32)]])
def test_states_that_do_not_fit(values):
    engine = qnn_ext.build(module(read_after))
    with pytest.raises(InputError, match=r"this model keeps the states \(cache: float32 \(2, 6, 4\)\), found"):
        engine.set_states(values)
