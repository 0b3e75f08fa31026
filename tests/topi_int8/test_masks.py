"""Stores under a condition that leaves a single lane, which LLVM makes too wide where it knows the mask."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import from_source
from tvm.script import tirx as T

from qnn_ext.compiling.codegen import PIPELINE
from qnn_ext.topi_int8.x86.masks import _leaves_pairs, _variables
from tests.cpus import cpu_target

UNWRITTEN = 77
SOURCE = """
@T.prim_func(private=False, s_tir=True)
def main(x: T.Buffer(({length},), "int32"), out: T.Buffer(({length},), "{dtype}")):
    T.func_attr({{"tirx.noalias": True, "global_symbol": "main"}})
    for i in range({blocks}):
        for j in range({lanes}):
            if i * {lanes} + j < {count}:
                out[i * {lanes} + j] = T.Cast("{dtype}",
                    (T.Cast("int64", x[i * {lanes} + j]) * T.int64(1354763307) + T.int64(1073741824) >> T.int64(31))
                    + T.Cast("int64", x[i * {lanes} + j] >> 31) + T.int64(128) >> T.int64(3))
"""


@pytest.mark.parametrize("cpu", ["avx512", "avx2"])
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
@pytest.mark.parametrize(
    ("blocks", "lanes", "count"), [(1, 16, 9), (1, 16, 5), (1, 16, 10), (1, 32, 17), (2, 16, 25), (3, 16, 41)]
)
def test_nothing_is_stored_behind_the_last_lane(blocks, lanes, count, dtype, cpu):
    length = blocks * lanes
    text = SOURCE.format(length=length, dtype=dtype, blocks=blocks, lanes=lanes, count=count)
    mod = tvm.IRModule({"main": from_source(text, {"T": T})})
    compiled = tvm.compile(mod, target=cpu_target(cpu, 1), tir_pipeline=PIPELINE)
    x = np.random.default_rng(count).integers(-1000, 1000, length).astype(np.int32)
    out = tvm.runtime.tensor(np.full(length, UNWRITTEN, dtype))
    compiled["main"](tvm.runtime.tensor(x), out)
    wide = x.astype(np.int64)
    stored = ((wide * 1354763307 + (1 << 30) >> 31) + (wide >> 31) + 128 >> 3).astype(dtype)
    np.testing.assert_array_equal(out.numpy(), np.where(np.arange(length) < count, stored, UNWRITTEN))


def test_conditions_that_leave_pairs_of_lanes():
    """Their masks may be known: LLVM stores two lanes and more correctly."""
    i, j, k = (tirx.Var(name, "int32") for name in "ijk")
    pairs = [i * 16 + j < 24, i * 16 + j >= 8, j + 4 < 10, j - 6 >= i * 8 - i * 8]
    others = [i * 16 + j < 25, j * 2 < 10, j < i, tirx.EQ(j, 4), j + k < 10, j > 4, j // 3 < 4, j + 1 < 10]
    assert [_leaves_pairs(node, _variables(node)) for node in pairs] == [True, True, True, False]
    assert not any(_leaves_pairs(node, _variables(node)) for node in others)
