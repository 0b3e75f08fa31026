"""Interleaved rows of pixels against NumPy: lengths about vectors and periods, any sizes of a window's column."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule

from qnn_ext.topi_int8.cpu.interleave import VECTOR, Interleaving

from .kernels import CPUS, cpu_target

CASES = [
    Interleaving(96, 3, 3, 1),
    Interleaving(97, 3, 3, 1),
    Interleaving(575, 3, 3, 1),
    Interleaving(576, 3, 3, 1),
    Interleaving(577, 3, 3, 2),
    Interleaving(2026, 3, 3, 1),
    Interleaving(4810, 7, 3, 1),
    Interleaving(500, 5, 1, 3),
    Interleaving(700, 5, 5, 1),
    Interleaving(333, 2, 6, 2),
]


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_numpy(case, cpu):
    assert case.legal
    lines = 3
    shape = (lines + (case.rows - 1) * case.step, case.width)
    a = te.placeholder(shape, "uint8", name="a")

    def interleaved(y, j):
        return a[y + j // case.channels % case.rows * case.step, j // case.column * case.channels + j % case.channels]

    sch = Schedule(te.create_prim_func([a, te.compute((lines, case.length), interleaved, name="b")]))
    sch.tensorize(sch.get_loops(sch.get_sblock("b"))[1], case.tensor_intrin)
    rows = np.random.default_rng(0).integers(0, 256, shape).astype("uint8")
    result = tvm.runtime.tensor(np.zeros((lines, case.length), "uint8"))
    tvm.compile(sch.mod, target=cpu_target(cpu))(tvm.runtime.tensor(rows), result)

    for y, line in enumerate(result.numpy()):
        taps = rows[y : y + (case.rows - 1) * case.step + 1 : case.step].reshape(case.rows, -1, case.channels)
        np.testing.assert_array_equal(line, taps.transpose(1, 0, 2).reshape(-1)[: case.length])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pieces_lie_within_their_rows(case):
    for start in range(0, case.period, VECTOR):
        first, indices = case.shuffle(start, case.period // case.rows)
        assert 0 <= first <= case.period // case.rows - case.piece
        assert min(indices) >= 0 and max(indices) < case.rows * case.piece


@pytest.mark.parametrize("length, rows, channels", [(63, 3, 3), (4000, 32, 1), (64, 2, 25)])
def test_what_is_not_legal(length, rows, channels):
    assert not Interleaving(length, rows, channels, 1).legal
