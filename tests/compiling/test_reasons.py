"""What a compiled model reports on how it runs: in the virtual machine, by generic kernels, past the fastest ones."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import qnn_ext
from qnn_ext import op as qnn
from qnn_ext.cli.bench import bench
from qnn_ext.cli.inspect import inspect
from qnn_ext.module import QnnModule, TensorSpec
from qnn_ext.op.base import constant
from tests.passes.modules import module, products_so_far


def built(ir, *shape):
    specs = (TensorSpec("x", shape, "uint8"),), (TensorSpec("y", shape, "uint8"),)
    return qnn_ext.build(QnnModule(ir, *specs, source="test"), "native", 1)


def test_the_virtual_machine_is_reported_with_its_reason(tmp_path):
    ir = module([((4, 16), "uint8")], lambda emit, x: emit(products_so_far(x)))
    engine = built(ir, 4, 16)
    assert engine.fallback == "cumprod is a function of TVM's runtime"
    path = tmp_path / "products.qnn"
    engine.save(path)
    assert qnn_ext.load(path).fallback == engine.fallback
    text = CliRunner().invoke(inspect, [str(path)]).output
    assert "runs on TVM's virtual machine, kernel by kernel: cumprod" in " ".join(text.split())


@pytest.fixture
def wide_sums(rng):
    """A dense layer whose sums take int64, which no dot product has: in int32 they would take more than eight parts."""
    weight = constant(np.where(rng.random((8, 4200)) < 0.5, -32640, 32640).astype(np.int16))
    return module([((4, 4200), "int16")], lambda emit, x: emit(qnn.dense(x, weight, 0, 0, 1.0, 1.0, out_dtype="int64")))


def test_a_generic_product_says_what_no_other_takes(wide_sums, tmp_path):
    spec = TensorSpec("x", (4, 4200), "int16"), TensorSpec("y", (4, 8), "int64")
    engine = qnn_ext.build(QnnModule(wide_sums, spec[:1], spec[1:], source="test"), "native", 1)
    (kernel,) = (kernel for kernel in engine.kernels if kernel.macs)
    reason = "no faster kernel takes a dense layer of int16 × int16 → int64, 4 rows of 4200 → 8: int64 sums"
    assert (kernel.implementation, kernel.reason) == ("dense.generic", reason)
    assert {layer.kernel.reason for layer in engine.profile(1)} >= {reason}
    path = tmp_path / "dense.qnn"
    engine.save(path)
    assert [kernel.reason for kernel in qnn_ext.load(path).kernels] == [kernel.reason for kernel in engine.kernels]
    for command, options in ((inspect, []), (bench, ["--profile", "--repeat", "1", "--number", "1"])):
        run = CliRunner().invoke(command, [*options, str(path)])
        assert reason in " ".join(run.output.split()), run.output
    data = json.loads(CliRunner().invoke(inspect, ["--json", str(path)]).output)
    assert reason in [kernel["reason"] for kernel in data["variants"][0]["kernels"]]


def test_what_runs_as_intended_gives_no_reason(rng):
    weight = constant(rng.integers(-9, 9, (8, 16), dtype=np.int8))
    mod = module([((4, 16), "uint8")], lambda emit, x: emit(qnn.dense(x, weight, 0, 0, 1.0, 1.0)))
    spec = TensorSpec("x", (4, 16), "uint8"), TensorSpec("y", (4, 8), "int32")
    engine = qnn_ext.build(QnnModule(mod, spec[:1], spec[1:], source="test"), "native", 1)
    assert engine.fallback == ""
    assert [kernel.reason for kernel in engine.kernels] == [""] * len(engine.kernels)
