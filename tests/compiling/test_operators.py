"""Every operator compiles, and its kernel equals its NumPy reference exactly: on random and on extreme data.

An operator without a kernel or a rule fails here: the samples cover all of OPS.
"""

from __future__ import annotations

import pytest
from tvm import relax

from qnn_ext import op
from tests.cases.operators import (
    ROUNDINGS,
    VARIANTS,
    Case,
    check,
)
from tests.cases.samples import SAMPLES, SUMS_OF_FLOATS
from tests.op.helpers import random_integers


def test_every_operator_has_a_sample():
    assert set(SAMPLES) == set(op.OPS)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name != "trim"])  # the engine trims, not the code
def test_sample(name, rng):
    check(SAMPLES[name], rng, rtol=SUMS_OF_FLOATS.get(name, 0.0))


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", VARIANTS)
def test_variant(name, rng):
    check(VARIANTS[name], rng)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", ["conv2d", "dense", "batch_matmul"])
def test_one_output_channel_keeps_its_kernel(name, rows, rng, caplog):
    weight = random_integers(rng, (1, 40), "int8")
    window = weight.reshape(1, 1, 1, 40)
    products: dict[str, Case] = {
        "conv2d": ([("x", (1, rows, rows, 40), "int8")], lambda x: op.conv2d(x, window, 3, 0, 1.0, 1.0)),
        "dense": ([("x", (rows, 40), "int8")], lambda x: op.dense(x, weight, 3, 0, 1.0, 1.0)),
        "batch_matmul": (
            [("x", (2, rows, 40), "int8"), ("y", (2, 1, 40), "int8")],
            lambda x, y: op.batch_matmul(x, y, 3, 1, 1.0, 1.0),
        ),
    }
    check(products[name], rng)
    assert not caplog.records


@pytest.mark.parametrize("rounding,compute_dtype", ROUNDINGS)
@pytest.mark.parametrize("name", ["mean", "sum", "max", "min"])
def test_reduction_between_products(name, rounding, compute_dtype, rng):
    """Between int8 products activations may travel as uint8, which must not change a reduction."""
    kernel, weight = random_integers(rng, (12, 1, 1, 8), "int8"), random_integers(rng, (6, 12), "int8")

    def network(x: relax.Expr) -> relax.Call:
        acc = op.conv2d(x, kernel, -3, 0, 1.0, 1.0, kernel_layout="OHWI")
        activation = op.requantize(acc, 1e-4, 0, 0.02, 5)
        route = {"rounding": rounding, "compute_dtype": compute_dtype}
        reduced = getattr(op, name)(activation, 0.02, 5, 0.5 if name == "sum" else 0.013, -7, axis=[1, 2], **route)
        return op.dense(reduced, weight, -7, 0, 1.0, 1.0)

    check(([("x", (2, 5, 6, 8), "int8")], network), rng)
