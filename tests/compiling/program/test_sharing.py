"""Models get several threads if they were asked for or the model is large; no time is measured."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.target import Target

import qnn_ext
from qnn_ext.compiling.program import sharing
from qnn_ext.module import QnnModule
from qnn_ext.targets import names
from qnn_ext.targets.backend import threads_of
from qnn_ext.targets.names import make_target
from tests.compiling.program.small import small_module
from tests.passes.modules import products_so_far


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr(names, "default_threads", lambda: 4)


def _product(size: int, straight: bool = True) -> QnnModule:
    """x · x for matrices; straight: whether a program can run it, not only the virtual machine."""

    def build(builder, params):
        (x,) = params
        result = builder.emit(relax.op.matmul(x, x))
        return [result if straight else builder.emit(products_so_far(result))]

    return small_module(build, [((size, size), "float32")])


def _tasks(size: int, *args, **options) -> int:
    return qnn_ext.build(_product(size), *args, **options).compiled[0].program.tasks


SMALL, LARGE = 112, 256


def test_small_models_run_on_one_thread_unless_asked():
    assert _tasks(SMALL) == 1
    assert _tasks(LARGE) == 4
    assert _tasks(SMALL, num_threads=4) == 4
    assert _tasks(LARGE, num_threads=2) == 2
    assert _tasks(LARGE, num_threads=1) == 1


def test_threads_of_a_target_s_attributes_are_asked_for_and_a_board_s_are_not():
    attributes = {"kind": "llvm", "mcpu": "x86-64", "mtriple": "x86_64-linux-gnu", "num-cores": 3}
    assert _tasks(SMALL, attributes) == _tasks(SMALL, Target(attributes)) == 3
    del attributes["num-cores"]
    assert _tasks(SMALL, attributes) == 1
    assert threads_of(make_target("rpi4").attrs) == 4
    assert _tasks(SMALL, "rpi4") == 1
    several = qnn_ext.build(_product(SMALL), ["avx2", attributes | {"num-cores": 2}])
    assert [one.program.tasks for one in several.compiled] == [1, 2]


def test_a_small_model_runs_no_other_way_with_threads(rng):
    engine = qnn_ext.build(_product(SMALL))
    x = rng.integers(-3, 4, (SMALL, SMALL)).astype(np.float32)
    np.testing.assert_array_equal(engine(x), x @ x)
    assert engine.num_threads >= 1


@pytest.mark.parametrize(("size", "threads", "launches"), [(SMALL, None, False), (SMALL, 4, True), (LARGE, None, True)])
def test_launches_of_the_virtual_machine(monkeypatch, size, threads, launches):
    found = []
    original = sharing.launch_where_worthwhile

    def seen(*args):
        found.append(original(*args))
        return found[-1]

    monkeypatch.setattr("qnn_ext.compiling.build.launch_where_worthwhile", seen)
    engine = qnn_ext.build(_product(size, straight=False), num_threads=threads)
    assert engine.fallback
    (mod,) = found
    assert ("T.parallel(" in mod.script()) is launches
