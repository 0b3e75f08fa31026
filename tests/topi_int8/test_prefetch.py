"""Weights of the next panel are prefetched where they do not stay in cache, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.base import constant
from qnn_ext.op.evaluate import interpret
from tests.cpus import runs_here

from ..passes.modules import inputs_of, module


def _dense(rows: int, depth: int, channels: int):
    weight = np.random.default_rng(0).integers(-128, 128, (channels, depth)).astype(np.int8)
    return module([((rows, depth), "uint8")], lambda emit, x: emit(qnn.dense(x, constant(weight), 3, 0, 0.05, 0.01)))


def _built(mod, target: str) -> qnn_ext.Engine:
    x = TensorSpec("x", tuple(int(d) for d in mod["main"].params[0].ty.shape), "uint8", None)
    y = TensorSpec("y", tuple(int(d) for d in mod["main"].ret_ty.fields[0].shape), "int32", None)
    return qnn_ext.build(QnnModule(mod, (x,), (y,)), target, num_threads=1)


@pytest.mark.parametrize(
    ("rows", "depth", "channels", "expected"),
    [(50, 260, 900, True), (50, 64, 32, False), (1, 260, 900, False)],
    ids=["large weights", "weights that stay in L2", "weights read once"],
)
@pytest.mark.parametrize("target", ["avx512_vnni", "avx2"])
def test_prefetches(rows, depth, channels, expected, target):
    mod = _dense(rows, depth, channels)
    engine = _built(mod, target)
    fetches = [line for line in engine.source("asm").splitlines() if "prefetch" in line and "rsp" not in line]
    assert bool(fetches) == expected  # those of the stack keep it aligned, see `x86.stack`
    if not runs_here(target):
        pytest.skip("this CPU runs none of it")
    inputs = inputs_of(np.random.default_rng(1), mod)
    assert np.array_equal(engine(*inputs), interpret(mod, inputs)[0])
