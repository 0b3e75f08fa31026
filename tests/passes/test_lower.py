"""Which implementation computes a group: the next one where a schedule is refused, and errors stay errors."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from tvm import te

from qnn_ext import op as qnn
from qnn_ext.compiling.build import lower_module
from qnn_ext.compiling.describe import kernels_of
from qnn_ext.op.base import constant
from qnn_ext.targets.families import BACKENDS
from qnn_ext.targets.names import make_target
from qnn_ext.topi_int8 import DenseWorkload, Implementation, select, strategy

from .modules import compile_and_run, module

WORKLOAD = DenseWorkload(4, 16, 8, "uint8", "int8")


@pytest.fixture
def dense_layer(rng):
    weight = constant(rng.integers(-9, 9, (8, 16), dtype=np.int8))
    return module([((4, 16), "uint8")], lambda emit, x: emit(qnn.dense(x, weight, 0, 0, 1.0, 1.0)))


def put_first(monkeypatch, compute, schedule):
    """Offer a kernel for any dense layer, ahead of all others."""
    first = Implementation(
        name="first",
        priority=1000,
        backends=BACKENDS,
        compute=compute,
        schedule=schedule,
        pack_weight=lambda workload, weight: weight,
    )
    monkeypatch.setitem(strategy._registry, DenseWorkload, [first, *strategy._registry[DenseWorkload]])


def rows(workload, x, w, _pad):
    k = te.reduce_axis((0, workload.k), "k")
    return te.compute(
        (workload.m, workload.n),
        lambda i, j: te.sum(x[i, k].astype("int32") * w[j, k].astype("int32"), axis=k),
        name="rows",
    )


def refused(sch, *_):
    sch.compute_inline(sch.get_sblock("rows"))


def test_an_index_error_in_a_kernel_is_an_error(monkeypatch, dense_layer):
    def compute(*_):
        raise IndexError("a defect of the kernel")

    put_first(monkeypatch, compute, refused)
    with pytest.raises(IndexError, match="a defect of the kernel"):
        lower_module(dense_layer, make_target("native", 1))


def test_the_next_kernel_takes_over_where_a_schedule_is_refused(monkeypatch, dense_layer, caplog):
    target = make_target("avx512_vnni", 1)
    second = select(WORKLOAD, target)
    put_first(monkeypatch, rows, refused)
    with caplog.at_level(logging.WARNING, "qnn_ext"):
        (kernel,) = (kernel for kernel in kernels_of(lower_module(dense_layer, target)) if kernel.macs)
    assert kernel.implementation == second.name
    assert "first does not apply: compute-inline: " in caplog.text


@pytest.mark.parametrize("constant_weight", [True, False])
def test_a_product_that_is_multiplied_by_zeros_needs_no_kernel(constant_weight, rng):
    """TVM leaves out what is multiplied by a number that is 0."""
    weight = rng.integers(0, 9, (8, 16), dtype=np.uint8)

    def body(emit, x, *weights):
        product = emit(qnn.dense(x, *(weights or [constant(weight.astype(np.int8))]), 0, 0, 1.0, 1.0))
        rounded = emit(qnn.requantize(product, 0.5, 0, 1.0, 3, out_dtype="uint8"))
        return emit(qnn.mul(rounded, constant(np.full(1, 7, np.uint8)), 1.0, 3, 1.0, 7, 1.0, 5, out_dtype="uint8"))

    mod = module([((4, 16), "uint8"), *([] if constant_weight else [((8, 16), "uint8")])], body)
    inputs = [rng.integers(0, 9, (4, 16), dtype=np.uint8), *([] if constant_weight else [weight])]
    (result,) = compile_and_run(mod, "native", inputs)
    np.testing.assert_array_equal(result, np.full((4, 8), 5, np.uint8))


def test_equal_layers_are_scheduled_once(monkeypatch, rng):
    """Their weights differ, which are arguments of the kernel."""
    scheduled = []
    put_first(monkeypatch, rows, lambda sch, *_: scheduled.append(sch))
    first, second, wider = (
        rng.integers(-9, 9, (units, 16), dtype=np.int8) for units in (WORKLOAD.n, WORKLOAD.n, 2 * WORKLOAD.n)
    )

    def body(emit, x):
        return [emit(qnn.dense(x, constant(weight), 0, 0, 1.0, 1.0)) for weight in (first, wider, second)]

    mod = module([((4, 16), "uint8")], body)
    x = rng.integers(0, 9, (4, 16), dtype=np.uint8)
    results = compile_and_run(mod, "x86-64", [x])
    for result, weight in zip(results, (first, wider, second), strict=True):
        np.testing.assert_array_equal(result, x.astype(np.int32) @ weight.astype(np.int32).T)
    assert len(scheduled) == 2
    assert [kernel.layer for kernel in kernels_of(lower_module(mod, make_target("x86-64")))] == ["lv", "lv1", "lv2"]
