"""The largest and the smallest value of a whole float tensor, or of each row of one, several lanes at a time."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

import qnn_ext
from tests.cpus import TARGETS

from ..compiling.program.small import small_module
from ..passes.modules import compile_and_run, module

REDUCTIONS = {"max": (relax.op.max, np.max), "min": (relax.op.min, np.min)}


@pytest.mark.sampled("target", whole="native")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(1, 128, 3), (4, 1, 7, 24), (3, 5, 7), (64,)])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_whole_tensor(target, shape, name):
    reduce, reference = REDUCTIONS[name]
    values = np.random.default_rng(0).normal(0, 10, shape).astype(np.float32)
    for keepdims in (False, True):
        mod = module([(shape, "float32")], lambda emit, x, keep=keepdims: emit(reduce(x, keepdims=keep)))
        for data in (values, np.abs(values), -np.abs(values)):
            expected = reference(data, keepdims=keepdims)
            assert np.array_equal(compile_and_run(mod, target, [data])[0], expected)


@pytest.mark.parametrize("position", [0, 63, 64, 127, 383])
def test_every_lane_counts(position):
    data = np.zeros((1, 128, 3), np.float32)
    data.reshape(-1)[position] = 5
    mod = module([((1, 128, 3), "float32")], lambda emit, x: emit(relax.op.max(x)))
    assert compile_and_run(mod, "native", [data])[0] == 5


@pytest.mark.sampled("target", whole="native")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape, axis", [((7, 67), [1]), ((3, 5), [1]), ((2, 3, 4, 5), [2, 3]), ((2, 3, 16), [-1])])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_rows(target, shape, axis, name, rng):
    """NaN counts wherever it is, also in a vector that overlaps another one, and infinities are numbers."""
    reduce, reference = REDUCTIONS[name]
    mod = module([(shape, "float32")], lambda emit, x: emit(reduce(x, axis, keepdims=True)))
    data = rng.normal(0, 10, shape).astype(np.float32)
    rows = data.reshape(-1, np.prod([shape[a] for a in axis]))
    rows[0, 1], rows[1, -1] = np.nan, np.nan
    rows[2:] = np.where(rows[2:] > 0, np.inf, -np.inf)
    rows[-1] = {"max": -np.inf, "min": np.inf}[name]
    expected = reference(data, tuple(axis), keepdims=True)
    np.testing.assert_array_equal(compile_and_run(mod, target, [data])[0], expected)


@pytest.mark.parametrize("shape, axis", [((1, 128, 3), None), ((125, 64), [1])])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_lanes_side_by_side(name, shape, axis):
    """Independent extremes, each in its lane: one after the other would take ten times as long."""
    reduced = small_module(lambda builder, x: [REDUCTIONS[name][0](*x, axis)], [(shape, "float32")])
    assert "T.Ramp(T.int64(0), T.int64(1), 64)" in qnn_ext.build(reduced, "avx512", num_threads=1).source("tir")
