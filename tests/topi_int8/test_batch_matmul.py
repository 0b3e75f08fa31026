"""batch_matmul kernels, both operands computed at run time, against int64 NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import te

from qnn_ext.topi_int8 import BatchMatmulWorkload, candidates
from tests.cases.workloads import BATCH_MATMUL

from .kernels import CPUS, check, cpu_target, execute, integers, placeholder


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("b, m, k, n", BATCH_MATMUL)
def test_shapes(b, m, k, n, cpu):
    check(BatchMatmulWorkload(b, m, k, n, "uint8", "int8"), cpu_target(cpu))


@pytest.mark.parametrize("b, m, k, n", BATCH_MATMUL)
def test_generic_fallback(b, m, k, n):
    target = cpu_target("native")
    workload = BatchMatmulWorkload(b, m, k, n, "int16", "int16", "int64")
    implementation = candidates(workload, target)[-1]
    assert implementation.name == "batch_matmul.generic"
    check(workload, target, implementation, epilogue="none", fill=("min", "min"))


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("fill", [("max", "min"), ("max", "max"), ("min", "min")], ids="-".join)
@pytest.mark.parametrize("data_dtype, weight_dtype", [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")])
def test_extremes_do_not_saturate(cpu, fill, data_dtype, weight_dtype):
    check(BatchMatmulWorkload(2, 5, 256, 24, data_dtype, weight_dtype), cpu_target(cpu), epilogue="none", fill=fill)


@pytest.mark.sampled("cpu", whole="native")
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("epilogue", ["none", "residual", "fixed_point"])
def test_epilogues(cpu, epilogue):
    check(BatchMatmulWorkload(3, 9, 40, 20, "uint8", "int8"), cpu_target(cpu), epilogue=epilogue)


def lead(tensor: te.Tensor) -> te.Tensor:
    return te.compute((1, *tensor.shape), lambda b, *i: tensor(*i), name="lead")


@pytest.mark.parametrize("m, k, n", [(1, 64, 100), (9, 17, 40), (30, 64, 64)])
@pytest.mark.parametrize("generic", [False, True])
def test_dense_with_dynamic_weights(m, k, n, generic):
    """Operands and result without a batch axis: stages on both sides of the kernel."""
    workload, rng = BatchMatmulWorkload(1, m, k, n, "uint8", "int8"), np.random.default_rng(3)
    target = cpu_target("native")
    implementation = candidates(workload, target)[-1 if generic else 0]
    x, y = integers(rng, (m, k), "uint8", "random"), integers(rng, (n, k), "int8", "random")
    tensors = [placeholder("x", x), placeholder("y", y)]
    acc = implementation.compute(workload, *(lead(tensor) for tensor in tensors), 0)
    out = te.compute((m, n), lambda i, j: acc[0, i, j], name="unbatch")
    got = execute(workload, target, implementation, tensors, out, (x, y))
    np.testing.assert_array_equal(got, x.astype(np.int64) @ y.astype(np.int64).T)
